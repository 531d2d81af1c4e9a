"""Outputs of the command line, on full disks, in the place of its own input, in no place at all; and threads."""

import contextlib
import io
import json
import os
import random
import resource
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from checkmate_tf import cli
from checkmate_tf.errors import CheckmateError
from checkmate_tf.schedule import check_schedule
from checkmate_tf.serialization import graph_from_json, load_graph, load_schedule, save_graph
from checkmate_tf.simulator import simulate
from checkmate_tf.solution_json import save_solution
from checkmate_tf.solvers import solve
from tests.fuzz.problems import random_graph

_BAD_INPUT = 2
_FREE_BYTES = 20  # on a full disk
# Solvers that compute one schedule, whatever the time.
_STEADY = ("ap_greedy", "ap_sqrt", "chen_sqrt", "linearized_sqrt", "griewank", "xla_greedy", "retain_all")


def check_output(seed: int) -> str:
    """Raises unless every file is whole afterwards, as it was or as it should be, and nothing lies beside them."""
    lot = random.Random(seed)
    graph = graph_from_json(random_graph(lot, max_nodes=6))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = _write_inputs(graph, folder)
        output = lot.choice((
            "", str(inputs[0]), str(inputs[-1]), str(folder), str(folder / "folder" / ".." / "graph.json"),
            str(folder / "link"), str(folder / "old"), str(folder / "new"), str(folder / "made" / "here" / "new"),
            str(inputs[0] / "new"), "/dev/full", "/dev/null", "/proc/none/new", "a\0b", "n" * 300,
        ))  # fmt: skip
        output += lot.choice(("", "", ".png", ".svg", ".html", ".json", ".nonsense")) if output else ""
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        is_full = lot.random() < 0.3
        command = lot.choice(_list_commands(inputs, output))
        with _full_disk() if is_full else contextlib.nullcontext():
            status, out, err = _run(command)
        read = {path for path in inputs if str(path) in command[1:3]}
        _check_files(folder, before, Path(output) if output else None, read, succeeded=status != _BAD_INPUT)
        assert "Traceback" not in err
        if status == _BAD_INPUT:
            assert len(err.splitlines()) == 1, err
        if status == _BAD_INPUT and out and command[0] == "solve":
            order = json.loads(out.splitlines()[-1])["order"]
            assert sorted(set(order)) == list(range(len(graph.nodes)))
    return f"{command[0]} {'refused' if status == _BAD_INPUT else 'ended'}{' on a full disk' if is_full else ''}"


def check_threads(seed: int) -> str:
    """Raises unless threads that solve, write and read at once find what one alone finds, and files that are whole."""
    lot = random.Random(seed)
    graph = graph_from_json(random_graph(lot, max_nodes=8))
    budget, names = f"{lot.randint(50, 100)}%", [lot.choice(_STEADY) for _ in range(lot.randint(2, 4))]
    try:
        alone = [solve(graph, budget, solver=name, seed=seed, time_limit_s=20.0) for name in names]
    except CheckmateError:  # of a graph that takes no memory
        return "refused"
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.json")
        save_graph(graph, path)

        def work(name: str, expected: Any) -> None:
            found = solve(graph, budget, solver=name, seed=seed, time_limit_s=20.0)
            assert (found.status, found.schedule) == (expected.status, expected.schedule), name
            save_graph(graph, path)
            assert load_graph(path) == graph

        threads = [
            threading.Thread(target=_note_failure, args=(failures, work, name, expected))
            for name, expected in zip(names, alone, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(Path(folder).iterdir()) == [path]
    if failures:
        raise AssertionError(f"{', '.join(names)} at {budget} in threads") from failures[0]
    return "found as alone"


def _note_failure(failures: list[BaseException], work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except BaseException as failure:
        failures.append(failure)


def _write_inputs(graph: Any, folder: Path) -> tuple[Path, Path]:
    (folder / "folder").mkdir()
    graph_path, schedule_path = folder / "graph.json", folder / "schedule.json"
    save_graph(graph, graph_path)
    save_solution(solve(graph, 10**18), graph, schedule_path)
    (folder / "link").symlink_to(graph_path)
    (folder / "old").write_text("whole")
    return graph_path, schedule_path


def _list_commands(inputs: tuple[Path, Path], output: str) -> list[list[str]]:
    graph, schedule = map(str, inputs)
    search = ["--budget", "100%", "--time-limit", "1"]  # so that there is something to write
    return [
        ["solve", graph, *search, "--solver", "ap_greedy", "--output", output],
        ["solve", graph, *search, "--solver", "ap_greedy", "--json", "--output", output],
        ["compare", graph, *search, "--solver", "ap_greedy", "--plot", output],
        ["plot", graph, schedule, "--output", output],
    ]


def _run(command: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = cli.main(command)
    return status, out.getvalue(), err.getvalue()


def _check_files(
    folder: Path, before: dict[Path, bytes], output: Path | None, read: Collection[Path], *, succeeded: bool
) -> None:
    graph = load_graph(folder / "graph.json")
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink() or before.get(path) == path.read_bytes():
            continue
        assert output is not None, f"{path} was written"
        assert path == Path(os.path.realpath(output)), f"{path} was written"
        assert path not in read, "an input was written over"
        assert succeeded, f"{path} was written by a command that failed"
        assert path.stat().st_size
        if path.read_bytes().startswith(b'{"format"'):
            schedule = load_schedule(path)
            check_schedule(graph, schedule)
            simulate(graph, schedule)
    assert before.keys() <= set(folder.rglob("*"))


@contextlib.contextmanager
def _full_disk() -> Iterator[None]:
    """Has the system refuse to write more than a few bytes of any file, as it does on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FREE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
