"""Rematerialization under XLA, model by budget: what `train_on_batch` takes in memory and time, and what it trains.

    python -m experiments.xla.table [--model NAME ...] [--share 0.8 ...]

Each model is planned by `checkmate_tf.rematerialize` for shares of its stock step's peak. Predicted and compiled peaks
are the plan's, the latter by XLA's buffer assignment; the step's own is what the allocator counts while
`train_on_batch` runs, in a pool that is reserved before. Times are paired with those of the stock model. Weights and
momentums after the first step differ by the largest difference of a tensor over the tensor's largest entry; those that
are rounding alone, below 1e-5 of the largest momentum, are left out. Rows that are in the results are not run again.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.measurement.runs import reserve_pool
from experiments.nineteen import largest_difference
from experiments.peak_table import step_peak, time_ratio
from experiments.running import RESULTS_FOLDER, read_rows
from experiments.xla.models import BATCH_SIZE, MODELS, build
from experiments.xla.rows import append_row, table

SHARES = (0.8, 0.6, 0.4)
RESULTS = RESULTS_FOLDER / "xla.csv"
COLUMNS = (
    "model",
    "batch_size",
    "share",
    "stock_peak_bytes",
    "stock_step_peak_bytes",
    "budget_bytes",
    "predicted_peak_bytes",
    "compiled_peak_bytes",
    "step_peak_bytes",
    "overhead",
    "planning_s",
    "time_ratio",
    "differ_by",
    "least_budget_bytes",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--share", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="of the solver, for each budget")
    parser.add_argument("--repeats", type=int, default=7, help="paired timings of stock and rewritten step")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    reserve_pool()
    for name in options.model:
        measure_model(name, options)
    print(table(read_rows(options.output), COLUMNS))


def measure_model(name: str, options: argparse.Namespace) -> None:
    """Adds the rows of a model that are missing."""
    known = {(row["model"], float(row["share"])) for row in read_rows(options.output)}
    shares = [share for share in options.share if (name, share) not in known]
    if not shares:
        return
    stock, data = build(name, batch_size=options.batch_size)
    stock.train_on_batch(*data)
    expected = state(stock)
    stock_step_peak_bytes = step_peak(stock, data)
    for share in shares:
        found = {"model": name, "batch_size": options.batch_size, "share": share}
        found |= {"stock_step_peak_bytes": stock_step_peak_bytes, **measured(name, share, stock, expected, options)}
        append_row(options.output, COLUMNS, found)


def measured(
    name: str, share: float, stock: keras.Model, expected: list[np.ndarray], options: argparse.Namespace
) -> dict[str, Any]:
    """A fresh model, rematerialized for a share of the stock peak and trained beside the stock one."""
    model, data = build(name, batch_size=options.batch_size)
    began = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(
            model, data=data, budget=f"{100 * share:g}%", time_limit_s=options.time_limit_s, progress=False
        )
    except InfeasibleBudgetError as error:
        return {"least_budget_bytes": error.least_budget_bytes}
    planning_s = time.perf_counter() - began
    model.train_on_batch(*data)
    found = state(model)
    ratios = [time_ratio(model, stock, data, stock_first=bool(turn % 2)) for turn in range(options.repeats)]
    return {
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "compiled_peak_bytes": plan.measured_peak_bytes,
        "step_peak_bytes": step_peak(model, data),
        "overhead": round(plan.overhead, 4),
        "planning_s": round(planning_s, 1),
        "time_ratio": round(median(ratios), 3),
        "differ_by": f"{largest_difference(found, expected, len(model.optimizer.momentums)):.1e}",
    }


def state(model: keras.Model) -> list[np.ndarray]:
    """Momentums, which after one step are the gradients times the learning rate, and weights."""
    return [np.asarray(variable) for variable in (*model.optimizer.momentums, *model.weights)]


if __name__ == "__main__":
    main()
