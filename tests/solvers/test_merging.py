"""Exact merging: against every subset of the recomputations given, and against exhaustive search."""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.annealing import merging
from checkmate_tf.solvers.annealing.merging import merge_schedules
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.stages import Event, events_of, rows_of, schedule_of_events
from tests.graphs import graph_of, graphs, training_chain


def possible_events(graph: Graph) -> list[Event]:
    nodes = graph.nodes
    return [(stage, node) for stage in range(len(nodes)) for node in range(stage) if nodes[node].recomputable]


def cost_of(graph: Graph, budget: int, events: np.ndarray) -> int | None:
    """None above the budget."""
    simulation = simulate(graph, schedule_of_events(len(graph.nodes), events))
    return simulation.cost if simulation.peak_bytes <= budget else None


def search(graph: Graph, budget: int, pool, start) -> tuple[np.ndarray, bool]:
    return merge_schedules(graph, budget, pool, start, time_limit_s=60, work_limit=60)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, int, list[Event]]:
    graph = draw(graphs(max_nodes=8))
    peak = simulate_stock(graph).peak_bytes
    least = find_peak_bound(graph).peak_bytes
    budget = least + (peak - least) * draw(st.integers(0, 99)) // 100
    possible = possible_events(graph)
    pool = draw(st.lists(st.sampled_from(possible), max_size=6, unique=True)) if possible else []
    return graph, budget, pool


@settings(deadline=None, max_examples=100)
@given(cases(), st.randoms(use_true_random=False))
def test_finds_the_best_of_all_subsets(case, random):
    graph, budget, pool = case
    subsets = chain.from_iterable(combinations(pool, size) for size in range(len(pool) + 1))
    within = {subset: cost_of(graph, budget, rows_of(subset)) for subset in subsets}
    within = {subset: cost for subset, cost in within.items() if cost is not None}
    assume(within)
    start = random.choice(list(within))
    events, proved = search(graph, budget, pool, start)
    assert proved
    assert {(stage, node) for stage, node in events.tolist()} <= set(pool)
    assert cost_of(graph, budget, events) == min(within.values())


@settings(deadline=None, max_examples=40)
@given(graphs(max_nodes=7), st.integers(0, 60), st.integers(0, 39))
def test_with_all_recomputations_it_is_exhaustive_search(graph, percent, more):
    # It starts from the best schedule within less memory.
    peak = simulate_stock(graph).peak_bytes
    least = find_peak_bound(graph).peak_bytes
    tight, budget = (least + (peak - least) * share // 100 for share in (percent, percent + more))
    assume(tight > 0)
    tightest, oracle = (solve(graph, limit, solver=Exhaustive(stages=True)) for limit in (tight, budget))
    assume(tightest.schedule is not None)
    events, proved = search(graph, budget, possible_events(graph), events_of(tightest.schedule))
    assert proved
    assert cost_of(graph, budget, events) == oracle.simulation.cost


def test_two_schedules_hold_a_better_one_than_either():
    # a or b, and c or d, are to be dropped over the peak: each schedule drops one dear value and one cheap one.
    graph = graph_of(
        {"a": "", "b": "", "p": "", "q": "pab", "c": "q", "d": "q", "r": "q", "s": "rcd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 4, "p": 4, "r": 4},
        costs={"a": 1, "b": 9, "c": 1, "d": 9},
    )
    budget = simulate_stock(graph).peak_bytes
    start, other = [(3, 1), (7, 4)], [(3, 0), (7, 5)]
    events, proved = search(graph, budget, [*start, *other], start)
    assert (events.tolist(), proved) == ([], True)
    tight = find_peak_bound(graph).peak_bytes
    assert cost_of(graph, tight, rows_of(start)) is not None
    events, proved = search(graph, tight, [*start, *other], start)
    assert proved
    assert cost_of(graph, tight, events) < min(cost_of(graph, tight, rows_of(one)) for one in (start, other))


def long_chain() -> tuple[Graph, int, list[Event]]:
    graph = training_chain(30)
    budget = simulate_stock(graph).peak_bytes // 2
    schedule = solve(graph, budget, solver=StageAnnealing(moves_per_node=1000), seed=1).schedule
    assert schedule is not None
    return graph, budget, list(events_of(schedule))


@pytest.mark.parametrize("limits", [{"work_limit": 1e-9, "time_limit_s": 60}, {"work_limit": 60, "time_limit_s": 0}])
def test_a_search_cut_short_is_no_worse_than_its_start(limits):
    graph, budget, start = long_chain()
    events, proved = merge_schedules(graph, budget, possible_events(graph), start, **limits)
    assert not proved
    cost = cost_of(graph, budget, events)
    assert cost is not None
    assert cost <= cost_of(graph, budget, rows_of(start))


def test_too_many_terms_are_not_tried(monkeypatch):
    graph, budget, start = long_chain()
    monkeypatch.setattr(merging, "SETTINGS", replace(merging.SETTINGS, max_memory_terms=10))
    events, proved = search(graph, budget, possible_events(graph), start)
    assert not proved
    assert events.tolist() == sorted(map(list, start))
