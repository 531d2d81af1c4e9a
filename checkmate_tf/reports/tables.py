"""Makes tables of solutions, and draws the trade-off between memory and cost."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.graph import Graph
from checkmate_tf.reports.pictures import new_figure, save_figure
from checkmate_tf.reports.summary import shorten
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The number of characters of a name in a table.
_WIDTH = 200


def format_share(share: float | None) -> str:
    """Writes a fraction of one as a percentage, such as "4.26 %"; "-" for None."""
    return "-" if share is None else f"{share:.2%}".replace("%", " %")


def tabulate_solution(graph: Graph, solution: Solution, *, budget_bytes: int) -> str:
    """Returns a table of one solution, with a line for each figure."""
    baseline = simulate_stock(graph)
    rows = [
        ("graph", f"{shorten(graph.name, _WIDTH)} ({len(graph.nodes)} nodes)"),
        ("peak without rematerialization", format_bytes(baseline.peak_bytes)),
        ("budget", _format_bytes_and_share(budget_bytes, baseline.peak_bytes)),
        ("solver", f"{solution.solver}, {solution.solve_time_s:.2f} s"),
        ("status", str(solution.status)),
    ]
    if solution.best is not None:
        schedule, simulation = solution.best.schedule, solution.best.simulation
        peak_node = shorten(graph.nodes[schedule.order[simulation.peak_position]].name, _WIDTH)
        repeats = len(schedule) - len(graph.nodes)
        rows += [
            ("peak", f"{_format_bytes_and_share(simulation.peak_bytes, baseline.peak_bytes)}, at {peak_node}"),
            ("overhead", f"{format_share(simulation.overhead)}, {repeats} recomputations"),
            (
                "overhead bound",
                f"{format_share(_find_least_overhead(graph, solution))}, in {solution.bound_order} order",
            ),
        ]
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def make_comparison_row(graph: Graph, solution: Solution, *, budget: str) -> dict[str, str]:
    """Returns the row of one solver at one budget, with a column for each figure."""
    simulation = solution.simulation
    return {
        "budget": budget,
        "solver": solution.solver,
        "status": str(solution.status),
        "overhead": format_share(simulation.overhead if simulation else None),
        "overhead bound": format_share(_find_least_overhead(graph, solution)),
        "peak": format_bytes(simulation.peak_bytes) if simulation else "-",
        "time": f"{solution.solve_time_s:.2f} s",
    }


def tabulate_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table of rows with the same columns, with words to the left and figures to the right."""
    rows = list(rows)
    words = ("model", "budget", "solver", "status", "description")
    aligned = ["left" if column in words else "right" for column in rows[0]] if rows else []
    return tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True, colalign=aligned)


def draw_pareto(axes: "Axes", graph: Graph, solutions: Sequence[Solution]) -> None:
    """Draws overhead over peak memory, with a line for each solver. Solutions without a schedule are left out."""
    baseline = simulate_stock(graph).peak_bytes
    for solver in dict.fromkeys(solution.solver for solution in solutions):
        points = sorted(
            (100 * solution.simulation.peak_bytes / baseline, 100 * solution.simulation.overhead)
            for solution in solutions
            if solution.solver == solver and solution.simulation is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=solver)
    axes.set(xlabel="peak memory (% of the peak without rematerialization)", ylabel="overhead (%)")
    axes.set_title(graph.name)
    axes.legend(loc="best")


def save_pareto_picture(graph: Graph, solutions: Sequence[Solution], path: str | Path) -> None:
    """Writes overhead over peak memory of every solver."""
    figure = new_figure(7, 5)
    draw_pareto(figure.subplots(), graph, solutions)
    save_figure(figure, path)


def _format_bytes_and_share(num_bytes: int, of_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_bytes / of_bytes:.1%})" if of_bytes else format_bytes(num_bytes)


def _find_least_overhead(graph: Graph, solution: Solution) -> float:
    return solution.cost_lower_bound / graph.baseline_cost - 1 if graph.baseline_cost else 0.0
