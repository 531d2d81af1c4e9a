"""Which method solves the LP relaxation of (9) fastest, by size: HiGHS simplex and interior point, and PDLP.

Half way between what the largest node needs and the peak, on the layer-level graphs; with the budget rows of the
stages' own nodes only, as `checkmate_lp` has them for large graphs, and with all. The bound of a method that did not
converge is still valid (`safe_bound`), and shown. Times are of the processor, as machines are shared.

    python -m experiments.checkmate.relaxation_methods --workers 1
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.stage_space import own_events, presolved_space
from experiments.checkmate.page import write_page
from experiments.layer_graphs import committed_graph
from experiments.running import CHECKMATE, Point, add_options, in_order, run_points, runner_of

MODELS = ("vgg16", "unet", "mobilenet", "resnet50")
METHODS = ("simplex", "ipm", "pdlp")
ROWS = ("own nodes", "all")


def compute(point: Point) -> dict[str, Any]:
    graph = committed_graph(point["model"])
    peak_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = (peak_bytes + find_peak_bound(graph).peak_bytes) // 2
    start = solve(graph, budget_bytes, solver="block_relaxation", time_limit_s=10).simulation
    space = presolved_space(
        graph, budget_bytes, most_extra_cost=None if start is None else start.cost - graph.baseline_cost
    )
    if point["rows"] == "own nodes":
        space = replace(space, binding=own_events(space))
    started = time.process_time()
    model = build_model(graph, budget_bytes, space)
    built = time.process_time()
    answer = backends.relax(model, point["method"], time_limit_s=point["time_limit_s"])
    return {
        "num_nodes": len(graph.nodes),
        "columns": len(model.cost),
        "rows": model.matrix.shape[0],
        "build_s": built - started,
        "solve_s": time.process_time() - built,
        "bound": answer.bound / graph.baseline_cost - 1,
        "model_status": answer.stats["model_status"],
    }


def table(done: list[dict[str, Any]]) -> str:
    entries = in_order(done, model=MODELS, rows=ROWS, method=METHODS)
    shown = ("model", "rows", "method", "time_limit_s")
    rows = [(*(entry["point"][key] for key in shown), *entry["result"].values()) for entry in entries]
    head = ("model", "budget rows", "method", "limit, s", "n", "columns", "rows")
    head += ("build, CPU s", "solve, CPU s", "bound", "status")
    return tabulate(rows, head, floatfmt=".4g") + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each relaxation")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    add_options(parser)
    options = parser.parse_args(arguments)
    points = [
        {"model": model, "rows": rows, "method": method, "time_limit_s": options.time_limit}
        for model in options.models
        for rows in ROWS
        for method in METHODS
    ]
    done = run_points(points, compute, CHECKMATE, part="relaxation_methods", runner=runner_of(options))
    write_page()
    print(table(done))


if __name__ == "__main__":
    main()
