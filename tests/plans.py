"""Plans of graphs and a curve of budgets, without a model."""

from checkmate_tf.budget import parse_budget
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.graph import Graph
from checkmate_tf.origins import guess_origins
from checkmate_tf.planning.planned_step import PlannedStep, Stock
from checkmate_tf.reports.budget_curve import Pareto, ParetoPoint
from checkmate_tf.reports.plan import Plan
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Solution, solve


def make_plan(graph: Graph, budget: int | str, *, solution: Solution | None = None) -> Plan:
    """A plan that was not measured, by the given solution or the solver `auto`."""
    stock_bytes = simulate_stock(graph).peak_bytes
    found = solution or solve(graph, budget, solver="auto", time_limit_s=10)
    return Plan(
        PlannedStep(
            budget_bytes=parse_budget(budget, peak_bytes=stock_bytes),
            graph=graph,
            solution=found,
            ordering="chain",
            run=None,
            stock=Stock(stock_bytes, None),
            resident=ResidentBytes(),
            origins=guess_origins(graph),
        )
    )


def make_curve(name: str = "<b>net</b> $x$", *, unit: int = 1) -> Pareto:
    """A curve with a bend at 60 units, measured, and a budget of 20 that is refused."""
    points = [
        ParetoPoint(size * unit, "auto", "OPTIMAL", True, size * unit, more, 0.0, size * unit, 1 + more, more)
        for size, more in ((100, 0.0), (80, 0.01), (60, 0.02), (40, 0.5))
    ]
    refused = ParetoPoint(20 * unit, "auto", "INFEASIBLE", False, None, None, 0.0)
    return Pareto(name, "CPU:0", (*points, refused), 100 * unit, 1.0, 40 * unit, 30 * unit, 5, 0, 1.0)
