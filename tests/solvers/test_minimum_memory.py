"""The least budget that works, and curves over budgets."""

from dataclasses import dataclass

from hypothesis import assume, given, settings

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Result, Status, solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory, solve_budgets
from tests.graphs import graphs, training_chain

HERE = Auto(workers=0)


@settings(deadline=None, max_examples=25)
@given(graphs(max_nodes=7))
def test_least_budget_is_the_oracles(graph):
    peak = simulate_stock(graph).peak_bytes
    assume(peak > 0)
    found = minimum_memory(graph, tolerance=0.0, solver=HERE)
    works = [
        budget
        for budget in range(max(1, find_peak_bound(graph).peak_bytes), peak + 1)
        if solve(graph, budget, solver=Exhaustive()).schedule is not None
    ]
    assert max(found.budget_bytes, 1) == works[0]
    assert found.lower_bound_bytes <= found.budget_bytes


def test_curve_is_monotone_and_as_good_as_single_solves():
    graph = training_chain(10)
    peak = simulate_stock(graph).peak_bytes
    budgets = [peak * percent // 100 for percent in (50, 100, 60, 80)]
    curve = solve_budgets(graph, budgets, solver=HERE, time_limit_s=20)
    assert all(one.simulation.peak_bytes <= budget for one, budget in zip(curve, budgets, strict=True))
    by_budget = sorted(zip(budgets, curve, strict=True), key=lambda pair: pair[0])
    costs = [solution.simulation.cost for _, solution in by_budget]
    assert costs == sorted(costs, reverse=True)
    for solution, budget in zip(curve, budgets, strict=True):
        alone = solve(graph, budget, solver="block_relaxation")
        assert (solution.status, solution.simulation.cost) == (Status.OPTIMAL, alone.simulation.cost)


def test_no_peak_is_above_that_of_a_higher_budget():
    nodes = (
        Node("first", "op", (), (0,), 1, workspace_bytes=3),
        Node("second", "op", (0,), (1,), 1),
        Node("third", "op", (0, 1), (2,), 1),
    )
    graph = Graph(nodes, (Value("a", 1), Value("b", 4), Value("c", 1)), (2,))
    assert [simulate(graph, Schedule.of(order)).peak_bytes for order in ([0, 1, 2], [0, 1, 0, 2])] == [6, 8]
    curve = solve_budgets(graph, [8, 9], solver=Wasteful())
    assert [(one.simulation.peak_bytes, one.simulation.cost) for one in curve] == [(6, 3), (6, 3)]


def test_begins_with_what_is_known():
    graph = training_chain(10)
    known = solve(graph, simulate_stock(graph).peak_bytes * 6 // 10, solver="block_relaxation")
    assert minimum_memory(graph, known=known, time_limit_s=0).solution is known
    assert minimum_memory(graph, known=known, solver=HERE).budget_bytes < known.simulation.peak_bytes


def test_a_known_schedule_serves_the_budgets_that_nothing_is_found_for():
    graph = training_chain(10)
    peak = simulate_stock(graph).peak_bytes
    least = minimum_memory(graph, solver=HERE).solution
    budgets = [least.scheduled.simulation.peak_bytes, peak]
    told = []
    curve = solve_budgets(
        graph, budgets, solver=Stuck(), known=least, on_solved=lambda budget, solution: told.append((budget, solution))
    )
    assert [budget for budget, _ in told] == [peak, budgets[0]]
    assert [solution.schedule for _, solution in told] == [curve[1].schedule, None]
    assert curve[0].schedule == least.schedule


def test_a_budget_that_nothing_is_found_for_is_not_proved_impossible():
    graph = training_chain(10)
    found = minimum_memory(graph, solver=Stuck())
    assert found.budget_bytes == simulate_stock(graph).peak_bytes
    assert found.lower_bound_bytes == find_peak_bound(graph).peak_bytes


@dataclass(frozen=True)
class Stuck(Auto):
    """Finds nothing below the peak of the input order."""

    def search(self, search):
        fits = simulate_stock(search.problem.graph).peak_bytes <= search.problem.budget_bytes
        return Result(make_retain_all_schedule(search.problem.graph) if fits else None)


@dataclass(frozen=True)
class Wasteful(Auto):
    """Recomputes the first node within 8 bytes, which takes more memory than not to."""

    def search(self, search):
        return Result(Schedule.of([0, 1, 0, 2] if search.problem.budget_bytes == 8 else [0, 1, 2]))
