"""Presolve: what it says of a graph agrees with exhaustive search."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.presolve import Part, ReducedGraph, cut_into_parts, leave_out_small_values, list_finer_limits
from checkmate_tf.solvers.relaxation.solver import BlockRelaxation
from tests.graphs import graph_of, graphs, training_chain


def joined(first: Graph, second: Graph) -> Graph:
    """`second` behind `first`: its first node reads the one output that `first` is made to have."""
    shift = len(first.values)
    nodes = tuple(
        replace(
            node,
            inputs=tuple(value + shift for value in node.inputs) + ((shift - 1,) if index == 0 else ()),
            outputs=tuple(value + shift for value in node.outputs),
        )
        for index, node in enumerate(second.nodes)
    )
    outputs = tuple(value + shift for value in second.outputs)
    return Graph(first.nodes + nodes, first.values + second.values, outputs, first.resident_bytes)


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[Graph, int]:
    graph = joined(draw(graphs(max_nodes=4)), draw(graphs(max_nodes=4)))
    peak = simulate_stock(graph).peak_bytes
    least = max(1, find_peak_bound(graph).peak_bytes)
    return graph, draw(st.integers(least, max(least, peak - 1)))


@settings(deadline=None, max_examples=100)
@given(cut_graphs())
def test_parts_give_the_optimum_or_the_known_schedule_is_optimal(case):
    graph, budget = case
    whole = solve(graph, budget, solver=Exhaustive(stages=True))
    if whole.simulation is None:
        return
    extra = whole.simulation.cost - graph.baseline_cost
    for known in (extra, 2 * extra + 1, 0):
        cut = cut_into_parts(graph, known)
        assert sum(part.graph.baseline_cost for part in cut) == graph.baseline_cost
        solutions = [solve(part.graph, budget, solver=Exhaustive(stages=True)) for part in cut]
        found = [s.simulation for s in solutions]
        if None in found:
            assert known <= extra
        else:
            together = sum(s.cost for s in found) - graph.baseline_cost
            assert together >= extra
            assert together == extra or known <= extra


@settings(deadline=None, max_examples=60)
@given(cut_graphs())
def test_block_relaxation_of_graphs_with_cuts_agrees_with_exhaustive_search(case):
    graph, budget = case
    solution = solve(graph, budget, solver=BlockRelaxation(anneal_moves_per_node=20))
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    assert solution.status is oracle.status
    if oracle.simulation is not None and solution.simulation is not None:
        assert solution.simulation.cost == oracle.simulation.cost


def test_equal_parts_are_alike():
    # Three training chains one after the other; each is cut behind its first node, and between two chains.
    graph = joined(joined(training_chain(4), training_chain(4)), training_chain(4))
    cut = cut_into_parts(graph, 1)
    assert sum(len(part.graph.nodes) - (part.value_in is not None) for part in cut) == len(graph.nodes)
    assert len(cut) >= 3
    assert len({part.likeness for part in cut}) < len(cut)
    assert cut_into_parts(graph, 2) == (Part(replace(graph, name="graph"), 0, None),)


def test_small_values_are_left_out_and_nodes_keep_their_numbers():
    graph = graph_of({"a": "", "b": "a", "c": "ab"}, sizes={"a": 1, "b": 0, "c": 5})
    reduced = leave_out_small_values(graph, 1)
    assert reduced.small_bytes == 1
    assert [value.name for value in reduced.graph.values] == ["c"]
    assert [node.inputs for node in reduced.graph.nodes] == [(), (), ()]
    assert leave_out_small_values(graph, 0).graph.nodes[2].inputs == (0,)


@settings(deadline=None, max_examples=60)
@given(cut_graphs(), st.integers(0, 4))
def test_without_small_values_the_optimum_bounds_on_both_sides(case, at_most):
    graph, budget = case
    whole = solve(graph, budget, solver=Exhaustive(stages=True)).simulation
    reduced = leave_out_small_values(graph, at_most)
    below = solve(reduced.graph, budget, solver=Exhaustive(stages=True)).simulation
    above = solve(reduced.graph, max(1, budget - reduced.small_bytes), solver=Exhaustive(stages=True))
    if whole is not None:
        assert below is not None
        assert below.cost <= whole.cost
    if above.simulation is not None and budget > reduced.small_bytes:
        assert above.schedule is not None
        assert simulate(graph, above.schedule).peak_bytes <= budget
        assert whole is not None
        assert whole.cost <= above.simulation.cost
    if reduced.small_bytes == 0:
        assert (below and below.cost) == (whole and whole.cost)


def _list_finer_graphs(graph: Graph, budget_bytes: int) -> list[ReducedGraph]:
    return [leave_out_small_values(graph, limit) for limit in list_finer_limits(graph, budget_bytes)]


def test_ever_finer_begins_without_small_values_where_they_are_many():
    graph, budget = training_chain(12), 10_000
    values = tuple(replace(value, size_bytes=1 if index % 2 else 100) for index, value in enumerate(graph.values))
    uneven = replace(graph, values=values)
    assert [reduced.graph for reduced in _list_finer_graphs(uneven, 100)] == [uneven, uneven]
    coarse, fine, whole = _list_finer_graphs(uneven, budget)
    assert coarse.small_bytes == sum(value.size_bytes == 1 for value in values) <= 0.002 * budget
    assert len(coarse.graph.values) == sum(value.size_bytes > 1 for value in values)
    assert fine.graph == whole.graph == uneven
    assert fine.small_bytes == whole.small_bytes == 0
