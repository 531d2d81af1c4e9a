"""Makes tables of solutions, and draws pictures of schedules and trade-offs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import CheckmateError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def format_share(share: float | None) -> str:
    """Writes a part of one as a percentage, such as "4.26 %"; "-" for None."""
    return "-" if share is None else f"{share:.2%}".replace("%", " %")


def tabulate_solution(graph: Graph, solution: Solution, *, budget_bytes: int) -> str:
    """Makes a table of one solution, a line a figure."""
    baseline = simulate_stock(graph)
    rows = [
        ("graph", f"{graph.name} ({len(graph.nodes)} nodes)"),
        ("peak without rematerialization", format_bytes(baseline.peak_bytes)),
        ("budget", _format_bytes_and_share(budget_bytes, baseline.peak_bytes)),
        ("solver", f"{solution.solver}, {solution.solve_time_s:.2f} s"),
        ("status", str(solution.status)),
    ]
    if solution.best is not None:
        schedule, simulation = solution.best.schedule, solution.best.simulation
        peak_node = graph.nodes[schedule.order[simulation.peak_step]].name
        repeats = len(schedule) - len(graph.nodes)
        rows += [
            ("peak", f"{_format_bytes_and_share(simulation.peak_bytes, baseline.peak_bytes)}, at {peak_node}"),
            ("overhead", f"{format_share(simulation.overhead)}, {repeats} recomputations"),
            (
                "overhead at least",
                f"{format_share(_find_least_overhead(graph, solution))}, in {solution.bound_order} order",
            ),
        ]
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def make_comparison_row(graph: Graph, solution: Solution, *, budget: str) -> dict[str, str]:
    """Makes the row of one solver at one budget, a column a figure."""
    simulation = solution.simulation
    return {
        "budget": budget,
        "solver": solution.solver,
        "status": str(solution.status),
        "overhead": format_share(simulation.overhead if simulation else None),
        "at least": format_share(_find_least_overhead(graph, solution)),
        "peak": format_bytes(simulation.peak_bytes) if simulation else "-",
        "time": f"{solution.solve_time_s:.2f} s",
    }


def tabulate_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Makes a table of rows with the same columns, words to the left and figures to the right."""
    rows = list(rows)
    words = ("model", "budget", "solver", "status", "description")
    aligned = ["left" if column in words else "right" for column in rows[0]] if rows else []
    return tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True, colalign=aligned)


def draw_recomputation(axes: "Axes", graph: Graph, schedule: Schedule) -> None:
    """Draws Checkmate's R matrix: stage down, node across, a mark for each computation.

    A stage ends with a first computation, in whatever order the schedule has them, and nodes are
    numbered in that order; so the diagonal is what every schedule computes, marks left of it are
    recomputed.
    """
    rank: dict[int, int] = {}
    stages, ranks, again = [], [], []
    for node in schedule.order:
        again.append(node in rank)
        # A recomputation belongs to the stage of the first computation that follows it.
        stages.append(len(rank))
        ranks.append(rank.setdefault(node, len(rank)))
    repeated = np.array(again)
    across, down = np.array(ranks), np.array(stages)
    backward = [rank[node] for node in rank if graph.nodes[node].is_backward]
    if backward:
        axes.axhline(min(backward), color="0.8", linewidth=1, zorder=0)
        axes.axvline(min(backward), color="0.8", linewidth=1, zorder=0)
    axes.plot(across[~repeated], down[~repeated], color="0.5", linewidth=1, label="computed first")
    size = max(1.0, min(6.0, 300 / len(graph.nodes)))
    axes.plot(across[repeated], down[repeated], "s", markersize=size, color="tab:red", label="recomputed")
    axes.invert_yaxis()
    axes.set(xlabel="node, by first computation", ylabel="stage")
    axes.legend(loc="upper right")


def draw_memory(
    axes: "Axes", graph: Graph, schedules: Mapping[str, Schedule], *, budget_bytes: int | None = None
) -> None:
    """Draws memory over the cost spent, a line a schedule; the budget is dashed."""
    for label, schedule in schedules.items():
        simulation = simulate(graph, schedule)
        spent = np.concatenate(([0], np.cumsum(graph.costs[list(schedule.order)])))
        share = spent / max(graph.baseline_cost, 1)
        axes.stairs(simulation.memory_bytes / 2**20, share, baseline=None, label=label)
    if budget_bytes is not None:
        axes.axhline(budget_bytes / 2**20, color="0.3", linestyle="--", linewidth=1, label="budget")
    axes.set(xlabel="cost, 1 = every node once", ylabel="memory in use (MiB)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")


def draw_pareto(axes: "Axes", graph: Graph, solutions: Sequence[Solution]) -> None:
    """Draws overhead over peak memory, a line a solver; solutions without a schedule are left out."""
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


def save_schedule_picture(
    graph: Graph, schedule: Schedule, path: str | Path, *, budget_bytes: int | None = None
) -> None:
    """Writes what the schedule recomputes and its memory beside that without rematerialization, as PNG, PDF or SVG."""
    figure = _new_figure(width=12)
    left, right = figure.subplots(1, 2)
    draw_recomputation(left, graph, schedule)
    both = {"without rematerialization": make_retain_all_schedule(graph), "rematerialized": schedule}
    draw_memory(right, graph, both, budget_bytes=budget_bytes)
    figure.suptitle(graph.name)
    _save(figure, path)


def save_pareto_picture(graph: Graph, solutions: Sequence[Solution], path: str | Path) -> None:
    """Writes overhead over peak memory of every solver."""
    figure = _new_figure(width=7)
    draw_pareto(figure.subplots(), graph, solutions)
    _save(figure, path)


def _new_figure(*, width: float) -> "Figure":
    """Makes a figure without pyplot, which would need global state and a window system."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CheckmateError("pictures need matplotlib: pip install 'checkmate_tf[plot]'") from error
    return Figure(figsize=(width, 5), layout="constrained")


def _save(figure: "Figure", path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise CheckmateError(f"cannot write the picture {path}: {error}; use a name such as schedule.png") from error


def _format_bytes_and_share(num_bytes: int, of_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_bytes / of_bytes:.1%})" if of_bytes else format_bytes(num_bytes)


def _find_least_overhead(graph: Graph, solution: Solution) -> float:
    return solution.cost_lower_bound / graph.baseline_cost - 1 if graph.baseline_cost else 0.0
