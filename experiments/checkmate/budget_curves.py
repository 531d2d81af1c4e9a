"""Checkmate, Figure 5 and Table 2: cost against budget for every method, and approximation ratios.

Layer-level graphs of experiments/graphs with costs in multiply-adds (Table 2's are FLOPs; Figure 5's were profiled on a
V100: `profiled_costs.py` has measured costs). Budgets are fractions of the way from what the largest node needs, below
which nothing is possible, to the peak without rematerialization. A ratio is the cost of a method over the least cost
known, or over its lower bound where the optimum is not proved; Table 2 takes the geometric mean over the budgets at
which the method has a schedule.

    python -m experiments.checkmate.budget_curves [--models vgg16 ...] [--time-limit 30]
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import Solver, solve
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from experiments.checkmate.page import write_page
from experiments.layer_graphs import committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, run_points, runner_of

MODELS = ("vgg16", "mobilenet", "unet", "vgg19", "resnet50")
FIGURE_5 = ("vgg16", "mobilenet", "unet")
FRACTIONS = (0.25, 0.4, 0.6, 0.8)
BASELINES = ("chen_sqrt", "chen_greedy", "griewank", "ap_sqrt", "ap_greedy", "linearized_sqrt", "linearized_greedy")
METHODS = (*BASELINES, "checkmate_lp", "checkmate_lp, algorithm 2", "checkmate_milp", "block_relaxation")
PUBLISHED = {"mobilenet": 1.06, "vgg16": 1.01, "vgg19": 1.00, "unet": 1.03, "resnet50": 1.05}


def solver_of(method: str) -> str | Solver:
    """Algorithm 2 as published: one threshold, no pruning; the allowance is searched as appendix D asks."""
    if method == "checkmate_lp, algorithm 2":
        return CheckmateLp(rounding="deterministic", pruned=False)
    return method


def compute(point: Point) -> dict[str, Any]:
    return solved(committed_graph(point["model"]), point)


def solved(graph: Graph, point: Point) -> dict[str, Any]:
    """What a method finds on a graph at the fraction of the point."""
    peak_bytes = simulate_stock(graph).peak_bytes
    floor_bytes = find_peak_bound(graph).peak_bytes
    budget_bytes = int(floor_bytes + point["fraction"] * (peak_bytes - floor_bytes))
    solution = solve(
        graph, budget_bytes, solver=solver_of(point["method"]), time_limit_s=point["time_limit_s"], seed=point["seed"]
    )
    return {
        "budget_bytes": budget_bytes,
        "peak_share": budget_bytes / peak_bytes,
        "status": solution.status.value,
        "cost": None if solution.simulation is None else solution.simulation.cost,
        "overhead": None if solution.simulation is None else solution.simulation.overhead,
        "bound": solution.cost_lower_bound / graph.baseline_cost - 1,
        "solve_time_s": solution.solve_time_s,
    }


def ratios(done: list[dict[str, Any]], model: str, method: str) -> list[float]:
    """Cost of a method over the best known lower bound of the optimum, at each budget at which it has a schedule."""
    found = []
    for fraction in FRACTIONS:
        here = {e["point"]["method"]: e["result"] for e in done if _at(e, model, fraction)}
        bound = max(result["bound"] for result in here.values())
        if method in here and here[method]["cost"] is not None:
            found.append((1 + here[method]["overhead"]) / (1 + bound))
    return found


def geometric_mean(numbers: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else None


def _at(entry: dict[str, Any], model: str, fraction: float) -> bool:
    return entry["point"]["model"] == model and entry["point"]["fraction"] == fraction


def table(done: list[dict[str, Any]]) -> str:
    models = [model for model in MODELS if any(entry["point"]["model"] == model for entry in done)]
    means = [(model, PUBLISHED[model], *(geometric_mean(ratios(done, model, m)) for m in METHODS)) for model in models]
    ratios_table = tabulate(means, ("model", "published LP", *METHODS), floatfmt=".4f", missingval="-")
    return (
        f"Figure 5: overhead in percent, * proved optimal\n\n{overheads(done, models)}\n\n"
        f"Table 2: geometric mean of cost over the optimum or its bound\n\n{ratios_table}\n"
    )


def overheads(done: list[dict[str, Any]], models: Sequence[str]) -> str:
    """A line a model and budget, a column a method."""
    rows = []
    for model in models:
        for fraction in FRACTIONS:
            here = {e["point"]["method"]: e["result"] for e in done if _at(e, model, fraction)}
            share = here[METHODS[0]]["peak_share"]
            rows.append((model, f"{share:.0%}", *(_percent(here[method]) for method in METHODS)))
    return tabulate(rows, ("model", "budget", *METHODS))


def _percent(result: dict[str, Any]) -> str:
    if result["overhead"] is None:
        return "-"
    return f"{100 * result['overhead']:.3f}{'*' if result['status'] == 'OPTIMAL' else ''}"


def plot(done: list[dict[str, Any]], models: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(models), 4), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for index, method in enumerate(METHODS):
            results = [e["result"] for e in done if e["point"]["model"] == model and e["point"]["method"] == method]
            there = sorted((r["budget_bytes"] / 2**30, 1 + r["overhead"]) for r in results if r["overhead"] is not None)
            style = "-" if index < 10 else "--"
            axes.plot(
                *(zip(*there, strict=True) if there else ((), ())), style, marker=".", color=f"C{index}", label=method
            )
        axes.set_title(model)
        axes.set_xlabel("budget, GiB")
        axes.set_ylabel("cost over the cost without rematerialization")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    parser.add_argument("--relaxation-time-limit", type=float, default=100.0, help="seconds for each checkmate_lp")
    add_options(parser)
    options = parser.parse_args(arguments)

    def limit_s(method: str) -> float:
        return options.relaxation_time_limit if method.startswith("checkmate_lp") else options.time_limit

    points = [
        {"model": model, "fraction": fraction, "method": method, "time_limit_s": limit_s(method), "seed": 0}
        for model in options.models
        for fraction in FRACTIONS
        for method in METHODS
    ]
    folder = RESULTS_FOLDER / "checkmate"
    done = run_points(points, compute, CHECKMATE, part="budget_curves", runner=runner_of(options))
    write_page()
    print(table(done))
    plot(done, [model for model in FIGURE_5 if model in options.models] or options.models, folder / "figure5.png")


if __name__ == "__main__":
    main()
