"""Solvers side by side: what they share, and what one that fails costs."""

import os
import threading
import time
from dataclasses import replace

import pytest

from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers import Problem, Status, solve
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.portfolio import auto
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.race import Contestant, Race, run_side_by_side
from checkmate_tf.solvers.portfolio.worker import Workers
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.solvers.relaxation import solver as block_relaxation
from checkmate_tf.solvers.relaxation.solver import BlockRelaxation
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import staged_events
from checkmate_tf.solvers.xla_greedy import XlaGreedy
from tests.graphs import graph_of, training_chain
from tests.solvers.test_worker import Misbehaving

_MEMORY_BYTES = 4 * 2**30


def _race(problem, solvers, *, limit_s=600.0, successor=None):
    best = Incumbent(Search(problem, limit_s))
    with Race(time.perf_counter() + limit_s, _MEMORY_BYTES) as race:
        race.start([Contestant(solver, problem, 0) for solver in solvers])
        run_side_by_side(race, best, tolerance=0.0, successor=successor)
    return best


@pytest.fixture
def started(monkeypatch):
    """Gives the solvers of all workers started, which find this folder's modules."""
    solvers, start = [], Workers.start
    monkeypatch.setattr(Workers, "start", lambda self, task: solvers.append(task.solver) or start(self, task))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", ""))))
    return solvers


def test_what_was_killed_is_started_once_more_and_what_failed_is_told(started, tmp_path):
    killed, failing = Misbehaving("killed once", str(tmp_path / "killed")), Misbehaving("raise")
    with pytest.warns(RuntimeWarning, match=r"failed: Misbehaving ValueError: no such thing\. The result") as caught:
        best = _race(Problem(training_chain(4), 6), [killed, failing])
    assert len(caught) == 1
    assert started == [killed, failing, killed]
    assert best.schedule is not None


def test_what_dies_twice_is_not_started_again(started):
    with pytest.warns(RuntimeWarning, match=r"failed: Misbehaving was killed by SIGABRT\. The result"):
        best = _race(Problem(training_chain(4), 6), [Misbehaving("crash")])
    assert len(started) == 2
    assert best.result().stats == {"failed_Misbehaving": "was killed by SIGABRT"}


def test_where_no_process_can_be_started_this_one_searches(monkeypatch):
    def refuse(self, task):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(Workers, "start", refuse)
    with pytest.warns(RuntimeWarning, match=r"no more could be started \(Resource temporarily unavailable\)"):
        solution = solve(training_chain(20), "60%", solver=Auto(workers=2, here_nodes=0), time_limit_s=600)
    assert solution.status is Status.OPTIMAL


def test_time_is_up_for_one_that_never_ends(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", ""))))
    started = time.perf_counter()
    best = _race(Problem(training_chain(12), 15), [Misbehaving("sleep")], limit_s=1.0)
    assert best.schedule is None
    assert time.perf_counter() - started < 30


def test_a_successor_goes_on_from_the_best_of_what_has_ended():
    problem = Problem(training_chain(30), 20)
    begun_with = []

    def successor(best):
        begun_with.append(best.cost)
        return Contestant(BlockRelaxation(), problem, 0)

    annealing = StageAnnealing(moves_per_node=200)
    best = _race(problem, [annealing], successor=successor)
    assert len(begun_with) == 1
    assert begun_with[0] >= best.cost == best.bound > problem.graph.baseline_cost


def test_a_schedule_of_a_solver_that_does_not_share_is_taken_over():
    best = _race(Problem(training_chain(30), 20), [XlaGreedy()])
    assert best.won == "xla_greedy"
    assert best.events is not None
    assert best.cost == training_chain(30).baseline_cost + len(best.events) > 61


def test_a_schedule_outside_of_stage_space_is_kept_but_not_shared():
    # Recomputing b before a keeps to 5: b 1 + 3, a 3 + 1, d 3 + 1 + 1. In the input order b needs 3 more, for a.
    graph = graph_of({"a": "", "b": "", "c": "", "d": "abc"}, sizes={"a": 3, "b": 1, "c": 0, "d": 1})
    workspaces = (0, 3, 5, 0)
    nodes = tuple(replace(n, workspace_bytes=w) for n, w in zip(graph.nodes, workspaces, strict=True))
    schedule = Schedule((0, 1, 2, 1, 0, 3))
    best = Incumbent(Search(Problem(replace(graph, nodes=nodes), 5), 1.0))
    best.learn_schedule(schedule, "twremat")
    assert (best.schedule, best.cost, best.won) == (schedule, 6, "twremat")
    assert best.events is None


def test_repeats_within_a_stage_are_taken_out():
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "abc"})
    best = Incumbent(Search(Problem(graph, 4), 1.0))
    best.learn_schedule(Schedule((0, 1, 2, 0, 1, 0, 3)), "xla_greedy")
    assert best.events is not None
    assert best.events.tolist() == [[3, 0], [3, 1]]
    assert (best.cost, best.events_cost) == (6, 6)


def test_a_worse_schedule_is_left():
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"})
    best = Incumbent(Search(Problem(graph, 4), 1.0))
    assert best.learn_schedule(Schedule((0, 1, 2, 0, 3)), "first")
    assert not best.learn_schedule(Schedule((0, 1, 0, 2, 0, 3)), "second")
    assert (best.cost, best.won) == (5, "first")


def test_recomputations_of_another_order_are_none():
    assert staged_events(Schedule((1, 0, 2, 0))) == ()
    assert staged_events(Schedule((0, 1, 0, 2, 0, 1))) == ((2, 0), (2, 1))


def test_before_the_moves_are_compiled_the_search_here_does_without(monkeypatch):
    monkeypatch.setattr(Kernel, "is_compiled", lambda _: False)
    monkeypatch.setattr(block_relaxation, "Annealer", _must_not_run)
    solution = solve(training_chain(20), "60%", solver=Auto(workers=1, here_s=60), time_limit_s=120)
    assert solution.status is Status.OPTIMAL
    assert solution.stats["won"] == "block_relaxation"


@pytest.mark.parametrize("is_compiled", [False, True])
def test_before_anything_is_compiled_the_first_last_resort_does_without(monkeypatch, is_compiled):
    resorts = []
    monkeypatch.setattr(Kernel, "is_compiled", lambda _: is_compiled)
    monkeypatch.setattr(auto, "run_side_by_side", lambda *_, last_resorts, **__: resorts.extend(last_resorts))
    solve(training_chain(20), "60%", solver=Auto(workers=2, here_nodes=0), time_limit_s=10)
    names = [solver_name(contestant.solver) for contestant in resorts]
    assert names == ([] if is_compiled else ["ap_greedy"]) + ["twremat", "xla_greedy", "fastsa"]


def _must_not_run(*_, **__):
    raise AssertionError("annealing would have been compiled")


@pytest.mark.filterwarnings("ignore:worker processes of the solver failed")
@pytest.mark.parametrize("solver", ["auto", "fastsa", Auto(here_nodes=0, workers=2), BlockRelaxation(num_threads=3)])
def test_where_no_thread_can_be_started_solvers_do_without(monkeypatch, solver):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert solve(training_chain(20), "60%", solver=solver, time_limit_s=5).schedule is not None
