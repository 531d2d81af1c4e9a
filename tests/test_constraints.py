"""Schedules that keep or recompute what the user says: against schedules that are enumerated, solver by solver."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.constraints import Constraints, constrain, explain_fixed, find_forward, list_broken
from checkmate_tf.errors import GraphError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Order, Schedule, check_schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import SOLVER_NAMES, Status, solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from tests.graphs import graphs, training_graphs

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
        "f1 is retained for the backward pass",
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
    assert constrained.take_back(Schedule((0, 1, 2, 3))).order == (1, 0, 2)
    assert constrained.hand_over(Schedule((1, 0, 2))).order == (0, 1, 2, 3)
    assert constrained.hand_over(Schedule((0, 1, 2))) is None


@pytest.mark.parametrize(
    ("constraints", "why"),
    [
        (Constraints(recompute=frozenset({3})), "b2 .* not of the forward pass"),
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
    assert handed is not None
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


@dataclass(frozen=True)
class Oracle:
    """The least cost of any schedule that keeps to constraints: Dijkstra over what was computed and what is held.

    As soon as the forward pass is complete nothing that is to be recomputed is held. Before that the backward pass
    reads none of it.
    """

    graph: Graph
    budget_bytes: int
    order: Order
    constraints: Constraints

    @property
    def late(self) -> set[int]:
        """What is to be recomputed and is read in the backward pass alone."""
        graph, late = self.graph, set()
        for number in sorted(self.constraints.recompute, reverse=True):
            users = graph.successors[number]
            if users and all(user >= find_forward(graph).stop or user in late for user in users):
                late.add(number)
        return late

    def find_cost(self) -> int | None:
        start = (frozenset(), frozenset())
        best, queue, count = {start: 0}, [(0, 0, start)], 0
        while queue:
            extra, _, state = heapq.heappop(queue)
            if extra > best[state]:
                continue
            computed, held = state
            if len(computed) == len(self.graph.nodes) and held >= set(self.graph.outputs):
                return self.graph.baseline_cost + extra
            for cost, following in self.list_moves(computed, held):
                if extra + cost < best.get(following, 10**9):
                    best[following] = extra + cost
                    count += 1
                    heapq.heappush(queue, (extra + cost, count, following))
        return None

    def list_moves(self, computed: frozenset, held: frozenset) -> Iterator[tuple[int, tuple[frozenset, frozenset]]]:
        graph, again = self.graph, self.constraints.recompute
        late = self.late
        passing = set(find_forward(graph)) - late
        gone = {value for node in again for value in graph.nodes[node].outputs}
        readers = {n for n in passing if gone.intersection(graph.nodes[n].inputs) and n not in again}
        in_order = [n for n in range(len(graph.nodes)) if n not in late and n not in computed]
        for value in held:
            yield 0, (computed, held - {value})
        for index, node in enumerate(graph.nodes):
            is_first, in_forward = index not in computed, bool(passing - computed)
            if is_first and self.order == "fixed" and index not in late and index != in_order[0]:
                continue
            once = index in self.constraints.keep | readers or not node.recomputable
            if not held.issuperset(node.inputs) or (once and not is_first):
                continue
            is_early = index not in passing and (index in late or gone.intersection(node.inputs))
            if in_forward and ((index in again and not is_first) or is_early):
                continue
            now = computed | {index}
            after = held | set(node.outputs)
            needed = graph.resident_bytes + node.workspace_bytes + sum(graph.values[v].size_bytes for v in after)
            drops = gone if in_forward and not passing - now else set()
            cost = 0 if is_first else node.cost
            if needed <= self.budget_bytes:
                yield cost, (now, after - drops)
            for value in node.inputs if node.inplace else ():
                size = graph.values[value].size_bytes
                if size == graph.values[node.outputs[0]].size_bytes and needed - size <= self.budget_bytes:
                    yield cost, (now, (after - {value}) - drops)


@dataclass(frozen=True)
class Case:
    graph: Graph
    budget_bytes: int
    order: Order
    constraints: Constraints


@st.composite
def cases(draw: st.DrawFn) -> Case:
    graph = draw(st.one_of(graphs(max_nodes=6), training_graphs()))
    num_nodes = len(graph.nodes)
    if not any(node.is_backward for node in graph.nodes):
        first = draw(st.integers(1, num_nodes - 1))
        nodes = tuple(replace(node, is_backward=index >= first) for index, node in enumerate(graph.nodes))
        graph = replace(graph, nodes=nodes)
    chosen = draw(st.lists(st.sampled_from(["", "", "keep", "recompute"]), min_size=num_nodes, max_size=num_nodes))
    keep = frozenset(index for index, one in enumerate(chosen) if one == "keep")
    again = (index for index, one in enumerate(chosen) if one == "recompute" and explain_fixed(graph, index) is None)
    least, most = find_peak_bound(graph).peak_bytes, simulate_stock(graph).peak_bytes + 3
    budget_bytes = draw(st.integers(max(least, 1), max(most, least, 1)))
    return Case(graph, budget_bytes, draw(st.sampled_from(["fixed", "free"])), Constraints(keep, frozenset(again)))


def hold(case: Case, name: str) -> None:
    constrained = constrain(case.graph, case.constraints)
    words = {"order": case.order, "time_limit_s": 5.0}
    found = solve(constrained.graph, case.budget_bytes, solver=name, **words)
    least = Oracle(case.graph, case.budget_bytes, case.order, case.constraints).find_cost()
    if found.status is Status.INFEASIBLE:
        assert least is None
    if found.schedule is None:
        return
    schedule = constrained.take_back(found.schedule)
    check_schedule(case.graph, schedule)
    assert list_broken(case.graph, schedule, case.constraints) == []
    simulation = simulate(case.graph, schedule)
    assert simulation.cost == found.simulation.cost
    assert simulation.peak_bytes <= found.simulation.peak_bytes <= case.budget_bytes
    assert least is not None
    assert simulation.cost >= least
    if found.status is Status.OPTIMAL and case.order == "free":
        assert simulation.cost == least
    if found.status is Status.OPTIMAL and case.order == "fixed":  # bounds are about Checkmate's stages
        staged = solve(constrained.graph, case.budget_bytes, solver=Exhaustive(stages=True))
        assert staged.simulation is None or simulation.cost <= staged.simulation.cost
    handed = constrained.hand_over(schedule)
    assert handed is not None
    assert constrained.take_back(handed) == schedule


@pytest.mark.parametrize("name", sorted(set(SOLVER_NAMES) - {"exhaustive"}))
def test_every_solver_keeps_to_constraints_of_random_graphs(name):
    @settings(deadline=None, max_examples=25, database=None)
    @given(cases())
    def run(case: Case) -> None:
        hold(case, name)

    run()


def test_exhaustive_search_of_the_constrained_graph_finds_the_least_cost_of_all():
    @settings(deadline=None, max_examples=150, database=None)
    @given(cases())
    def run(case: Case) -> None:
        hold(case, "exhaustive")
        constrained = constrain(case.graph, case.constraints)
        found = solve(constrained.graph, case.budget_bytes, solver="exhaustive", order=case.order)
        least = Oracle(case.graph, case.budget_bytes, case.order, case.constraints).find_cost()
        cost = None if found.simulation is None else found.simulation.cost
        assert cost == least or (case.order == "fixed" and (cost is None or cost >= least))  # clones come in order

    run()
