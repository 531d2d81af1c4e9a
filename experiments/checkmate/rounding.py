"""Checkmate, Figure 8 and appendix D: two-phase rounding of the relaxation, randomized against deterministic.

For VGG16 and MobileNet, and every allowance epsilon: memory and cost of the schedule of each rounding of S*, whether or
not it is within the budget. The relaxation has the budget rows of the stages' own nodes. Published: randomized rounding
spreads, deterministic rounding is consistently cheaper, and the fixed epsilon 0.1 is too careful for MobileNet.

    python -m experiments.checkmate.rounding
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.rounding import rounded
from checkmate_tf.solvers.checkmate.stage_space import own_events, presolved_space
from checkmate_tf.solvers.stages import schedule_of_checkpoints
from experiments.checkmate.page import write_page
from experiments.layer_graphs import committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, in_order, run_points, runner_of

FRACTIONS = {"vgg16": 0.5, "mobilenet": 0.3}
ALLOWANCES = (0.0, 0.05, 0.1, 0.2)
ROUNDINGS = ("deterministic", "swept", "randomized")


def compute(point: Point) -> dict[str, Any]:
    graph = committed_graph(point["model"])
    peak_bytes = simulate_stock(graph).peak_bytes
    floor_bytes = find_peak_bound(graph).peak_bytes
    budget_bytes = int(floor_bytes + FRACTIONS[point["model"]] * (peak_bytes - floor_bytes))
    allowed_bytes = int(budget_bytes * (1 - point["allowance"]))
    best = solve(graph, budget_bytes, solver="block_relaxation", time_limit_s=10)
    cutoff = None if best.simulation is None else 2 * (best.simulation.cost - graph.baseline_cost)
    space = presolved_space(graph, allowed_bytes, most_extra_cost=cutoff)
    model = build_model(graph, allowed_bytes, replace(space, binding=own_events(space)))
    answer = backends.relax(model, "auto", time_limit_s=point["time_limit_s"])
    result: dict[str, Any] = {"budget_bytes": budget_bytes, "baseline_cost": graph.baseline_cost}
    if answer.x is None:
        return result
    for rounding in ROUNDINGS:
        runs = []
        for retain in rounded(model.retain(answer.x), rounding, num_samples=point["samples"], seed=point["seed"]):
            simulation = simulate(graph, schedule_of_checkpoints(graph, retain))
            runs.append((simulation.peak_bytes, simulation.overhead))
        result[rounding] = runs
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100, help="random draws, and thresholds")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each relaxation")
    add_options(parser)
    options = parser.parse_args(arguments)
    points = [
        {"model": m, "allowance": a, "samples": options.samples, "seed": 0, "time_limit_s": options.time_limit}
        for m in FRACTIONS
        for a in ALLOWANCES
    ]
    folder = RESULTS_FOLDER / "checkmate"
    done = run_points(points, compute, CHECKMATE, part="rounding", runner=runner_of(options))
    write_page()
    print(table(done))
    _plot(done, folder / "figure8.png")


def table(done: list[dict[str, Any]]) -> str:
    rows = [row for entry in in_order(done, model=list(FRACTIONS), allowance=ALLOWANCES) for row in _rows(entry)]
    head = ("model", "epsilon", "rounding", "schedules", "within budget", "least overhead, %", "mean overhead, %")
    return tabulate(rows, head, floatfmt=".3f", missingval="-") + "\n"


def _rows(entry: dict[str, Any]) -> list[tuple[Any, ...]]:
    point, result = entry["point"], entry["result"]
    rows = []
    for rounding in ROUNDINGS:
        runs = result.get(rounding, [])
        fitting = [100 * overhead for peak, overhead in runs if peak <= result["budget_bytes"]]
        mean = 100 * float(np.mean([overhead for _, overhead in runs])) if runs else None
        rows.append(
            (point["model"], point["allowance"], rounding, len(runs), len(fitting), min(fitting, default=None), mean)
        )
    return rows


def _plot(done: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(FRACTIONS)), FRACTIONS, strict=True):
        entries = [entry for entry in done if entry["point"]["model"] == model]
        for rounding, marker in zip(ROUNDINGS[::-1], ".x*", strict=True):
            runs = [run for entry in entries for run in entry["result"].get(rounding, [])]
            axes.scatter(
                [peak / 2**30 for peak, _ in runs],
                [1 + overhead for _, overhead in runs],
                marker=marker,
                label=rounding,
            )
        axes.axvline(entries[0]["result"]["budget_bytes"] / 2**30, linestyle=":", color="black")
        axes.set_title(model)
        axes.set_xlabel("peak memory, GiB")
        axes.set_ylabel("cost over the cost without rematerialization")
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
