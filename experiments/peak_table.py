"""Measured peak of a training step, model by budget, and its time against the stock step.

    python -m experiments.peak_table [--model NAME ...] [--repeats 24] [--output DIR]

Each model runs in a process of its own, and each result is kept: run it again to go on where it stopped. Budgets
are shares of the stock step's peak as the allocator measures it; all steps are whole ones (gradients, update, metrics)
on tensors of megabytes, through `model.train_on_batch` and through `model.fit` on a dataset. Peaks are the highest of
several steps: what runs beside the gradients differs from step to step. Times are medians of ratios of pairs, stock
first in every other one.
oneDNN is on: the CPU's allocator keeps statistics only then.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

MODELS = ("conv_chain", "resnet", "unet", "mobilenet", "densenet", "transformer")
SHARES = (1.0, 0.8, 0.6, 0.4)
BATCH_SIZE = 8
_PEAK_STEPS = 8
RESULTS = Path(__file__).parent / "results" / "peak_table"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    parser.add_argument("--repeats", type=int, default=24, help="pairs of timed steps, 0 for none")
    parser.add_argument("--costs", default="measured", help="of the plans; measured ones on a quiet machine only")
    parser.add_argument("--time-limit-s", type=float, default=20.0, help="of the solver, for each budget")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.in_process:
        _run_model(options.model[0], options)
        return
    for name in options.model:
        path = options.output / f"{name}.json"
        if not path.exists() or len(json.loads(path.read_text())["budgets"]) < len(options.shares):
            arguments = ["--model", name, "--repeats", str(options.repeats), "--costs", options.costs]
            arguments += ["--time-limit-s", str(options.time_limit_s), "--shares", *map(str, options.shares)]
            command = [sys.executable, "-m", "experiments.peak_table", "--in-process", "--output", str(options.output)]
            environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
            subprocess.run([*command, *arguments], check=True, env=environment)
    print(table(results_in(options.output)))


def results_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def page() -> str:
    """The results that are kept, in markdown."""
    return _PAGE.format(table=table(results_in(RESULTS)))


_PAGE = """# Peaks and step times, model by budget

Written by `python -m experiments.pages peak_table.md` from `peak_table/`, which `python -m experiments.peak_table`
measures. Budgets are shares of the stock step's peak. Peaks are in MiB, by the allocator, of whole steps through
`train_on_batch` ("measured") and through `fit` on a dataset; "above" is the higher of the two over the budget. The
overhead is predicted; the time ratio is that of measured step times over stock's.

```text
{table}
```
"""


def table(results: list[dict[str, Any]]) -> str:
    """Model x budget, in MiB and ratios."""
    from tabulate import tabulate

    rows = []
    for result in results:
        for entry in sorted(result["budgets"], key=lambda entry: -entry["share"]):
            row = [result["model"], f"{entry['share']:.0%}", entry["budget_bytes"] / 2**20]
            if entry["error"]:
                rows.append([*row, *[None] * 6, entry["error"][:60]])
                continue
            keys = ("predicted_peak_bytes", "measured_peak_bytes", "fit_peak_bytes")
            peaks = [entry[key] / 2**20 for key in keys]
            over = max(entry[key] for key in keys[1:]) / entry["budget_bytes"] - 1
            rows.append([*row, *peaks, f"{over:+.1%}", f"{entry['overhead']:.1%}", entry["time_ratio"], ""])
    headers = ["model", "budget", "MiB", "predicted", "measured", "in fit", "above", "overhead", "time ratio", "error"]
    return tabulate(rows, headers, floatfmt=(*[".1f"] * 8, ".2f"))


def build(name: str) -> Any:
    """A compiled model of the table and a batch for it."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
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


def _conv_chain(hidden: Any) -> Any:
    from keras import layers

    for _ in range(16):
        hidden = layers.Conv2D(24, 3, padding="same", activation="relu")(hidden)
    return hidden


def _unit(hidden: Any, channels: int) -> Any:
    from keras import layers

    hidden = layers.Conv2D(channels, 3, padding="same", use_bias=False)(hidden)
    return layers.ReLU()(layers.BatchNormalization()(hidden))


def _resnet(hidden: Any) -> Any:
    hidden = _unit(hidden, 24)
    for _ in range(5):
        hidden = hidden + _unit(_unit(hidden, 24), 24)
    return hidden


def _unet(hidden: Any) -> Any:
    from keras import layers

    kept = []
    for channels in (16, 32, 48):
        hidden = _unit(_unit(hidden, channels), channels)
        kept.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    hidden = _unit(hidden, 64)
    for channels, skip in zip((48, 32, 16), reversed(kept), strict=True):
        hidden = layers.Concatenate()([layers.Conv2DTranspose(channels, 2, strides=2)(hidden), skip])
        hidden = _unit(_unit(hidden, channels), channels)
    return hidden


def _mobilenet(hidden: Any) -> Any:
    import keras

    return keras.applications.MobileNetV2(
        input_tensor=hidden, input_shape=(96, 96, 3), alpha=1.0, weights=None, include_top=False
    ).output


def _densenet(hidden: Any) -> Any:
    from keras import layers

    hidden = _unit(hidden, 16)
    for block in range(3):
        for _ in range(4):
            hidden = layers.Concatenate()([hidden, _unit(hidden, 12)])
        if block < 2:
            hidden = layers.AveragePooling2D(2)(layers.Conv2D(32, 1)(hidden))
    return hidden


_IMAGE_BODIES = {
    "conv_chain": _conv_chain,
    "resnet": _resnet,
    "unet": _unet,
    "mobilenet": _mobilenet,
    "densenet": _densenet,
}


def _run_model(name: str, options: argparse.Namespace) -> None:
    import keras
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.profiling.device import find_default_device, make_device_key

    stock, batch = build(name)
    # Reserves its region of the allocator's pool: the stock step is measured in the same one.
    checkmate_tf.rematerialize(build(name)[0], data=batch, budget="1000%", costs="flops", measure=False)
    stock_peak = max(_fit_peak(stock, batch), *(step_peak(stock, batch) for _ in range(_PEAK_STEPS)))
    path = options.output / f"{name}.json"
    result = (
        json.loads(path.read_text())
        if path.exists()
        else {
            "model": name,
            "batch_size": BATCH_SIZE,
            "stock_peak_bytes": stock_peak,
            "budgets": [],
            "machine": str(make_device_key(find_default_device())),
            "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]},
            "commit": subprocess.run(
                ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
            ).stdout.strip(),
            "seed": 0,
        }
    )
    for share in options.shares:
        if any(entry["share"] == share for entry in result["budgets"]):
            continue
        # The full budget has room for the chunks, no more: it is there for the time of a step without recomputation.
        budget_bytes = int(stock_peak * (1.02 if share == 1 else share))
        result["budgets"].append(_measure(name, share, budget_bytes, stock, batch, options))
        path.write_text(json.dumps(result, indent=1))


def _measure(
    name: str, share: float, budget_bytes: int, stock: Any, batch: Any, options: argparse.Namespace
) -> dict[str, Any]:
    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError

    model, _ = build(name)
    entry: dict[str, Any] = {"share": share, "budget_bytes": budget_bytes, "error": ""}
    started = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(
            model, data=batch, budget=budget_bytes, time_limit_s=options.time_limit_s, costs=options.costs
        )
    except InfeasibleBudgetError as error:
        return entry | {"error": str(error), "least_budget_bytes": error.least_budget_bytes}
    planning_s = time.perf_counter() - started
    peak = max(step_peak(model, batch) for _ in range(_PEAK_STEPS))
    fit_peak = _fit_peak(model, batch)
    ratios = [time_ratio(model, stock, batch, stock_first=bool(turn % 2)) for turn in range(options.repeats)]
    return entry | {
        "stock_predicted_bytes": plan.predicted_stock_peak_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "planned_peak_bytes": plan.measured_peak_bytes,
        "measured_peak_bytes": peak,
        "fit_peak_bytes": fit_peak,
        "overhead": plan.overhead,
        "gap": plan.solution.gap,
        "solver": plan.solution.solver,
        "costs": options.costs,
        "num_cores": len(os.sched_getaffinity(0)),
        "time_ratio": median(ratios) if ratios else None,
        "time_ratio_quartiles": quantiles(ratios)[::2] if len(ratios) > 1 else None,
        "planning_s": planning_s,
        "num_nodes": len(plan.graph.nodes),
        "num_steps": len(plan.schedule),
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

    from checkmate_tf.demo import StepMeter

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
