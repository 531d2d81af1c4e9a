"""What is compiled once after an installation keeps no search beyond its time limit."""

import ast
import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.solvers import Status, compiling, pruning, solve
from checkmate_tf.solvers.annealing import annealer
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.fastsa import solver as fastsa
from checkmate_tf.solvers.ordering import topological_order
from tests.graphs import training_chain
from tests.test_packaging import module_files

KERNELS = {
    "annealing": annealer.MOVES,
    "fastsa": fastsa.MOVES,
    "pruning": pruning.KERNEL,
    "order": topological_order.BEAM,
}


@dataclass
class _Compiler:
    """A process that compiles, and ends in time or not."""

    module: str
    is_in_time: bool
    waits_s: list[float] = field(default_factory=list)

    def wait(self, timeout: float) -> int:
        self.waits_s.append(timeout)
        if not self.is_in_time:
            raise subprocess.TimeoutExpired("compiling", timeout)
        return 0


@pytest.fixture
def compilers(monkeypatch, request):
    """Nothing is compiled yet; gives what is started to compile it, which is in time as the parameter says."""
    started: list[_Compiler] = []

    def start(_, module, function, *, pass_fds, outlives):
        assert outlives
        started.append(_Compiler(module, request.param))
        return started[-1]

    monkeypatch.setattr(Kernel, "is_compiled", lambda _: False)
    monkeypatch.setattr(compiling, "_started", {})
    monkeypatch.setattr(compiling, "start_process", start)
    return started


@pytest.mark.parametrize("compilers", [False], indirect=True)
@pytest.mark.parametrize("solver", ["stage_annealing", "fastsa"])
def test_what_takes_longer_to_compile_than_the_time_limit_goes_on_beside(compilers, solver):
    what = f"{solver} found nothing: .* its time limit of 20 s; compilation continues"
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=what):
            assert solve(training_chain(12), "60%", solver=solver, time_limit_s=20).schedule is None
    (compiler,) = compilers
    assert max(compiler.waits_s) <= 20


@pytest.mark.parametrize("compilers", [False], indirect=True)
def test_searches_that_can_do_without_what_is_not_compiled_do(compilers):
    chain = training_chain(12)
    assert solve(chain, "60%", solver="block_relaxation", time_limit_s=20).status is Status.OPTIMAL
    assert max(compilers[-1].waits_s) <= 10
    assert solve(chain, "60%", solver="twremat", time_limit_s=20).schedule is not None
    order = topological_order.search_order(chain, time_limit_s=2.0).order
    assert order == tuple(range(len(chain.nodes)))
    modules = [compiler.module.rpartition(".")[2] for compiler in compilers]
    assert modules == ["annealer", "pruning", "topological_order"]


@pytest.mark.parametrize("compilers", [True], indirect=True)
@pytest.mark.parametrize("solver", ["stage_annealing", "fastsa"])
def test_what_is_compiled_in_time_is_used(compilers, solver):
    assert solve(training_chain(12), "60%", solver=solver, time_limit_s=20).schedule is not None
    assert len(compilers) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_what_was_compiled_is_known(name):
    # A fixture of all tests compiles it.
    assert KERNELS[name].is_compiled(), "sources were edited since: delete the folders __pycache__ of solvers"


def test_the_process_that_is_started_compiles_into_a_folder_that_the_user_chose(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    asking = "from checkmate_tf.solvers.ordering.topological_order import BEAM; print(BEAM.is_compiled())"
    ask = partial(
        subprocess.run, [sys.executable, "-c", asking], env=os.environ | environment, capture_output=True, text=True
    )
    assert ask().stdout.split() == ["False"]
    kernel = topological_order.BEAM.compile
    process = start_process(compiling.__name__, kernel.__module__, kernel.__name__, environment=environment)
    assert end_process(process, patience_s=300.0) == 0
    assert ask().stdout.split() == ["True"]


def test_of_each_file_of_a_kernel_the_function_that_is_compiled_last_is_asked_for():
    decorators, last = {"keep_compiled", "compiled", "entry"}, {}
    for name, path in module_files():
        functions = [
            one for one in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(one, ast.FunctionDef)
        ]
        found = [one.name for one in functions if decorators & set(map(_name_decorator, one.decorator_list))]
        if found:
            last[name.removeprefix("solvers.")] = found
    named = {tuple(name.rsplit(".", 1)) for kernel in KERNELS.values() for name in kernel.last}
    assert {module for module, _ in named} == set(last)
    # Those without signatures are compiled in the order in which they are first called.
    in_order = {"pruning_kernel": "remove_positions"}
    assert named == {(module, in_order.get(module, found[-1])) for module, found in last.items()}


def _name_decorator(decorator: ast.expr) -> str:
    return ast.unparse(decorator).partition("(")[0]


def test_all_that_is_compiled_is_kept_by_one_function():
    found = {name for name, path in module_files() if "numba.njit" in path.read_text(encoding="utf-8")}
    # That of sequence_arrays has functions that are only ever parts of others.
    assert found == {"solvers.compiling", "solvers.fastsa.sequence_arrays"}


# Asks whether a function of a module in the folder of sys.argv[1] is compiled, before and after that is imported.
ASK = """
import sys
from pathlib import Path
from checkmate_tf.solvers import compiling
sys.path.insert(0, sys.argv[1])
compiling._SOLVERS = Path(sys.argv[1])
before = compiling._is_on_disk("small.add")
import small
print(before, compiling._is_on_disk("small.add"), small.add(2))
"""
SMALL = """
from numba import int64
from checkmate_tf.solvers.compiling import keep_compiled

@keep_compiled(int64(int64))
def add(number):
    "Says nothing that is not in the code."
    assert number > 1
    return number + 1
"""


def ask(folder: Path, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(folder)], env=os.environ | environment, capture_output=True, text=True
    )
    return done.stdout.strip(), done.stderr


def test_what_was_compiled_for_another_processor_or_other_options_is_not_compiled(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    assert ask(tmp_path)[0] == "False True 3"
    assert ask(tmp_path, NUMBA_CPU_NAME="generic")[0] == "False True 3"
    assert ask(tmp_path, PYTHONOPTIMIZE="2")[0] == "False True 3"
    assert ask(tmp_path)[0] == "True True 3"
    (tmp_path / "small.py").write_text(SMALL.replace("+ 1", "+ 2"))
    assert ask(tmp_path)[0] == "False True 4"


def test_where_numba_can_keep_nothing_a_folder_among_the_temporary_files_takes_its_place(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    (tmp_path / "__pycache__").touch()  # no folder can be made there, not even by root
    (tmp_path / "temporary").mkdir()
    nowhere = {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "TMPDIR": str(tmp_path / "temporary")}
    found, warned = ask(tmp_path, **nowhere)
    assert found == "False True 3"
    assert warned.count("set NUMBA_CACHE_DIR") == 1
    (own,) = (tmp_path / "temporary").iterdir()
    assert str(own) in warned
    assert own.stat().st_mode & 0o077 == 0
    assert ask(tmp_path, **nowhere)[0] == "True True 3"
    own.chmod(0o777)  # as one that somebody else has made for what this process would unpickle
    found, warned = ask(tmp_path, **nowhere)
    assert found == "False False 3"
    assert warned.count("half a minute in each process") == 1


def test_while_another_process_compiles_none_is_started(compilers_at_work, tmp_path):
    kernel, started = compilers_at_work
    with (tmp_path / "compile_pruning.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not kernel.compile_within(0.2)
        assert not started
    assert kernel.compile_within(0.2)
    assert len(started) == 1


def test_where_no_process_can_be_started_kernels_are_compiled_within(compilers_at_work, monkeypatch):
    """As where `ulimit -u` allows no more; that is the error that a lock raises which another process holds."""
    kernel, _ = compilers_at_work

    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(compiling, "start_process", refuse)
    assert kernel.compile_within(0.2)


@pytest.fixture
def compilers_at_work(monkeypatch, tmp_path):
    """A kernel that is not compiled, kept in a folder of its own, and the processes that are started to compile it."""
    started: list[_Compiler] = []

    def start(_, module, function, *, pass_fds, outlives):
        started.append(_Compiler(module, is_in_time=True))
        return started[-1]

    monkeypatch.setattr(Kernel, "is_compiled", lambda _: False)
    monkeypatch.setattr(compiling, "_started", {})
    monkeypatch.setattr(compiling, "start_process", start)
    monkeypatch.setattr(compiling.FunctionCache, "cache_path", str(tmp_path))
    return pruning.KERNEL, started
