"""Schedules that keep or recompute what the user says: against schedules that are enumerated, solver by solver."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.constraints import Constraints, constrain, list_broken
from checkmate_tf.errors import GraphError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import SOLVER_NAMES, Status, solve

# Forward f0..f2, with a skip over f1; backward b2..b0 read activations.
NODES = {
    "f0": ("", 1, 3),
    "f1": ("f0", 2, 2),
    "f2": ("f0 f1", 1, 1),
    "b2": ("f2 f1", 2, 2),
    "b1": ("b2 f1 f0", 3, 1),
    "b0": ("b1 b2", 1, 1),
}
MOST_REPEATS = 3


@cache
def make_graph() -> Graph:
    names = list(NODES)
    nodes = tuple(
        Node(
            name,
            name,
            tuple(names.index(source) for source in sources.split()),
            (number,),
            cost,
            is_backward=name[0] == "b",
        )
        for number, (name, (sources, cost, _)) in enumerate(NODES.items())
    )
    return Graph(nodes, tuple(Value(name, size) for name, (_, _, size) in NODES.items()), outputs=(5,))


def list_schedules(graph: Graph) -> Iterator[Schedule]:
    """All schedules in fixed order with a few repeats, whatever they retain."""

    def extend(order: list[int], done: int) -> Iterator[tuple[int, ...]]:
        if done == len(graph.nodes):
            yield tuple(order)
        elif len(order) - done < MOST_REPEATS:
            for again in range(done):
                if not order or order[-1] != again:
                    yield from extend([*order, again], done)
        if done < len(graph.nodes):
            yield from extend([*order, done], done + 1)

    return map(Schedule, extend([], 0))


@cache
def list_fitting(constraints: Constraints) -> list[Schedule]:
    """The enumerated schedules that meet constraints."""
    graph = make_graph()
    return [schedule for schedule in list_schedules(graph) if not list_broken(graph, schedule, constraints)]


@cache
def find_cheapest(constraints: Constraints, budget_bytes: int) -> int | None:
    """The least cost of an enumerated schedule that meets constraints within a budget."""
    graph = make_graph()
    simulations = (simulate(graph, schedule) for schedule in list_fitting(constraints))
    return min((one.cost for one in simulations if one.peak_bytes <= budget_bytes), default=None)


CASES = [
    Constraints(keep=frozenset({1})),
    Constraints(recompute=frozenset({1})),
    Constraints(recompute=frozenset({0, 1})),
    Constraints(keep=frozenset({0}), recompute=frozenset({1})),
    Constraints(recompute=frozenset({0, 1, 2})),
]


@pytest.mark.parametrize("solver", sorted(set(SOLVER_NAMES) - {"exhaustive"}))
@pytest.mark.parametrize("constraints", CASES, ids=str)
def test_no_solver_breaks_constraints_or_is_cheaper_than_the_best_that_keeps_them(
    solver: str, constraints: Constraints
) -> None:
    graph = make_graph()
    constrained = constrain(graph, constraints)
    for budget_bytes in (6, 7, 8, 9, 12):
        solution = solve(constrained.graph, budget_bytes, solver=solver, order="fixed", time_limit_s=3)
        best = find_cheapest(constraints, budget_bytes)
        if solution.status is Status.INFEASIBLE:
            assert best is None
        if solution.schedule is None:
            continue
        schedule = constrained.take_back(solution.schedule)
        check_schedule(graph, schedule)
        assert list_broken(graph, schedule, constraints) == []
        simulation = simulate(graph, schedule)
        assert simulation.peak_bytes <= budget_bytes
        assert simulation.cost == solution.scheduled.simulation.cost
        if best is not None:  # else it has more repeats than were enumerated
            if solution.bound_order == "fixed" or solver != "twremat":
                assert solution.cost_lower_bound <= best
            if solution.status is Status.OPTIMAL and solution.bound_order == "fixed":
                assert simulation.cost == best


def test_a_schedule_that_breaks_constraints_is_told() -> None:
    graph = make_graph()
    plain = Schedule(tuple(range(6)))
    assert list_broken(graph, plain, Constraints(recompute=frozenset({1}))) == [
        "f1 is retained for b2",
        "f1 is retained for b1",
    ]
    twice = Schedule((0, 1, 2, 1, 3, 1, 4, 5))
    assert list_broken(graph, twice, Constraints(keep=frozenset({1}))) == ["f1 is computed twice"]
    assert list_broken(graph, twice, Constraints(keep=frozenset({0}), recompute=frozenset({1}))) == []


def test_what_only_the_backward_pass_reads_is_computed_there_once() -> None:
    nodes = (
        Node("mask", "Greater", (), (0,), cost=5),
        Node("loss", "Mean", (), (1,), cost=1),
        Node("grad", "Mul", (0, 1), (2,), cost=1, is_backward=True),
    )
    graph = Graph(nodes, tuple(Value(name, 1) for name in "mlg"), outputs=(2,))
    constrained = constrain(graph, Constraints(recompute=frozenset({0})))
    assert constrained.graph.baseline_cost == graph.baseline_cost
    assert constrained.take_back(Schedule((0, 1, 2))).order == (1, 0, 2)
    assert constrained.hand_over(Schedule((1, 0, 2))).order == (0, 1, 2)


@pytest.mark.parametrize(
    ("constraints", "why"),
    [
        (Constraints(recompute=frozenset({3})), "b2 .* of the backward pass"),
        (Constraints(keep=frozenset({1}), recompute=frozenset({1})), "f1 .* one to keep"),
    ],
)
def test_what_cannot_be_recomputed_is_refused(constraints: Constraints, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        constrain(make_graph(), constraints)


@given(data=st.data())
@settings(max_examples=60)
def test_schedules_come_back_as_they_were_handed_over(data: st.DataObject) -> None:
    graph = make_graph()
    constraints = data.draw(st.sampled_from(CASES))
    schedule = data.draw(st.sampled_from(list_fitting(constraints)))
    constrained = constrain(graph, constraints)
    handed = constrained.hand_over(schedule)
    assert constrained.take_back(handed) == schedule
    check_schedule(constrained.graph, handed)
    assert simulate(constrained.graph, handed).cost == simulate(graph, schedule).cost


def test_constraints_that_change_nothing_give_the_graph() -> None:
    graph = make_graph()
    constrained = constrain(graph, Constraints(keep=frozenset({2})))
    assert constrained.graph == replace(
        graph, nodes=tuple(replace(n, recomputable=i != 2) for i, n in enumerate(graph.nodes))
    )
    assert not Constraints()
