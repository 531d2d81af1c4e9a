"""Every back end on the same programs: Checkmate's (9) and its relaxation, on five layer graphs.

The programs are those that `checkmate_milp` and `checkmate_lp` build first: presolved with an annealed schedule as the
cutoff, with the budget rows of the stages' own nodes. No back end is given a start, and each runs on one thread in a
process of its own. Of the commercial ones under CVXPY these are the free editions that their packages bring, limited in
size.

    python -m experiments.checkmate.back_ends --time-limit 20
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import StageModel, build_model
from checkmate_tf.solvers.checkmate.stage_space import own_events, presolved_space
from checkmate_tf.solvers.mip.program import CvxpySolver
from experiments.layer_graphs import committed_graph
from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart, write_text

# Graph and budget in percent of the peak; the first five are within 2,000 columns and rows.
INSTANCES = (
    ("vgg19", 70),
    ("segnet", 70),
    ("unet", 70),
    ("fcn8", 90),
    ("vgg_unet", 90),
    ("segnet", 60),
    ("unet", 60),
    ("fcn8", 70),
)
CVXPY = tuple(f"cvxpy {name}" for name in get_args(CvxpySolver))
BACK_ENDS = {
    "milp": ("gurobi", "highs", "cpsat", *CVXPY),
    "relaxation": (
        "gurobi",
        "simplex",
        "ipm",
        "pdlp",
        *(name for name in CVXPY if name not in ("cvxpy CBC", "cvxpy GLPK_MI")),
    ),
}
RESULTS = RESULTS_FOLDER / "back_ends.csv"
KEY = ("program", "graph", "budget_percent", "back_end", "time_limit_s")
COLUMNS = (*KEY, "columns", "rows", "seconds", "cpu_s", "status", "objective", "bound")
_PAGE = """# Back ends of Checkmate's programs

Written by `python -m experiments.pages back_ends.md` from `back_ends.csv`, which
`python -m experiments.checkmate.back_ends` measures: every back end gets the same program, one thread and no start.

A cell shows the CPU seconds of a back end, because the machine was shared, and its result: the overhead of the schedule
in percent for the integer program, and the bound on it for the relaxation. "=" marks a proof of the optimum, or
convergence. "size" means that the licence does not allow a program of this size, "licence" that the package has none,
and "limit" that {limits} s ended without a point. `back_ends.csv` also contains the seconds by the clock.

## The integer program (9)

{milp}

## Its relaxation

The bound is computed from the dual point that a back end returns. On several graphs, the dual point that CVXPY returns
for SCIP does not prove the optimum.

{relaxation}

{environment}
"""


def built(graph: Graph, budget_percent: int) -> StageModel:
    """The first program of a graph at a budget."""
    budget_bytes = simulate_stock(graph).peak_bytes * budget_percent // 100
    start = solve(graph, budget_bytes, solver=StageAnnealing(moves_per_node=1000)).scheduled
    space = presolved_space(graph, budget_bytes, most_extra_cost=start.simulation.cost - graph.baseline_cost)
    return build_model(graph, budget_bytes, replace(space, binding=own_events(space)))


def compute(point: Point) -> dict[str, Any]:
    graph = committed_graph(point["graph"])
    model = built(graph, point["budget_percent"])
    name, _, cvxpy_solver = point["back_end"].partition(" ")
    solve_by: Any = backends.solve_milp if point["program"] == "milp" else backends.relax
    words = {"time_limit_s": point["time_limit_s"], "cvxpy_solver": cvxpy_solver or "HIGHS"}
    solve_by(built(committed_graph("vgg16"), 90), name, **words)  # so that libraries are loaded
    began, began_cpu = time.perf_counter(), time.process_time()
    answer = solve_by(model, name, **words)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    size = {"columns": len(model.cost), "rows": model.matrix.shape[0]}
    if "fallback" in answer.stats:
        return {**size, "status": _refusal(answer.stats["fallback"])}
    costs = None if answer.x is None else float(model.cost @ answer.x) + model.fixed_cost
    return {
        **size,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "status": "optimal" if answer.optimal else str(answer.stats["model_status"]),
        "objective": None if costs is None else 100 * (costs / graph.baseline_cost - 1),
        "bound": 100 * (answer.bound / graph.baseline_cost - 1) if answer.bound > 0 else None,
    }


def _refusal(reason: str) -> str:
    if "does not find" in reason:
        return "not installed"
    return "size" if "allow" in reason or "too many" in reason else "licence"


def points(time_limit_s: float) -> list[Point]:
    return [
        dict(zip(KEY, (program, *instance, back_end, time_limit_s), strict=True))
        for program, names in BACK_ENDS.items()
        for instance in INSTANCES
        for back_end in names
    ]


def table(rows: Sequence[Row], program: str) -> str:
    """A line an instance, a column a back end."""
    here = {
        (row["graph"], int(row["budget_percent"]), row["back_end"]): row for row in rows if row["program"] == program
    }
    names = [name for name in BACK_ENDS[program] if any(key[2] == name for key in here)]
    lines = []
    for graph, budget in INSTANCES:
        found = [here.get((graph, budget, name)) for name in names]
        some = next((row for row in found if row is not None), None)
        if some is not None:
            lines.append([f"{graph}, {budget} %", some["columns"], some["rows"], *(_cell(row) for row in found)])
    return tabulate(lines, ["graph, budget", "columns", "rows", *names], tablefmt="github")


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["error"]:
        return "error"
    if not row["seconds"]:
        return row["status"]
    figure = row["bound"] if row["program"] == "relaxation" else row["objective"]
    if not figure:
        return f"{float(row['cpu_s']):.2f} s: limit"
    return f"{float(row['cpu_s']):.2f} s: {float(figure):.3f}{'=' if row['status'] == 'optimal' else ''}"


def page() -> str:
    rows = read_rows(RESULTS)
    limits = ", ".join(sorted({f"{float(row['time_limit_s']):g}" for row in rows}))
    tables = {program: table(rows, program) for program in BACK_ENDS}
    return _PAGE.format(limits=limits, environment=made_with(rows), **tables)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each program")
    wanted = points(parser.parse_args(arguments).time_limit)
    run_apart("experiments.checkmate.back_ends", wanted, RESULTS, COLUMNS)
    write_text(RESULTS.with_suffix(".md"), page())


if __name__ == "__main__":
    main()
