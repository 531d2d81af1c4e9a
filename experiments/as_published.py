"""Every paper's method as published, beside this package's own settings of it and beside `auto`.

Same graph, budget, machine and time limit, one solve after the other in one process. What is charged is the time that a
solve took, which may be more than its limit. As published means from nothing: `paper()` of each solver says what that
is. The order is the one that a method is made for; MOCCASIN has both.

    python -m experiments.as_published [--graphs vgg16 ...] [--time-limit 20]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Solver, solve
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.milp import CheckmateMilp
from checkmate_tf.solvers.fastsa.solver import Fastsa
from checkmate_tf.solvers.moccasin.solver import Moccasin
from checkmate_tf.solvers.twremat.solver import Twremat
from experiments.layer_graphs import committed_graph, num_edges
from experiments.running import (
    RESULTS_FOLDER,
    Point,
    Row,
    all_columns,
    environment_cells,
    made_with,
    read_rows,
    run_rows,
)

RESULTS = RESULTS_FOLDER / "as_published.csv"
# Budgets in percent of the peak without rematerialization. The largest node of VGG16 takes 71 % of it.
BUDGETS = {"vgg16": (90, 80), "unet": (80, 60), "mobilenet": (80, 40), "resnet50": (80, 40)}

FASTSA = Fastsa.paper()
WITH_LOGADDEXP = replace(
    FASTSA,
    annealing=replace(FASTSA.annealing, logaddexp=True),
    grouping=None if FASTSA.grouping is None else replace(FASTSA.grouping, logaddexp=True),
)
# FastSA's comparison (appendix D.2): PDLP, and 100 thresholds beside 0.5; here they are spread, there they are drawn.
WITH_THRESHOLDS = replace(CheckmateLp.paper(), backend="pdlp", rounding="swept", num_samples=101)
PUBLISHED = "as published"
DEFAULT = "default"
# (method, settings, order) -> the solver, or its name
SOLVERS: dict[tuple[str, str, str], Solver | str] = {
    ("checkmate_milp", PUBLISHED, "fixed"): CheckmateMilp.paper(),
    ("checkmate_milp", DEFAULT, "fixed"): "checkmate_milp",
    ("checkmate_lp", PUBLISHED, "fixed"): CheckmateLp.paper(),
    ("checkmate_lp", f"{PUBLISHED}, PDLP, 100 thresholds", "fixed"): WITH_THRESHOLDS,
    ("checkmate_lp", DEFAULT, "fixed"): "checkmate_lp",
    ("moccasin", PUBLISHED, "fixed"): Moccasin.paper(),
    ("moccasin", DEFAULT, "fixed"): "moccasin",
    ("auto", DEFAULT, "fixed"): "auto",
    ("moccasin", PUBLISHED, "free"): Moccasin.paper(),
    ("moccasin", DEFAULT, "free"): "moccasin",
    ("twremat", PUBLISHED, "free"): Twremat.paper(),
    ("twremat", DEFAULT, "free"): "twremat",
    ("fastsa", PUBLISHED, "free"): FASTSA,
    ("fastsa", f"{PUBLISHED}, LogAddExp", "free"): WITH_LOGADDEXP,
    ("fastsa", DEFAULT, "free"): "fastsa",
    ("auto", DEFAULT, "free"): "auto",
}
COLUMNS = (
    "graph", "budget_percent", "method", "settings", "order", "time_limit_s", "nodes", "edges", "status", "overhead",
    "bound", "peak_bytes", "seconds", "load", "booleans", "other_variables", "constraints",
)  # fmt: skip


def measure(point: Point) -> dict[str, Any]:
    """What a method finds, the load of the machine when it begins, and the size of the program where it has one."""
    print(*point.values(), file=sys.stderr, flush=True)
    graph = committed_graph(point["graph"])
    load = os.getloadavg()[0]
    solution = solve(
        graph,
        simulate_stock(graph).peak_bytes * point["budget_percent"] // 100,
        solver=SOLVERS[point["method"], point["settings"], point["order"]],
        order=point["order"],
        time_limit_s=point["time_limit_s"],
    )
    simulation, stats = solution.simulation, solution.stats
    others = stats.get("integers")
    if "booleans" in stats and "columns" in stats:
        others = int(stats["columns"]) - int(stats["booleans"])
    return {
        "nodes": len(graph.nodes),
        "edges": num_edges(graph),
        "status": solution.status,
        "overhead": None if simulation is None else simulation.overhead,
        "bound": solution.cost_lower_bound / graph.baseline_cost - 1,
        "peak_bytes": None if simulation is None else simulation.peak_bytes,
        "seconds": round(solution.solve_time_s, 2),
        "load": load,
        "booleans": stats.get("booleans"),
        "other_variables": others,
        "constraints": stats.get("constraints", stats.get("rows")),
        **environment_cells(),
    }


def points(graphs: Sequence[str], time_limit_s: float) -> list[Point]:
    return [
        {"graph": graph, "budget_percent": percent, "method": method, "settings": settings, "order": order,
         "time_limit_s": time_limit_s}
        for graph in graphs
        for percent in BUDGETS[graph]
        for method, settings, order in SOLVERS
    ]  # fmt: skip


_HEAD = """# The papers' methods as published, beside ours

Written by `python -m experiments.pages as_published.md` from `as_published.csv`; measured by `python -m
experiments.as_published`. Graphs are the layer graphs of `experiments/graphs`, and budgets are in percent of the peak
without rematerialization in the input order.

"As published" is the solver that `paper()` of each class returns: without a starting schedule, cutoff, tighter rows,
presolve or pruning. "Default" is the solver of that name with its default options, and `auto` the solver that runs if
none is named. All run on the same machine within the same time limit, and only `auto` has more than one process. The
time includes loading compiled code, and any time beyond the limit.

Overhead and its proved lower bound are in percent of the cost without rematerialization. A bound of 0 states only that
every node is computed once. Nodes that only move data cost nothing in these graphs, so a schedule with an overhead of 0
may still recompute some. FastSA ends the annealing of groups at the budget, so it needs only a part of the time for
loose budgets.
"""


def page() -> str:
    """The page: a summary, every run, the sizes of the programs, and what they were measured with."""
    rows = [row for row in read_rows(RESULTS) if not row["error"]]
    loads = sorted(float(row["load"]) for row in rows)
    limits = ", ".join(sorted({row["time_limit_s"] for row in rows}))
    return "\n".join([
        _HEAD,
        f"The time limit is {limits} s. The machine's load when a run began was {loads[0]:.1f} to {loads[-1]:.1f}. With"
        " other processes beside it, a method had only a part of a core. It would find more on a quiet machine.\n",
        "## In short\n", _summary(rows), "",
        "## Every run\n", *_runs(rows),
        "## Sizes of the programs (MOCCASIN, Table 1)\n",
        "At the first budget of each graph. Other variables are continuous in Checkmate's program and integers in"
        " MOCCASIN's.\n", _sizes(rows), "",
        made_with(rows), "",
    ])  # fmt: skip


def _summary(rows: Sequence[Row]) -> str:
    """How often each method finds a schedule, and how often none in its order is cheaper."""
    least: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row["overhead"]:
            case = row["graph"], row["budget_percent"], row["order"]
            least[case] = min(least.get(case, float("inf")), float(row["overhead"]))
    lines = []
    for method, settings, order in SOLVERS:
        own = [row for row in rows if (row["method"], row["settings"], row["order"]) == (method, settings, order)]
        found = [row for row in own if row["overhead"]]
        best = [
            row
            for row in found
            if float(row["overhead"]) <= least[row["graph"], row["budget_percent"], row["order"]] + 1e-9
        ]
        proved = [row for row in own if row["status"] == "OPTIMAL"]
        seconds = sum(float(row["seconds"]) for row in own)
        lines.append((method, order, settings, len(own), len(found), len(best), len(proved), round(seconds)))
    head = ("method", "order", "settings", "runs", "schedules", "cheapest in its order", "proved", "seconds in all")
    return tabulate(lines, head, "github")


def _runs(rows: Sequence[Row]) -> list[str]:
    tables = []
    for graph in BUDGETS:
        for percent in BUDGETS[graph]:
            own = [row for row in rows if (row["graph"], row["budget_percent"]) == (graph, str(percent))]
            if own:
                tables += [f"### {graph}, {own[0]['nodes']} nodes, {percent} %\n", _table(own), ""]
    return tables


def _table(rows: Sequence[Row]) -> str:
    place = {key: index for index, key in enumerate(SOLVERS)}
    ordered = sorted(rows, key=lambda row: place[row["method"], row["settings"], row["order"]])
    lines = [
        (row["method"], row["order"], row["settings"], _percent(row["overhead"]), _percent(row["bound"]),
         row["status"].lower().replace("_", " "), row["seconds"])
        for row in ordered
    ]  # fmt: skip
    head = ("method", "order", "settings", "overhead, %", "bound, %", "status", "seconds")
    return tabulate(lines, head, "github", missingval="-", disable_numparse=True)


def _percent(cell: str) -> str | None:
    return f"{100 * float(cell):.3f}" if cell else None


def _sizes(rows: Sequence[Row]) -> str:
    """The size of each published program at the first budget of its graph."""
    sized = [
        row
        for graph, percents in BUDGETS.items()
        for row in rows
        if row["booleans"] and row["settings"] == PUBLISHED
        if (row["graph"], row["budget_percent"]) == (graph, str(percents[0]))
    ]
    names = ("graph", "nodes", "edges", "method", "order", "booleans", "other_variables", "constraints")
    head = ("graph", "n", "m", "method", "order", "Boolean variables", "other variables", "constraints")
    return tabulate([[row[name] for name in names] for row in sized], head, "github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each solve")
    options = parser.parse_args()
    run_rows(points(options.graphs, options.time_limit), measure, RESULTS, all_columns(COLUMNS), digits=6)


if __name__ == "__main__":
    main()
