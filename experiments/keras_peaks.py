"""Measured peak of training steps that are no convolution nets of images: LSTM, Conv3D, transformer.

    python -m experiments.keras_peaks [--model NAME ...] [--shares 1.0 0.8 0.6] [--output DIR]

Each model and budget runs in a process of its own, on tensors of megabytes, with oneDNN on for the allocator's counts.
Budgets are shares of the stock step's peak as the allocator measures it. Peaks are of whole steps (gradients, update,
metrics) through `model.train_on_batch`, the highest of eight. Results are kept: run it again to go on.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "keras_users" / "peaks.json"
MODELS = ("lstm", "lstm_unrolled", "conv3d", "transformer")
_PEAK_STEPS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--shares", nargs="*", type=float, default=[1.0, 0.8, 0.6])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(measured(options.model[0], options.shares[0])))
        return
    results = json.loads(options.output.read_text()) if options.output.exists() else {"rows": []}
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    for name in options.model:
        for share in options.shares:
            if any(row["model"] == name and row["share"] == share for row in results["rows"]):
                continue
            command = [sys.executable, "-m", "experiments.keras_peaks", "--in-process"]
            arguments = ["--model", name, "--shares", str(share)]
            run = subprocess.run([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
            results["rows"].append(json.loads(run.stdout.splitlines()[-1]))
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1))
    print(table(results["rows"]))


def table(rows: list[dict[str, Any]]) -> str:
    """Model by budget in markdown; MiB."""
    from tabulate import tabulate

    lines = [
        (
            row["model"],
            f"{row['share']:.0%}",
            row["stock_peak_bytes"] / 2**20,
            row["budget_bytes"] / 2**20,
            row["predicted_peak_bytes"] / 2**20 if not row["error"] else None,
            row["measured_peak_bytes"] / 2**20 if not row["error"] else None,
            f"{row['measured_peak_bytes'] / row['budget_bytes'] - 1:+.1%}" if not row["error"] else row["error"][:160],
            f"{row['overhead']:.1%}" if not row["error"] else None,
        )
        for row in rows
    ]
    headers = [
        "model",
        "budget",
        "stock MiB",
        "budget MiB",
        "predicted MiB",
        "measured MiB",
        "above budget",
        "overhead",
    ]
    return tabulate(lines, headers, tablefmt="github", floatfmt=".1f")


def build(name: str) -> Any:
    """A compiled model and a batch for it."""
    import keras
    import numpy as np
    from keras import layers

    from experiments.peak_table import build as build_of_table

    if name == "transformer":
        return build_of_table(name)
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
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
    x = random.normal(size=(batch_size, *inputs.shape[1:])).astype("float32")
    return model, (x, np.arange(batch_size) % 10)


def measured(name: str, share: float) -> dict[str, Any]:
    """One row: the stock step's peak, the budget, and what the rematerialized step takes."""
    import keras
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.profiling.device import find_default_device, make_device_key
    from experiments.peak_table import step_peak

    model, batch = build(name)
    stock_peak = max(step_peak(model, batch) for _ in range(_PEAK_STEPS))
    # The full budget has room for the chunks, no more.
    budget_bytes = int(stock_peak * (1.02 if share == 1 else share))
    row: dict[str, Any] = {
        "model": name,
        "share": share,
        "batch_size": len(batch[0]),
        "stock_peak_bytes": stock_peak,
        "budget_bytes": budget_bytes,
        "error": "",
        "machine": str(make_device_key(find_default_device())),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }
    try:
        plan = checkmate_tf.rematerialize(model, data=batch, budget=budget_bytes, time_limit_s=30, costs="flops")
    except InfeasibleBudgetError as error:
        return row | {"error": str(error), "least_budget_bytes": error.least_budget_bytes}
    return row | {
        "stock_predicted_bytes": plan.predicted_stock_peak_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "planned_peak_bytes": plan.measured_peak_bytes,
        "measured_peak_bytes": max(step_peak(model, batch) for _ in range(_PEAK_STEPS)),
        "overhead": plan.overhead,
        "solver": plan.solution.solver,
        "num_nodes": len(plan.graph.nodes),
        "recomputed_nodes": len(plan.recomputed),
    }


if __name__ == "__main__":
    main()
