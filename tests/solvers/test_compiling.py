"""What is compiled once after an installation keeps no search beyond its time limit."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial

import pytest

from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.solvers import Status, compiling, pruning, solve
from checkmate_tf.solvers.annealing import annealer
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.fastsa import solver as fastsa
from checkmate_tf.solvers.ordering import topological_order
from tests.graphs import training_chain

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
    stdin: io.BytesIO = field(default_factory=io.BytesIO)

    def wait(self, timeout: float) -> int:
        self.waits_s.append(timeout)
        if not self.is_in_time:
            raise subprocess.TimeoutExpired("compiling", timeout)
        return 0


@pytest.fixture
def compilers(monkeypatch, request):
    """Nothing is compiled yet; gives what is started to compile it, which is in time as the parameter says."""
    started: list[_Compiler] = []

    def start(_, module, function):
        started.append(_Compiler(module, request.param))
        return started[-1]

    monkeypatch.setattr(Kernel, "is_compiled", lambda _: False)
    monkeypatch.setattr(compiling, "_ready", set())
    monkeypatch.setattr(compiling, "start_process", start)
    compiling._start_to_compile.cache_clear()
    yield started
    compiling._start_to_compile.cache_clear()


@pytest.mark.parametrize("compilers", [False], indirect=True)
@pytest.mark.parametrize("solver", ["stage_annealing", "fastsa"])
def test_what_takes_longer_to_compile_than_the_time_limit_goes_on_beside(compilers, solver):
    what = f"{solver} finds nothing, .* its time limit of 20 s and goes on beside"
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
