"""The contract of every solver, over random graphs of at most eight nodes and a few named ones.

A returned schedule is valid and within the budget, costs no less than the oracle's, and as little when OPTIMAL is
claimed; INFEASIBLE is claimed only where the oracle finds none either; the same seed gives the same schedule; a budget
at the baseline peak gives overhead 0; below what the largest node needs there is no schedule. A solver whose bounds are
about Checkmate's stage space is held to that space's optimum.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import SolverError
from checkmate_tf.graph import Graph, Node
from checkmate_tf.schedule import Order, Schedule, check_schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import SOLVER_NAMES, Problem, Search, Solution, Status, get_solver, solve
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.milp import CheckmateMilp
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.moccasin.solver import Moccasin
from tests.graphs import graph_of, graphs, training_chain, training_graphs

TIME_LIMIT_S = 5.0


def _chain_with_logs() -> Graph:
    """A chain of four layers with a node after its loss and one at its end that yield no value."""
    chain = training_chain(4)
    after_loss = Node("log loss", "log", (4,), (), 1, inplace=True)
    at_end = Node("log gradient", "log", (8,), (), 1, inplace=True)
    return Graph((*chain.nodes[:5], after_loss, *chain.nodes[5:], at_end), chain.values)


def _with_nodes(graph: Graph, changed: dict[int, dict[str, bool]]) -> Graph:
    nodes = tuple(replace(node, **changed.get(index, {})) for index, node in enumerate(graph.nodes))
    return replace(graph, nodes=nodes)


def _two_that_run_once() -> Graph:
    """Two nodes of 5 bytes that may not run again, and a reader of each: 5 bytes are enough for a, c, b, d."""
    graph = graph_of({"a": "", "b": "", "c": "a", "d": "b"}, sizes={"a": 5, "b": 5, "c": 0, "d": 0})
    return _with_nodes(graph, {index: {"recomputable": False} for index in (0, 1)})


# name -> (graph, budget that forces rematerialization or reordering)
NAMED = {
    "chain": (training_chain(4), 5),
    "chain, tight": (training_chain(4), 4),
    "diamond": (graph_of({"a": "", "b": "a", "c": "a", "d": "bc", "e": "ad"}, sizes={"a": 3, "b": 4, "c": 4}), 9),
    "order alone": (_two_that_run_once(), 5),
    "again after the last": (graph_of({"a": "", "b": ""}, sizes={"a": 5, "b": 5}, outputs="a"), 5),
    "no edges": (graph_of({"a": "", "b": "", "c": ""}, outputs="a"), 2),
    "one node": (graph_of({"a": ""}), 1),
    "backward only": (_with_nodes(training_chain(4), {index: {"is_backward": True} for index in range(9)}), 5),
    "one layer runs once": (_with_nodes(training_chain(4), {1: {"recomputable": False}}), 5),
    "greatest sizes and costs": (training_chain(4, size=10**14, cost=10**14), 5 * 10**14),
    "nodes that yield nothing": (_chain_with_logs(), 5),
    "costs of 64 bits": (
        graph_of({"a": "", "b": "a", "c": "b", "d": "ac"}, sizes={"b": 4, "a": 3}, costs=dict.fromkeys("abcd", 10**12)),
        5,
    ),
}


@dataclass(frozen=True)
class _Case:
    graph: Graph
    budget_bytes: int
    order: Order


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    graph = draw(st.one_of(graphs(max_nodes=7), training_graphs()))
    peak_bytes = _baseline_peak(graph)
    least = find_peak_bound(graph).peak_bytes
    return _Case(
        graph, draw(st.integers(max(least, 1), max(least, peak_bytes, 1))), draw(st.sampled_from(["fixed", "free"]))
    )


def _baseline_peak(graph: Graph) -> int:
    return simulate_stock(graph).peak_bytes


def _solve(case: _Case, name: str, *, seed: int = 0) -> Solution:
    return solve(case.graph, case.budget_bytes, solver=name, order=case.order, time_limit_s=TIME_LIMIT_S, seed=seed)


def _hold_to_contract(case: _Case, name: str) -> None:
    solution = _solve(case, name)
    wide = _solve(case, "exhaustive")
    staged = solve(case.graph, case.budget_bytes, solver=Exhaustive(stages=True)) if case.order == "fixed" else wide
    if solution.status is Status.INFEASIBLE:
        assert wide.status is Status.INFEASIBLE
    if solution.stats.get("infeasible_in") == "stages" and case.order == "fixed":
        assert staged.schedule is None
    if solution.schedule is None or solution.simulation is None:
        assert solution.status in (Status.INFEASIBLE, Status.NOT_FOUND)
        return
    check_schedule(case.graph, solution.schedule, order=case.order)
    assert simulate(case.graph, solution.schedule).peak_bytes <= case.budget_bytes
    assert wide.simulation is not None
    assert solution.simulation.cost >= wide.simulation.cost
    if solution.status is Status.OPTIMAL:
        assert staged.simulation is None or solution.simulation.cost <= staged.simulation.cost
    if solution.bound_order == case.order and staged.simulation is not None:
        assert solution.cost_lower_bound <= staged.simulation.cost
    if solution.bound_order == "free":
        free = solve(case.graph, case.budget_bytes, solver="exhaustive", order="free")
        assert free.simulation is not None
        assert solution.cost_lower_bound <= free.simulation.cost


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_random_graphs(name):
    @settings(deadline=None, max_examples=25, database=None)
    @given(_cases())
    def hold(case: _Case) -> None:
        _hold_to_contract(case, name)

    hold()


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("graph_name", NAMED)
@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_named_graphs(name, graph_name, order):
    _hold_to_contract(_Case(*NAMED[graph_name], order), name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"order": "Fixed"}, "order is 'Fixed'; it must be one of fixed, free"),
        (
            {"solver": CheckmateMilp(backend="foo")},
            "backend of checkmate_milp is 'foo'; it must be one of auto, highs, gurobi",
        ),
        ({"solver": CheckmateLp(backend="foo")}, "backend of checkmate_lp is 'foo'; it must be one of auto, simplex"),
        (
            {"solver": CheckmateMilp(cvxpy_solver="foo")},
            "cvxpy_solver of checkmate_milp is 'foo'; it must be one of HIGHS, SCIP",
        ),
        (
            {"solver": Moccasin(strategy="foo")},
            "strategy of moccasin is 'foo'; it must be one of neighbourhoods, whole",
        ),
    ],
)
def test_unknown_words_are_named_with_the_known_ones(words, message):
    with pytest.raises(SolverError, match=message):
        solve(training_chain(4), 5, **words)


@pytest.mark.parametrize("seed", [-1, np.int64(3), np.uint8(3), 2**31 - 1, 2**63, 10**30])
@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_any_whole_number_is_a_seed(name, seed):
    assert solve(training_chain(3, size=1000), 4000, solver=name, seed=seed, time_limit_s=TIME_LIMIT_S)


@pytest.mark.parametrize("limit", [None, "soon", -1, float("nan"), float("inf"), 10**400, True])
def test_a_time_limit_is_a_number_of_seconds(limit):
    with pytest.raises(SolverError, match="time_limit_s is"):
        solve(training_chain(4), 5, time_limit_s=limit)


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_what_is_resident_makes_no_difference(name):
    # Every value is less than a millionth of it.
    graph = training_chain(4, size=1000)
    for room_bytes in (9000, 5000, 4000):
        alone = solve(graph, room_bytes, solver=name, time_limit_s=TIME_LIMIT_S)
        beside = solve(replace(graph, resident_bytes=10**10), 10**10 + room_bytes, solver=name)
        assert (beside.status, beside.schedule) == (alone.status, alone.schedule)
        assert beside.cost_lower_bound == alone.cost_lower_bound


def test_progress_counts_what_is_resident():
    graph = replace(training_chain(4, size=1000), resident_bytes=10**10)
    seen = []
    found = solve(graph, 10**10 + 4000, solver="block_relaxation", on_progress=seen.append)
    assert seen[-1].peak_bytes == found.simulation.peak_bytes == 10**10 + 4000


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_same_seed_gives_the_same_schedule(name):
    case = _Case(training_chain(4), 5, "fixed")
    first, second = _solve(case, name, seed=3), _solve(case, name, seed=3)
    if max(first.solve_time_s, second.solve_time_s) > 0.9 * TIME_LIMIT_S:
        pytest.skip(f"{name} searches until its time limit, which may cut two runs at different points")
    assert first.schedule == second.schedule


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_budget_at_the_baseline_peak_costs_nothing(name):
    @settings(deadline=None, max_examples=8, database=None)
    @given(graphs(max_nodes=8))
    def hold(graph: Graph) -> None:
        budget = max(1, _baseline_peak(graph))
        for order in ("fixed", "free"):
            solution = solve(graph, budget, solver=name, order=order, time_limit_s=1e-9)  # even without any time
            assert solution.simulation is not None
            assert solution.simulation.overhead == 0

    hold()


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_below_the_largest_node_there_is_no_schedule(name):
    # Asked directly: `solve` would answer before the solver is called.
    graph = training_chain(4)
    problem = Problem(graph, find_peak_bound(graph).peak_bytes - 1, "free")
    assert get_solver(name).search(Search(problem, time_limit_s=1.0)).schedule is None


@pytest.mark.parametrize("name", ["twremat", "xla_greedy", "ap_greedy", "linearized_greedy"])
def test_nothing_is_begun_after_the_time_limit(name, monkeypatch):
    # Every look at the clock finds the time up: what the first round of work has made, if anything, is all.
    monkeypatch.setattr(Search, "deadline_s", property(lambda search: search.started_s - 1))
    found = get_solver(name).search(Search(Problem(training_chain(40), 20, "fixed"), time_limit_s=TIME_LIMIT_S))
    assert found.schedule is None
    assert found.stats.get("schedules_tried", 0) <= 1
    assert not any(key.startswith("width") for key in found.stats)


@dataclass(frozen=True)
class _Claims(Solver):
    """Returns a schedule and a bound as they are given."""

    schedule: Schedule
    bound: int
    bound_order: str

    def search(self, search: Search) -> Result:
        return Result(self.schedule, self.bound, self.bound_order)


@pytest.mark.parametrize(
    ("less", "bound_order", "order", "status"),
    [
        (0, "free", "fixed", Status.OPTIMAL),
        (0, "free", "free", Status.OPTIMAL),
        (0, "fixed", "fixed", Status.OPTIMAL),
        (0, "fixed", "free", Status.FEASIBLE),
        (1, "free", "free", Status.FEASIBLE),
        (1, "fixed", "fixed", Status.FEASIBLE),
    ],
)
def test_optimal_is_what_a_bound_of_the_same_order_proves(less, bound_order, order, status):
    graph = training_chain(4)
    known = solve(graph, 5, solver="exhaustive")
    claims = _Claims(known.schedule, known.simulation.cost - less, bound_order)
    assert known.simulation.cost - less >= graph.baseline_cost
    assert solve(graph, 5, solver=claims, order=order).status is status
