"""The search for the largest size, against trying every size; and the model of a graph by size, by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch.graph_model import fit_size_model
from checkmate_tf.max_batch.search import SizeProblem, SizeSearch
from checkmate_tf.measurement.step_run import ProcessRun
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers import Solution, solve
from checkmate_tf.solvers.checkpointing.policy import greedy_choices, linear_candidates, retain_matrix
from checkmate_tf.solvers.stages import schedule_of_checkpoints
from tests.graphs import training_chain

RESIDENT = 1000


def graph_at(size: int, *, power: int = 1) -> Graph:
    """Three layers, 100 bytes a row in each value: the stock peak is 5 values, and 4 or 3 need recomputation."""
    return replace(training_chain(3, size=100 * size**power, cost=10 + size), resident_bytes=RESIDENT)


def exhaustive(graph: Graph, budget_bytes: int, start: Schedule | None) -> Solution:
    return solve(graph, budget_bytes, solver="exhaustive")


def problem(budget_bytes: int, allowed: float | None, *, maximum: int = 4096, step: int = 1, **more) -> SizeProblem:
    sizes = range(step, maximum + 1, step)
    known = {"graph_at": graph_at, "solve": exhaustive, "margin": 0.0, **more}
    return SizeProblem(budget_bytes=budget_bytes, sizes=sizes, allowed_overhead=lambda graph: allowed, **known)


def largest_by_trying(asked: SizeProblem) -> int | None:
    """The oracle: every size, from the largest down."""
    for size in reversed(asked.sizes):
        found = exhaustive(graph_at(size), asked.budget_bytes, None)
        allowed = asked.allowed_overhead(graph_at(size))
        if found.simulation is not None and (allowed is None or found.simulation.overhead <= allowed):
            return size
    return None


def runs(chunks: float, limit: int | None = None) -> Callable[[int, Schedule], ProcessRun]:
    """A machine whose allocator takes this much more than what is asked for, and has no more than `limit` bytes."""

    def run(size: int, schedule: Schedule) -> ProcessRun:
        peak_bytes = RESIDENT + round(chunks * (simulate(graph_at(size), schedule).peak_bytes - RESIDENT))
        if limit is not None and peak_bytes > limit:
            return ProcessRun(failure="out of memory")
        return ProcessRun(peak_bytes, 0.1)

    return run


@pytest.mark.parametrize("allowed", [0.0, 0.2, 0.3, None])
@pytest.mark.parametrize("budget_bytes", [RESIDENT + 400, RESIDENT + 20_150, RESIDENT + 90_000])
@pytest.mark.parametrize("step", [1, 7])
def test_finds_what_trying_every_size_finds(budget_bytes: int, allowed: float | None, step: int) -> None:
    asked = problem(budget_bytes, allowed, maximum=400, step=step)
    search = SizeSearch(asked)
    found = search.search()
    assert (found.size if found else None) == largest_by_trying(asked)
    assert search.count_trials("solve") <= asked.max_solves


def test_ten_solves_close_a_range_of_4096() -> None:
    """Against equation (11) of the Checkmate paper over every schedule that the method has."""

    def deep(size: int) -> Graph:
        return replace(training_chain(30, size=size), resident_bytes=RESIDENT)

    def greedy(graph: Graph, budget_bytes: int, start: Schedule | None) -> Solution:
        return solve(graph, budget_bytes, solver="linearized_greedy")

    choices = greedy_choices(deep(1), linear_candidates(deep(1)), num_sizes=50)
    known = [
        make_retain_all_schedule(deep(1)),
        *(schedule_of_checkpoints(deep(1), retain_matrix(deep(1), chosen)) for chosen in choices),
    ]
    simulations = [simulate(deep(1), schedule) for schedule in known]
    for allowed in (0.1, 0.25, 0.5):
        least = min(simulation.peak_bytes for simulation in simulations if simulation.overhead <= allowed) - RESIDENT
        search = SizeSearch(problem(40_000, allowed, graph_at=deep, solve=greedy))
        found = search.search()
        assert found is not None
        assert found.size == 39_000 // least
        assert search.count_trials("solve") <= 10


def test_everything_fits_without_a_solve() -> None:
    search = SizeSearch(problem(10**9, 0.0))
    assert search.search().size == 4096
    assert not search.trials


@pytest.mark.parametrize("chunks", [0.9, 1.0, 1.07, 1.3])
def test_runs_correct_the_prediction(chunks: float) -> None:
    budget_bytes = RESIDENT + 90_000
    search = SizeSearch(problem(budget_bytes, None, run=runs(chunks), margin=0.02))
    found = search.search()
    assert found is not None
    assert found.run is not None
    assert found.run.measured_peak_bytes is not None
    assert found.run.measured_peak_bytes <= budget_bytes
    assert found.size == int(90_000 / (400 * chunks))  # 4 values a row
    assert search.describe_beyond(found) == f"{found.size + 1}, the next: above the budget"
    assert search.count_trials("run") <= 10
    assert search.count_trials("solve") <= 10


def test_out_of_memory_is_an_answer() -> None:
    search = SizeSearch(problem(RESIDENT + 90_000, None, run=runs(1.0, limit=RESIDENT + 70_000)))
    found = search.search()
    assert found is not None
    assert found.size == 175  # 4 values a row
    assert search.describe_beyond(found) == "176, the next: out of memory"
    assert search.count_trials("run") <= 10


@pytest.mark.parametrize("chunk", [1, 9_000, 20_000])
def test_runs_end_next_to_a_failure_though_peaks_jump(chunk: int) -> None:
    """Chunks of whole multiples: the peak stays where it is for many sizes and then jumps."""

    def run(size: int, schedule: Schedule) -> ProcessRun:
        beside_bytes = simulate(graph_at(size), schedule).peak_bytes - RESIDENT
        return ProcessRun(RESIDENT + -(-beside_bytes // chunk) * chunk, 0.1)

    search = SizeSearch(problem(RESIDENT + 90_000, None, run=run))
    found = search.search()
    assert found is not None
    assert found.size == 90_000 // chunk * chunk // 400
    assert search.describe_beyond(found) == f"{found.size + 1}, the next: above the budget"


def test_what_is_beyond_is_said_where_runs_end_early() -> None:
    search = SizeSearch(problem(RESIDENT + 90_000, None, run=runs(1.3), max_runs=2))
    found = search.search()
    assert found is not None
    assert found.size < 173
    failed = [trial for trial in search.trials if trial.outcome == "above the budget"]
    assert search.describe_beyond(found) == f"{failed[0].size}: above the budget; those between were not tried"
    search = SizeSearch(problem(RESIDENT + 90_000, None, run=runs(1.0), max_runs=1))
    found = search.search()
    assert found is not None
    assert search.describe_beyond(found) == "no larger one was tried"
    search = SizeSearch(problem(RESIDENT + 90_000, None, run=runs(0.1), maximum=100))
    found = search.search()
    assert found is not None
    assert search.describe_beyond(found) == "the largest allowed"


def test_what_is_above_the_overhead_is_not_run() -> None:
    """Recomputation that costs more than allowed from 201 rows on."""

    def dear(size: int) -> Graph:
        return replace(training_chain(3, size=100 * size, cost=10 if size <= 200 else 1000), resident_bytes=RESIDENT)

    asked = problem(RESIDENT + 90_000, None, graph_at=dear, run=runs(1.0))
    limited = replace(asked, allowed_overhead=lambda graph: None if graph.nodes[0].cost == 10 else 0.0)
    search = SizeSearch(limited)
    found = search.search()
    assert found is not None
    assert found.size == 200
    assert search.describe_beyond(found) == "201, the next: above the overhead"
    assert all(trial.size <= 200 for trial in search.trials if trial.kind == "run")


def test_nothing_fits() -> None:
    search = SizeSearch(problem(RESIDENT + 399, None))
    assert search.search() is None
    assert SizeSearch(problem(RESIDENT + 450, 0.0)).search() is None
    never = SizeSearch(problem(RESIDENT + 90_000, None, run=lambda size, schedule: ProcessRun(failure="killed")))
    assert never.search() is None
    assert never.count_trials("run") <= 10


def test_an_interrupted_search_keeps_what_it_found() -> None:
    calls = []

    def interrupted(graph: Graph, budget_bytes: int, start: Schedule | None) -> Solution:
        calls.append(budget_bytes)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return exhaustive(graph, budget_bytes, start)

    search = SizeSearch(problem(1_000_000, 0.05, solve=interrupted))
    with pytest.raises(KeyboardInterrupt):
        search.search()
    assert len(search.trials) == 2
    assert search.best is not None
    assert search.best.size >= 1998  # 5 values a row


def test_trials_say_what_is_proved() -> None:
    search = SizeSearch(problem(RESIDENT + 90_000, 0.05))
    search.search()
    missed = [trial for trial in search.trials if not trial.fits]
    assert missed
    assert all(trial.outcome == "above the overhead (proved)" for trial in missed)
    assert all(trial.least_overhead > 0.05 for trial in missed)


def test_the_model_gives_the_graph_of_any_size() -> None:
    model = fit_size_model({size: graph_at(size) for size in (2, 4, 8)}, degree=1)
    assert model.evaluate(100) == graph_at(100)
    assert model.cost_error == pytest.approx(0, abs=1e-9)
    squares = fit_size_model({size: graph_at(size, power=2) for size in (2, 4, 6, 8)}, degree=2)
    assert squares.evaluate(20).values == graph_at(20, power=2).values


def test_bytes_that_follow_no_line_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not a polynomial of degree 1"):
        fit_size_model({size: graph_at(size, power=2) for size in (2, 4, 8)}, degree=1)
    with pytest.raises(ValueError, match="too few"):
        fit_size_model({2: graph_at(2), 4: graph_at(4)}, degree=1)
