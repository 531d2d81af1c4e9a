"""Checkmate, section 5.1: rounding R and S of the relaxation together, each entry by itself.

Published: of 50,000 draws for VGG16 at a quarter of its default budget none is feasible, and neither is the rounding at
0.5. Here the layer graph's largest node takes most of the default memory, so budgets lie between the two. A draw is
correct where it satisfies (1b) and (1c), and feasible where the schedule of its R keeps within the budget, too.

    python -m experiments.checkmate.naive_rounding
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import from_stages
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.stage_space import edges_of, full_space
from checkmate_tf.solvers.stages import schedule_of_checkpoints
from experiments.checkmate.page import write_page
from experiments.layer_graphs import committed_graph
from experiments.running import CHECKMATE, Point, add_options, in_order, run_points, runner_of

MODELS = ("vgg16", "unet")
FRACTIONS = (0.9, 0.5, 0.25)
_BATCH = 200  # draws looked at together


def compute(point: Point) -> dict[str, Any]:
    """Counts correct and feasible draws, and says the same of the two deterministic roundings."""
    graph = committed_graph(point["model"])
    least_bytes, peak_bytes = find_peak_bound(graph).peak_bytes, simulate_stock(graph).peak_bytes
    budget_bytes = int(least_bytes + point["fraction"] * (peak_bytes - least_bytes))
    model = build_model(graph, budget_bytes, full_space(graph), form=CheckmateLp.paper().form)
    answer = backends.relax(model, "auto", time_limit_s=point["time_limit_s"])
    if answer.x is None:
        return {}
    recompute, retain = model.recompute(answer.x), model.retain(answer.x)
    random = np.random.default_rng(point["seed"])
    correct = feasible = 0
    for _ in range(point["draws"] // _BATCH):
        drawn = random.random((_BATCH, *recompute.shape)) < recompute
        right = find_correct(graph, drawn, random.random((_BATCH, *retain.shape)) < retain)
        correct += int(right.sum())
        feasible += sum(_fits(graph, chosen, budget_bytes) for chosen in drawn[right])
    half = recompute > 0.5, retain > 0.5
    two_phases = schedule_of_checkpoints(graph, half[1])
    return {
        "correct": correct,
        "feasible": feasible,
        "half_correct": bool(find_correct(graph, half[0][None], half[1][None])[0]),
        "two_phase_feasible": simulate(graph, two_phases).peak_bytes <= budget_bytes,
    }


def find_correct(graph: Graph, recompute: np.ndarray, retain: np.ndarray) -> np.ndarray:
    """Tells which of several R and S satisfy (1b) and (1c), bool [num_draws].

    `recompute` is bool [num_draws, num_stages, num_nodes], `retain` bool [num_draws, num_stages + 1, num_values].
    """
    edges, producer = edges_of(graph), graph.arrays.producer
    there = retain[:, :-1] | recompute[:, :, producer]
    return (recompute[:, :, edges.user] <= there[:, :, edges.value]).all(axis=(1, 2)) & (retain[:, 1:] <= there).all(
        axis=(1, 2)
    )


def _fits(graph: Graph, recompute: np.ndarray, budget_bytes: int) -> bool:
    return simulate(graph, from_stages(graph, recompute)).peak_bytes <= budget_bytes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=50_000)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each relaxation")
    add_options(parser)
    options = parser.parse_args(arguments)
    points = [
        {"model": m, "fraction": f, "draws": options.draws, "seed": 0, "time_limit_s": options.time_limit}
        for m in MODELS
        for f in FRACTIONS
    ]
    done = run_points(points, compute, CHECKMATE, part="naive_rounding", runner=runner_of(options))
    write_page()
    print(table(done))


def table(done: list[dict[str, Any]]) -> str:
    rows = []
    for entry in in_order(done, model=MODELS, fraction=FRACTIONS):
        point, result = entry["point"], entry["result"]
        found = [result.get(name) for name in ("correct", "feasible", "half_correct", "two_phase_feasible")]
        rows.append((point["model"], f"{point['fraction']:.0%}", point["draws"], *found))
    head = (
        "model", "budget between largest step and peak", "draws of R and S", "correct", "feasible",
        "R and S at 0.5 correct", "two-phase rounding feasible",
    )  # fmt: skip
    return tabulate(rows, head, missingval="-") + "\n"


if __name__ == "__main__":
    main()
