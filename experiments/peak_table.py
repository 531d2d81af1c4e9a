"""Measured peak of a training step, model by budget, and its time against the stock step.

    python -m experiments.peak_table [--model NAME ...] [--shares 0.8 ...] [--repeats 24] [--output FILE.csv]

Each model and budget runs in a process of its own. Budgets are shares of the stock step's peak as the allocator
measures it; all steps are whole ones (gradients, update, metrics) on tensors of megabytes, through
`model.train_on_batch` and through `model.fit` on a dataset. Peaks are the highest of several steps: what runs beside
the gradients differs from step to step. Times are medians of ratios of pairs, stock first in every other one.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from experiments.models import apply_unet, apply_unit
from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

MODELS = ("conv_chain", "resnet", "unet", "mobilenet", "densenet", "transformer")
# No convolution nets of images, and no budget as tight as theirs.
OTHER_MODELS = ("lstm", "lstm_unrolled", "conv3d")
SHARES = (1.0, 0.8, 0.6, 0.4)
OTHER_SHARES = (1.0, 0.8, 0.6)
BATCH_SIZE = 8
_PEAK_STEPS = 8
RESULTS = RESULTS_FOLDER / "peak_table.csv"
COLUMNS = (
    "model", "share", "batch_size", "stock_peak_bytes", "budget_bytes", "stock_predicted_bytes",
    "predicted_peak_bytes", "planned_peak_bytes", "measured_peak_bytes", "fit_peak_bytes", "overhead", "gap", "solver",
    "costs", "num_cores", "time_ratio", "time_ratio_low", "time_ratio_high", "planning_s", "num_nodes", "num_positions",
    "recomputed", "least_budget_bytes", "seed",
)  # fmt: skip


def points(models: Sequence[str] = (*MODELS, *OTHER_MODELS), shares: Sequence[float] = SHARES) -> list[Point]:
    """Each model with each budget that is measured of it."""
    return [
        {"model": name, "share": share}
        for name in models
        for share in shares
        if name in MODELS or share in OTHER_SHARES
    ]


def compute(point: Point) -> dict[str, Any]:
    """Measures a model at a budget; the point also says `repeats`, `costs` and `time_limit_s`."""
    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError

    stock, batch = build(point["model"])
    # Reserves its region of the allocator's pool: the stock step is measured in the same one.
    checkmate_tf.rematerialize(
        build(point["model"])[0], data=batch, budget="1000%", options=checkmate_tf.Options(costs="flops"), measure=False
    )
    stock_peak = max(_fit_peak(stock, batch), *(step_peak(stock, batch) for _ in range(_PEAK_STEPS)))
    # The full budget has room for the chunks, no more: it is there for the time of a step without recomputation.
    budget_bytes = int(stock_peak * (1.02 if point["share"] == 1 else point["share"]))
    row = {
        "batch_size": len(batch[1]),
        "stock_peak_bytes": stock_peak,
        "budget_bytes": budget_bytes,
        "costs": point["costs"],
        "num_cores": len(os.sched_getaffinity(0)),
        "seed": 0,
    }
    model, _ = build(point["model"])
    started = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(
            model,
            data=batch,
            budget=budget_bytes,
            time_limit_s=point["time_limit_s"],
            options=checkmate_tf.Options(costs=point["costs"]),
        )
    except InfeasibleBudgetError as error:
        return row | {"error": str(error), "least_budget_bytes": error.least_budget_bytes}
    planning_s = time.perf_counter() - started
    peak = max(step_peak(model, batch) for _ in range(_PEAK_STEPS))
    fit_peak = _fit_peak(model, batch)
    ratios = [time_ratio(model, stock, batch, stock_first=bool(turn % 2)) for turn in range(point["repeats"])]
    low, _, high = quantiles(ratios) if len(ratios) > 1 else [None] * 3
    return row | {
        "stock_predicted_bytes": plan.predicted_stock_peak_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "planned_peak_bytes": plan.measured_peak_bytes,
        "measured_peak_bytes": peak,
        "fit_peak_bytes": fit_peak,
        "overhead": plan.overhead,
        "gap": plan.solution.gap,
        "solver": plan.solution.solver,
        "time_ratio": median(ratios) if ratios else None,
        "time_ratio_low": low,
        "time_ratio_high": high,
        "planning_s": planning_s,
        "num_nodes": len(plan.graph.nodes),
        "num_positions": len(plan.schedule),
        "recomputed": len(plan.recomputed),
    }


def table(rows: Sequence[Row]) -> str:
    """Model x budget, in MiB and ratios."""
    from tabulate import tabulate

    names = (*MODELS, *OTHER_MODELS)
    lines = []
    for row in sorted(rows, key=lambda row: (names.index(row["model"]), -float(row["share"]))):
        line = [row["model"], f"{float(row['share']):.0%}"]
        if row["error"]:
            sizes = [_mebibytes(row[key]) for key in ("stock_peak_bytes", "budget_bytes")]
            lines.append([*line, *sizes, *[None] * 6, row["error"][:60]])
            continue
        keys = ("stock_peak_bytes", "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes", "fit_peak_bytes")
        peaks = [int(row[key]) for key in keys[3:] if row[key]]
        over = max(peaks) / int(row["budget_bytes"]) - 1
        ratio = float(row["time_ratio"]) if row["time_ratio"] else None
        line += [_mebibytes(row[key]) for key in keys]
        lines.append([*line, f"{over:+.1%}", f"{float(row['overhead']):.1%}", ratio, ""])
    headers = ["model", "share", "stock", "budget", "predicted", "measured", "in fit", "above", "overhead"]
    headers += ["time ratio", "error"]
    return tabulate(lines, headers, floatfmt=(*[".1f"] * 9, ".2f"))


def _mebibytes(size: str) -> float | None:
    return int(size) / 2**20 if size else None


def page() -> str:
    """The results that are kept, in markdown."""
    rows = read_rows(RESULTS)
    return _PAGE.format(table=table(rows), made_with=made_with(rows))


_PAGE = """# Peaks and step times, model by budget

Written by `python -m experiments.pages peak_table.md` from `peak_table.csv`, which `python -m experiments.peak_table`
measures. Budgets are shares of the stock step's peak in the same process. Peaks are in MiB, by the allocator, of whole
steps through `train_on_batch` ("measured") and through `fit` on a dataset. "Above" is the highest measured peak divided
by the budget. The overhead is predicted. The time ratio is the measured step time divided by that of the stock step. An
empty cell was not measured.

```text
{table}
```

{made_with}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*MODELS, *OTHER_MODELS)
    parser.add_argument("--model", nargs="*", default=list(names), choices=names)
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    parser.add_argument("--repeats", type=int, default=24, help="pairs of timed steps, 0 for none")
    parser.add_argument("--costs", default="measured", help="of the plans; measured ones on a quiet machine only")
    parser.add_argument("--time-limit-s", type=float, default=20.0, help="of the solver, for each budget")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    settings = {"repeats": options.repeats, "costs": options.costs, "time_limit_s": options.time_limit_s}
    wanted = points(options.model, options.shares)
    print(table(run_apart("experiments.peak_table", wanted, options.output, COLUMNS, settings=settings)))


def build(name: str) -> Any:
    """A compiled model of the table and a batch for it."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
    if name in OTHER_MODELS:
        return _build_other(name)
    random = np.random.default_rng(0)
    labels = np.arange(BATCH_SIZE) % 10
    if name == "transformer":
        inputs = keras.Input((256,), dtype="int64")
        hidden = layers.Embedding(1000, 128)(inputs)
        for _ in range(4):
            attended = layers.MultiHeadAttention(4, 32, dropout=0.1)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden + attended)
            wide = layers.Dense(512, activation="gelu")(hidden)
            hidden = layers.LayerNormalization()(hidden + layers.Dense(128)(wide))
        batch = random.integers(0, 1000, (BATCH_SIZE, 256)), labels
    else:
        inputs = keras.Input((96, 96, 3))
        hidden = _IMAGE_BODIES[name](inputs)
        batch = random.normal(size=(BATCH_SIZE, 96, 96, 3)).astype("float32"), labels
    if name == "transformer":
        hidden = layers.GlobalAveragePooling1D()(hidden)
    elif len(hidden.shape) == 4:
        hidden = layers.GlobalAveragePooling2D()(hidden)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(hidden))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, batch


def _build_other(name: str) -> Any:
    import keras
    import numpy as np
    from keras import layers

    if name == "conv3d":
        batch_size, inputs = 4, keras.Input((16, 48, 48, 2))
        hidden = inputs
        for _ in range(8):
            hidden = layers.Conv3D(8, 3, padding="same", activation="relu")(hidden)
        hidden = layers.GlobalAveragePooling3D()(hidden)
    else:
        num_steps, batch_size = (32 if name == "lstm" else 12), 256  # states of 256 KiB, the least that is counted
        inputs = keras.Input((num_steps, 64))
        hidden = inputs
        for _ in range(3):
            hidden = layers.LSTM(256, return_sequences=True, unroll=name == "lstm_unrolled")(hidden)
        hidden = layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(hidden))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    x = np.random.default_rng(0).normal(size=(batch_size, *inputs.shape[1:])).astype("float32")
    return model, (x, np.arange(batch_size) % 10)


def _conv_chain(hidden: Any) -> Any:
    from keras import layers

    for _ in range(16):
        hidden = layers.Conv2D(24, 3, padding="same", activation="relu")(hidden)
    return hidden


def _resnet(hidden: Any) -> Any:
    hidden = apply_unit(hidden, 24)
    for _ in range(5):
        hidden = hidden + apply_unit(apply_unit(hidden, 24), 24)
    return hidden


def _mobilenet(hidden: Any) -> Any:
    import keras

    return keras.applications.MobileNetV2(
        input_tensor=hidden, input_shape=(96, 96, 3), alpha=1.0, weights=None, include_top=False
    ).output


def _densenet(hidden: Any) -> Any:
    from keras import layers

    hidden = apply_unit(hidden, 16)
    for block in range(3):
        for _ in range(4):
            hidden = layers.Concatenate()([hidden, apply_unit(hidden, 12)])
        if block < 2:
            hidden = layers.AveragePooling2D(2)(layers.Conv2D(32, 1)(hidden))
    return hidden


_IMAGE_BODIES = {
    "conv_chain": _conv_chain,
    "resnet": _resnet,
    "unet": lambda hidden: apply_unet(hidden, (16, 32, 48), 64, apply_bottom=apply_unit),
    "mobilenet": _mobilenet,
    "densenet": _densenet,
}


def step_peak(model: Any, batch: Any) -> int:
    """The allocator's peak of one step, with what is resident: variables and batch."""
    from checkmate_tf.profiling.memory import measure_allocator_peak_bytes

    model.train_on_batch(*batch)
    above = measure_allocator_peak_bytes(lambda: model.train_on_batch(*batch))
    if above is None:
        raise SystemExit("the CPU's allocator keeps no statistics: oneDNN is off")
    return above + _resident_bytes(model)


def _fit_peak(model: Any, batch: Any) -> int:
    """The allocator's peak of the steps of `fit`, with what is resident.

    Without the first: its batch comes beside the one that told the sizes.
    """
    import tensorflow as tf

    from checkmate_tf.measurement.step_meter import StepMeter

    meter = StepMeter()
    data = tf.data.Dataset.from_tensors(batch).repeat(_PEAK_STEPS)
    model.fit(data, verbose=0, shuffle=False, callbacks=[meter])
    return max(meter.peaks_bytes[1:]) + _resident_bytes(model)


def _resident_bytes(model: Any) -> int:
    import numpy as np

    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    # The batch is allocated within the step: it is in what the allocator counts.
    return sum(np.asarray(variable).nbytes for variable in variables)


def time_ratio(model: Any, stock: Any, batch: Any, *, stock_first: bool) -> float:
    """The time of a step over that of the stock model's."""
    if stock_first:
        before = _seconds(stock, batch)
        return _seconds(model, batch) / before
    return _seconds(model, batch) / _seconds(stock, batch)


def _seconds(model: Any, batch: Any) -> float:
    started = time.perf_counter()
    model.train_on_batch(*batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
