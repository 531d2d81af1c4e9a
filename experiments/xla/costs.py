"""Steps that XLA compiles, predicted with measured costs and with a roofline's, against what they take.

    python -m experiments.xla.costs [--model NAME ...] [--budget 60%] [--pairs 8]

Each model of experiments.peers is planned in a process of its own, once with each kind of costs, with nothing known
from before; a row is a kind. Predicted is the sum of the costs of all nodes, measured the fastest of `train_on_batch`;
the measured overhead is the median of pairs of stock and rematerialized steps in turn.
"""

import argparse
import os
import time
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.rows import table_of

MODELS = ("resnet", "unet", "densenet", "encoder")
COSTS = ("measured", "roofline")
RESULTS = RESULTS_FOLDER / "xla_costs.csv"
COLUMNS = (
    "model", "budget", "costs", "predicted_stock_s", "stock_s", "predicted_overhead", "measured_overhead", "step_s",
    "num_recomputed", "planning_s",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", default="60%", help="of the stock step's peak")
    parser.add_argument("--pairs", type=int, default=8, help="timed steps of either model")
    options = parser.parse_args()
    points = [{"model": name, "budget": options.budget, "costs": costs} for name in options.model for costs in COSTS]
    print(table(run_apart("experiments.xla.costs", points, RESULTS, COLUMNS, settings={"pairs": options.pairs})))


def compute(point: Point) -> dict[str, Any]:
    """A row, from a process that begins with an empty cache."""
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        return train(point)


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
        model,
        data=batch,
        budget=point["budget"],
        options=checkmate_tf.Options(costs=point["costs"]),
        time_limit_s=30,
        progress=False,
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
