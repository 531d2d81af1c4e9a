"""The portfolio: order modes, bounds, workers, deterministic mode."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.portfolio import auto
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.race import Race
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.solvers.relaxation.model import Blocks
from checkmate_tf.solvers.relaxation.solver import RelaxationResult
from tests.graphs import graph_of, graphs, published, training_chain


@settings(deadline=None, max_examples=60)
@given(graphs(max_nodes=8), st.integers(0, 99), st.sampled_from(["fixed", "free"]))
def test_proofs_hold_in_their_order_mode(graph, percent, order):
    peak = simulate_stock(graph).peak_bytes
    least = max(1, find_peak_bound(graph).peak_bytes)
    assume(least < peak)
    budget = least + (peak - 1 - least) * percent // 100
    solution = solve(graph, budget, solver="auto", order=order)
    oracle = solve(graph, budget, solver=Exhaustive(), order=order)
    assert solution.status is oracle.status
    if oracle.simulation is not None and solution.simulation is not None:
        assert solution.simulation.cost == oracle.simulation.cost


@pytest.mark.parametrize(("settings", "won"), [({}, "exhaustive"), ({"beyond_nodes": 0}, "fastsa")])
def test_searches_beyond_stages_where_none_of_them_fits(monkeypatch, settings, won):
    # a has to be there at the end and does not fit beside the others: it is computed again after the last of them, and
    # so in no stage. Every solver whose proofs are about stages says only that.
    graph = graph_of({name: "" for name in "abcdefghijk"}, sizes=dict.fromkeys("abcdefghijk", 5), outputs="a")
    monkeypatch.setattr(auto, "SETTINGS", replace(auto.SETTINGS, **settings))
    found = solve(graph, 5, solver=Auto(workers=0))
    assert found.stats["won"] == won
    assert found.simulation.cost == 12
    for name in ("block_relaxation", "checkmate_milp", "checkmate_lp"):
        staged = solve(graph, 5, solver=name)
        assert (staged.status, staged.stats["infeasible_in"]) == (Status.NOT_FOUND, "stages")


def test_reordering_alone_fits_in_free_order():
    # b and c both large: in the input order they meet; freeing b by d first costs nothing.
    graph = graph_of({"a": "", "b": "a", "c": "a", "d": "b", "e": "c", "f": "de"}, sizes={"b": 5, "c": 5})
    fixed = solve(graph, 8, solver="auto", order="fixed")
    free = solve(graph, 8, solver="auto", order="free")
    assert (free.status, free.simulation.overhead) == (Status.OPTIMAL, 0)
    assert fixed.status is Status.INFEASIBLE or fixed.simulation.overhead > 0


def test_a_bound_in_free_order_is_never_the_fixed_one():
    graph = training_chain(24)
    fixed = solve(graph, "50%", solver=Auto(workers=0), order="fixed", time_limit_s=5)
    free = solve(graph, "50%", solver=Auto(workers=0), order="free", time_limit_s=5)
    assert (fixed.bound_order, free.bound_order) == ("fixed", "free")
    assert fixed.cost_lower_bound > free.cost_lower_bound
    # No order fits without rematerialization, so at least one node is computed twice.
    assert free.cost_lower_bound == graph.baseline_cost + 1


def test_without_a_proof_about_orders_the_bound_in_free_order_is_the_baseline(monkeypatch):
    search_order = auto.search_order
    monkeypatch.setattr(auto, "search_order", lambda *a, **k: replace(search_order(*a, **k), peak_lower_bound_bytes=0))
    graph = training_chain(12)
    free = solve(graph, "60%", solver=Auto(workers=0), order="free", time_limit_s=2)
    assert free.simulation.overhead > 0
    assert free.cost_lower_bound == graph.baseline_cost


def test_workers_take_over_where_the_search_here_ends():
    # All that is looked for here is a first schedule; the worker proves it, which ends the search.
    graph = training_chain(20)
    solution = solve(graph, "60%", solver=Auto(workers=1, here_nodes=0), time_limit_s=120)
    assert solution.status is Status.OPTIMAL


def test_deterministic_mode_gives_one_result():
    graph = training_chain(16)
    first, again = (solve(graph, "60%", solver=Auto(deterministic=True), seed=7) for _ in range(2))
    assert first.schedule == again.schedule
    assert first.status is Status.OPTIMAL
    assert first.stats["won"] == again.stats["won"]


def test_says_what_won():
    graph = training_chain(8)
    assert solve(graph, "100%", solver="auto").stats["won"] == "retain_all"
    assert solve(graph, "70%", solver="auto").stats["won"] in ("block_relaxation", "stage_annealing")


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_progress_only_improves(order):
    seen = []
    solve(training_chain(30), "50%", solver=Auto(workers=0), order=order, time_limit_s=2, on_progress=seen.append)
    assert seen
    assert all(b.cost <= a.cost and b.cost_lower_bound >= a.cost_lower_bound for a, b in pairwise(seen))


@pytest.mark.parametrize("percent", [90, 80])
def test_published_random_graph_needs_no_recomputation_in_free_order(percent):
    solution = solve(published("rl-g1-n100"), f"{percent}%", solver="auto", order="free")
    assert (solution.status, solution.simulation.overhead) == (Status.OPTIMAL, 0)


@pytest.mark.parametrize(("num_cores", "methods"), [(1, ["fastsa"]), (2, ["fastsa", "stage_annealing"])])
def test_on_one_core_fastsa_has_it_in_free_order(monkeypatch, num_cores, methods):
    # Order lowers its peak to 79 % of the input order's.
    graph = published("rl-g1-n100")
    raced = []
    monkeypatch.setattr(auto, "_num_cores", lambda: num_cores)
    monkeypatch.setattr(auto, "run_side_by_side", lambda race, *_, **__: raced.extend(race.running))
    solve(graph, "70%", solver="auto", order="free", time_limit_s=10)
    assert [solver_name(contestant.solver) for contestant in raced] == methods


def test_a_schedule_in_free_order_does_not_wait_for_workers(monkeypatch):
    # b and c meet in the input order, which makes 33; another order has 28. Less takes recomputation in either.
    monkeypatch.setattr(Race, "start", lambda *_: None)
    monkeypatch.setattr(auto, "run_side_by_side", lambda *_, **__: None)
    pairs = graph_of({"b": "", "c": "", "d": "b", "e": "c", "f": "de"}, sizes={"b": 16, "c": 16})
    graph = chained(pairs, training_chain(12, size=2))
    fixed, free = (solve(graph, 22, solver="auto", order=order, time_limit_s=10) for order in ("fixed", "free"))
    assert 0 < free.simulation.overhead < fixed.simulation.overhead


def test_free_order_has_a_schedule_before_it_looks_for_an_order(monkeypatch):
    told = []

    def find_worse(_, search):
        search.report(told[-1].cost + 1, 0)  # which is not passed on
        return Result(None)

    monkeypatch.setattr(Auto, "_search_orders", find_worse)
    found = solve(training_chain(24), "60%", solver=Auto(workers=0), order="free", on_progress=told.append)
    assert (found.stats["won"], found.simulation.cost) == ("stage_annealing", told[-1].cost)


def test_the_first_schedule_in_free_order_is_of_the_input_order(monkeypatch):
    monkeypatch.setattr(Auto, "_search_orders", None)
    found = solve(training_chain(24), "60%", solver=Auto(first_schedule=True), order="free")
    assert (found.status, found.stats["won"]) == (Status.FEASIBLE, "stage_annealing")


def test_the_first_schedule_in_fixed_order_is_annealed_for_longer_and_longer(monkeypatch):
    """The least budget is bisected: for none that is tried may workers have to start first."""
    monkeypatch.setattr(Auto, "_search_here", None)
    found = solve(training_chain(24), "30%", solver=Auto(first_schedule=True))
    assert (found.status, found.stats["won"]) == (Status.FEASIBLE, "stage_annealing")


def test_a_large_graph_has_a_schedule_without_its_workers(monkeypatch):
    monkeypatch.setattr(Race, "start", lambda *_: None)
    monkeypatch.setattr(auto, "run_side_by_side", lambda *_, **__: None)
    found = solve(training_chain(24), "60%", solver=Auto(here_nodes=0))
    assert (found.stats["won"], found.simulation.overhead > 0) == ("stage_annealing", True)


def chained(first: Graph, second: Graph) -> Graph:
    """Both graphs as one: what reads nothing in the second reads the last value of the first."""
    shift = len(first.values)
    nodes = [
        replace(
            node,
            inputs=tuple(value + shift for value in node.inputs) or (shift - 1,),
            outputs=tuple(value + shift for value in node.outputs),
        )
        for node in second.nodes
    ]
    outputs = tuple(value + shift for value in second.outputs)
    return Graph((*first.nodes, *nodes), first.values + second.values, outputs)


@pytest.mark.parametrize(("first_schedule", "methods"), [(False, ["fastsa"]), (True, [])])
def test_an_optimum_in_fixed_order_does_not_end_the_search_in_free_order(monkeypatch, first_schedule, methods):
    raced = []
    monkeypatch.setattr(auto, "run_side_by_side", lambda race, *_, **__: raced.extend(race.running))
    solver = Auto(first_schedule=first_schedule, here_s=60)
    solution = solve(training_chain(20), "60%", solver=solver, order="free", time_limit_s=120)
    assert solution.schedule is not None
    assert [solver_name(contestant.solver) for contestant in raced] == methods


def test_annealing_begins_beside_the_search_here(monkeypatch):
    graph = training_chain(12)
    raced = []

    def slow_search(*_, **__):
        time.sleep(0.5)
        return RelaxationResult(None, graph.baseline_cost, blocks=Blocks((0, 7)))

    def note(race, *_, **__):
        raced.extend(race.running)

    monkeypatch.setattr(auto, "_num_cores", lambda: 2)
    monkeypatch.setattr(auto, "SETTINGS", replace(auto.SETTINGS, alone_s=0.0))
    monkeypatch.setattr(auto.BlockRelaxation, "search", slow_search)
    monkeypatch.setattr(Race, "start", lambda race, contestants: race.running.extend(contestants))
    monkeypatch.setattr(auto, "run_side_by_side", note)
    solve(graph, "80%", solver="auto", time_limit_s=30, seed=5)
    assert [contestant.seed for contestant in raced] == [5, 6]  # each once: annealing and then the relaxation
    assert raced[1].solver.blocks == Blocks((0, 7))


@pytest.mark.parametrize(("num_cores", "count"), [(1, 0), (2, 2)])
def test_processes_start_beside_the_order_search(monkeypatch, num_cores, count):
    graph = published("rl-g1-n100")
    prepared, prepared_by_then = [], []
    search_order = auto.search_order

    def slow_search(*arguments, **options):
        time.sleep(0.5)
        prepared_by_then.extend(prepared)
        return search_order(*arguments, **options)

    monkeypatch.setattr(auto, "_num_cores", lambda: num_cores)
    monkeypatch.setattr(auto, "SETTINGS", replace(auto.SETTINGS, alone_s=0.0))
    monkeypatch.setattr(auto, "search_order", slow_search)
    monkeypatch.setattr(Race, "prepare", lambda race, count: prepared.append(count))
    monkeypatch.setattr(auto, "run_side_by_side", lambda *_, **__: None)
    solve(graph, "70%", solver=Auto(workers=2), order="free", time_limit_s=10)
    assert prepared_by_then == [count]
