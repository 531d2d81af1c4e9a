"""Rematerialization under XLA, model by budget: what `train_on_batch` takes in memory and time, and what it trains.

    python -m experiments.xla.table [--model NAME ...] [--share 0.8 ...]

Each model is planned by `checkmate_tf.rematerialize` for shares of its stock step's peak. Predicted and compiled peaks
are the plan's, the latter by XLA's buffer assignment; the step's own is what the allocator counts while
`train_on_batch` runs, in a pool that is reserved before. Times are paired with those of the stock model. Weights and
momentums after the first step differ by the largest difference of a tensor over the tensor's largest entry; those that
are rounding alone, below 1e-5 of the largest momentum, are left out. Rows that are in the results are not run again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.measurement.runs import reserve_pool
from experiments.numbers.differences import are_compared, largest_difference
from experiments.peak_table import step_peak, time_ratio
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.models import BATCH_SIZE, MODELS, build
from experiments.xla.rows import table_of

SHARES = (0.8, 0.6, 0.4)
RESULTS = RESULTS_FOLDER / "xla.csv"
COLUMNS = (
    "model", "batch_size", "share", "stock_peak_bytes", "stock_step_peak_bytes", "budget_bytes",
    "predicted_peak_bytes", "compiled_peak_bytes", "step_peak_bytes", "overhead", "planning_s", "time_ratio",
    "differ_by", "least_budget_bytes",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--share", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="of the solver, for each budget")
    parser.add_argument("--repeats", type=int, default=7, help="paired timings of stock and rewritten step")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = points(options.model, options.share, options.batch_size)
    settings = {"time_limit_s": options.time_limit_s, "repeats": options.repeats}
    print(table(run_apart("experiments.xla.table", wanted, options.output, COLUMNS, settings=settings)))


def points(
    models: Sequence[str] = tuple(MODELS), shares: Sequence[float] = SHARES, batch_size: int = BATCH_SIZE
) -> list[Point]:
    return [{"model": name, "batch_size": batch_size, "share": share} for name in models for share in shares]


def compute(point: Point) -> dict[str, Any]:
    """A fresh model, rematerialized for a share of the stock peak and trained beside the stock one."""
    reserve_pool()
    stock, data = build(point["model"], batch_size=point["batch_size"])
    stock.train_on_batch(*data)
    expected = state(stock)
    row = {"stock_step_peak_bytes": step_peak(stock, data)}
    model, data = build(point["model"], batch_size=point["batch_size"])
    began = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(
            model, data=data, budget=f"{100 * point['share']:g}%", time_limit_s=point["time_limit_s"], progress=False
        )
    except InfeasibleBudgetError as error:
        return row | {"error": str(error), "least_budget_bytes": error.least_budget_bytes}
    planning_s = time.perf_counter() - began
    model.train_on_batch(*data)
    differ_by = largest_difference(state(model), expected, are_compared(expected, len(model.optimizer.momentums)))
    ratios = [time_ratio(model, stock, data, stock_first=bool(turn % 2)) for turn in range(point["repeats"])]
    return row | {
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "compiled_peak_bytes": plan.measured_peak_bytes,
        "step_peak_bytes": step_peak(model, data),
        "overhead": plan.overhead,
        "planning_s": planning_s,
        "time_ratio": median(ratios) if ratios else None,
        "differ_by": differ_by,
    }


def state(model: keras.Model) -> list[np.ndarray]:
    """Momentums, which after one step are the gradients times the learning rate, and weights."""
    return [np.asarray(variable) for variable in (*model.optimizer.momentums, *model.weights)]


if __name__ == "__main__":
    main()
