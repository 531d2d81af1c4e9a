"""No solver takes more memory than it may: it says what it would need, and every solution says what was taken."""

import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from checkmate_tf.cli import main
from checkmate_tf.process_memory import find_free_bytes, find_peak_bytes
from checkmate_tf.serialization import save_graph
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Result, Search, Solver, Status, solve
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkmate.stage_space import full_space
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.search import MOST_MEMORY_BYTES, find_memory_limit
from tests.graphs import training_chain


@dataclass(frozen=True)
class Greedy(Solver):
    """Asks for more memory than any machine has."""

    def search(self, search: Search) -> Result:
        return Result(None, stats={"size": len(np.empty(2**60, dtype=np.uint8))})


def test_what_is_free_bounds_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, limit in ((None, MOST_MEMORY_BYTES), (2**50, MOST_MEMORY_BYTES), (1000, 500)):
        monkeypatch.setattr("checkmate_tf.solvers.search.find_free_bytes", lambda free=free: free)
        assert find_memory_limit() == limit


def test_a_solver_that_runs_out_of_memory_finds_nothing() -> None:
    solution = solve(training_chain(3), "80%", solver=Greedy())
    assert solution.status is Status.NOT_FOUND
    assert "allocate" in str(solution.stats["gave_up"])


@pytest.mark.parametrize(
    "solver", ["checkmate_milp", "checkmate_lp", "chen_sqrt", "chen_greedy", "ap_sqrt", "linearized_greedy", "moccasin"]
)
def test_what_would_be_too_large_is_not_begun(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_tf.solvers.search.find_free_bytes", lambda: 2 * 10**6)
    monkeypatch.setattr("checkmate_tf.solvers.checkmate.starts.StageAnnealing.search", lambda *_: Result(None))
    graph = training_chain(400)
    solve(training_chain(5), "90%", solver=solver, time_limit_s=1)  # imports
    tracemalloc.start()
    solution = solve(graph, "40%", solver=solver, time_limit_s=20)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert solution.schedule is None or solver == "moccasin"
    assert "of memory, above its limit of 976.56 KiB" in str(solution.stats["gave_up"])
    assert taken < len(graph.nodes) * len(graph.values) * 8


def test_a_program_is_not_built_further_than_memory_goes() -> None:
    graph = training_chain(20)
    budget_bytes = simulate_stock(graph).peak_bytes // 2
    most = SETTINGS.entry_bytes * 40 * build_model(graph, budget_bytes, full_space(graph)).matrix.nnz
    build_model(graph, budget_bytes, full_space(graph), memory_limit_bytes=most)
    with pytest.raises(MemoryError, match="would need"):
        build_model(graph, budget_bytes, full_space(graph), memory_limit_bytes=most // 400)


def test_solutions_say_how_much_memory_was_taken() -> None:
    free, peak = find_free_bytes(), find_peak_bytes()
    if free is None or peak is None:
        pytest.skip("this system does not tell")
    graph = training_chain(30)
    solution = solve(graph, "45%", solver=Auto(workers=2, here_nodes=1), time_limit_s=3)
    assert peak <= solution.stats["peak_memory_bytes"] < free + peak
    assert 20 * 2**20 < solution.stats["workers_peak_memory_bytes"] < free


def test_the_command_says_what_would_be_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("checkmate_tf.solvers.search.find_free_bytes", lambda: 1000)
    save_graph(training_chain(8), tmp_path / "graph.json")
    arguments = ["solve", str(tmp_path / "graph.json"), "--budget", "50%", "--solver", "linearized_sqrt"]
    assert main([*arguments, "--time-limit", "2"]) == 4
    assert "found (it would need at least 2.82 KiB of memory, above its limit of 500 B)" in capsys.readouterr().err
