"""The oracle itself: against hand-made figures and against every sequence of a bounded length."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule, to_stages
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from tests.graphs import graph_of, graphs, training_chain

REPEATS = 2


def cheapest_sequence(graph: Graph, budget: int, order: str) -> int | None:
    """The least cost over all valid sequences with at most REPEATS repeats, None when none fits."""
    costs = []
    for length in range(len(graph.nodes), len(graph.nodes) + REPEATS + 1):
        for sequence in product(range(len(graph.nodes)), repeat=length):
            schedule = Schedule(sequence)
            try:
                check_schedule(graph, schedule, order=order)
            except ScheduleError:
                continue
            simulation = simulate(graph, schedule)
            if simulation.peak_bytes <= budget:
                costs.append(simulation.cost)
    return min(costs, default=None)


@settings(deadline=None, max_examples=15)
@given(graphs(max_nodes=3), st.sampled_from(["fixed", "free"]), st.data())
def test_equals_enumeration_of_sequences(graph, order, data):
    peak = simulate(graph, Schedule(tuple(range(len(graph.nodes))))).peak_bytes
    budget = data.draw(st.integers(max(1, peak // 2), peak + 1))
    least = cheapest_sequence(graph, budget, order)
    solution = solve(graph, budget, solver="exhaustive", order=order)
    if solution.status is Status.INFEASIBLE:
        assert least is None
    else:
        # A longer sequence can only be needed, or cheaper, than the enumerated ones.
        assert solution.status is Status.OPTIMAL
        assert least is None or solution.simulation.cost <= least
        if len(solution.schedule) <= len(graph.nodes) + REPEATS:
            assert solution.simulation.cost == least


def test_chain_of_two_layers_by_hand():
    # f0 f1 loss b1 b0: b1 holds f0 f1 loss b1 = 4. With 3, b1 (f0, f1, loss, b1) itself cannot run.
    graph = training_chain(2)
    assert solve(graph, 4, solver="exhaustive").simulation.overhead == 0
    assert solve(graph, 3, solver="exhaustive").status is Status.INFEASIBLE


def test_chain_of_four_layers_within_four_units_by_hand():
    # b_i holds f_{i-1}, f_i, the gradient and b_i: nothing else. After b3, f2 is still there and f0, f1 are computed
    # again for b2; f1 is still there for b1, which needs f0 again; b0 has it. 9 + 2 + 1.
    solution = solve(training_chain(4), 4, solver="exhaustive")
    assert solution.status is Status.OPTIMAL
    assert solution.simulation.cost == 12


def test_a_node_may_run_twice_between_first_computations_outside_the_stage_space():
    # z leaves no room, so y needs c (a, b, c) and e (a, e) again. While b and c are there a must not be (11 > 10): a
    # runs twice for y, and once more for the first e: 6 + 1 + 5. In a stage it may run only once.
    graph = graph_of(
        {"a": "", "b": "a", "c": "b", "e": "a", "z": "", "y": "ce"}, sizes={"a": 4, "b": 6, "c": 1, "e": 1, "z": 10}
    )
    assert solve(graph, 10, solver="exhaustive").simulation.cost == 12
    staged = solve(graph, 10, solver=Exhaustive(stages=True))
    assert (staged.status, staged.stats["infeasible_in"]) == (Status.NOT_FOUND, "stages")


@settings(deadline=None, max_examples=40)
@given(graphs(max_nodes=6), st.data())
def test_stage_space_lies_within_fixed_order_within_free_order(graph, data):
    peak = simulate(graph, Schedule(tuple(range(len(graph.nodes))))).peak_bytes
    budget = data.draw(st.integers(max(1, peak // 2), max(1, peak)))
    staged = solve(graph, budget, solver=Exhaustive(stages=True))
    fixed = solve(graph, budget, solver="exhaustive")
    free = solve(graph, budget, solver="exhaustive", order="free")
    if staged.schedule is not None:
        to_stages(graph, staged.schedule)
        assert fixed.simulation.cost <= staged.simulation.cost
    if fixed.schedule is not None:
        assert free.simulation.cost <= fixed.simulation.cost


def test_limit_on_states_gives_a_bound_and_no_schedule():
    solution = solve(training_chain(12), 4, solver=Exhaustive(max_states=500))
    assert solution.status is Status.NOT_FOUND
    assert training_chain(12).baseline_cost <= solution.cost_lower_bound


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_in_place_output_takes_over_a_dying_input(order):
    graph = graph_of({"a": "", "b": "a"}, sizes={"a": 5, "b": 5})
    taken = Graph((graph.nodes[0], type(graph.nodes[1])("b", "op", (0,), (1,), 1, inplace=True)), graph.values, (1,))
    assert solve(graph, 5, solver="exhaustive", order=order).status is Status.INFEASIBLE
    assert solve(taken, 5, solver="exhaustive", order=order).status is Status.OPTIMAL
