"""Steps that XLA compiles, predicted with measured costs and with a roofline's, against what they take.

    python -m experiments.xla.costs [--model NAME ...] [--budget 60%] [--pairs 8] [--output FILE.csv]

Each model of experiments.peers is planned in a process of its own, once with each kind of costs, with nothing known
from before; a row is a kind. Predicted is the sum of the costs of all nodes, measured the fastest of `train_on_batch`;
the measured overhead is the median of pairs of stock and rematerialized steps in turn.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, computed_apart, environment, run_rows

MODELS = ("resnet", "unet", "densenet", "encoder")
COSTS = ("measured", "roofline")
COLUMNS = (
    "model", "budget", "costs", "predicted_stock_s", "stock_s", "predicted_overhead", "measured_overhead", "step_s",
    "num_recomputed", "planning_s", "commit", "machine",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", default="60%", help="of the stock step's peak")
    parser.add_argument("--pairs", type=int, default=8, help="timed steps of either model")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "xla_costs.csv")
    options = parser.parse_args()
    points = [{"model": name, "budget": options.budget, "costs": costs} for name in options.model for costs in COSTS]
    run_rows(points, lambda point: compute(point, options.pairs), options.output, COLUMNS, digits=4)


def compute(point: Point, pairs: int) -> dict[str, Any]:
    around = environment()
    with TemporaryDirectory() as cache:
        row = computed_apart("experiments.xla.costs:train", {**point, "pairs": pairs}, {"XDG_CACHE_HOME": cache})
    print(point, row, file=sys.stderr)
    return {**row, "commit": around["commit"], "machine": around["machine"]}


def train(point: Point) -> dict[str, Any]:
    import checkmate_tf
    from experiments.peers.models import build

    models = []
    for _ in range(2):
        model, batch = build(point["model"], "stock")
        model.jit_compile = True
        models.append(model)
    stock, model = models
    began = time.perf_counter()
    plan = checkmate_tf.rematerialize(
        model, data=batch, budget=point["budget"], costs=point["costs"], time_limit_s=30, progress=False
    )
    row = {
        "planning_s": time.perf_counter() - began,
        "predicted_stock_s": plan.graph.baseline_cost / 1e9,
        "predicted_overhead": plan.overhead,
        "num_recomputed": len(plan.recomputed),
    }
    times: dict[int, list[float]] = {0: [], 1: []}
    for number in range(point["pairs"] + 1):
        for which, one in enumerate((stock, model)):
            began = time.perf_counter()
            one.train_on_batch(*batch)
            if number:  # the first step compiles
                times[which].append(time.perf_counter() - began)
    ratios = [mine / theirs for theirs, mine in zip(times[0], times[1], strict=True)]
    return row | {"stock_s": min(times[0]), "step_s": min(times[1]), "measured_overhead": median(ratios) - 1}


if __name__ == "__main__":
    main()
