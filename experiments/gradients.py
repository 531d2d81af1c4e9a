"""One step's gradients, rematerialized against stock, in float32 and both against stock in float64.

    python -m experiments.gradients [--model NAME ...] [--budget 60%]

Each model of `peak_table` makes one step of `fit` under SGD with momentum, whose momentum then holds the
gradients times the learning rate, here 1. A difference is the largest one of a tensor over the tensor's largest
entry; tensors whose float64 gradient is nowhere above 1e-5 of the largest of all (a bias before BatchNormalization)
are rounding and left out. Dropout is off: in float64 it draws other masks.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peak_table import BATCH_SIZE, MODELS, build

RESULTS = Path(__file__).parent / "results" / "gradients"
_ZERO_SHARE = 1e-5


def gradients(model: Any, batch: Any) -> list[np.ndarray]:
    """Of each trainable tensor, by one step of `fit`."""
    model.optimizer.build(model.trainable_variables)
    model.fit(*batch, batch_size=BATCH_SIZE, epochs=1, shuffle=False, verbose=0)
    return [-np.asarray(momentum, np.float64) for momentum in model.optimizer.momentums]


def model_of(name: str, dtype: str, weights: list[np.ndarray] | None = None) -> tuple[Any, Any]:
    import keras

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    model, batch = build(name)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    if weights is not None:
        model.set_weights(weights)
    model.compile(keras.optimizers.SGD(1.0, momentum=0.9), "sparse_categorical_crossentropy")
    return model, batch


def largest_difference(found: list[np.ndarray], expected: list[np.ndarray], compared: list[bool]) -> float:
    pairs = [pair for pair, counts in zip(zip(found, expected, strict=True), compared, strict=True) if counts]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def compare(name: str, budget: str) -> dict[str, Any]:
    import checkmate_tf

    stock, batch = model_of(name, "float32")
    weights = stock.get_weights()
    of_stock = gradients(stock, batch)
    of_stock_again = gradients(*model_of(name, "float32", weights))
    model, _ = model_of(name, "float32", weights)
    plan = checkmate_tf.rematerialize(
        model, data=batch, budget=budget, costs="flops", measure=False, time_limit_s=20, progress=False
    )
    rematerialized = gradients(model, batch)
    reference = gradients(*model_of(name, "float64", weights))
    sizes = [np.abs(gradient).max() for gradient in reference]
    compared = [bool(size > _ZERO_SHARE * max(sizes)) for size in sizes]
    return {
        "model": name,
        "budget": budget,
        "recomputed_nodes": len(plan.recomputed),
        "tensors": sum(compared),
        "left_out": len(compared) - sum(compared),
        "ours_vs_stock": largest_difference(rematerialized, of_stock, compared),
        "stock_vs_stock": largest_difference(of_stock_again, of_stock, compared),
        "ours_vs_float64": largest_difference(rematerialized, reference, compared),
        "stock_vs_float64": largest_difference(of_stock, reference, compared),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compare(options.one, options.budget)))
        return
    from tabulate import tabulate

    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "gradients.json"
    rows = {row["model"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for name in options.model:
        command = [sys.executable, "-m", "experiments.gradients", "--one", name, "--budget", options.budget]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[name] = json.loads(done.stdout.strip().splitlines()[-1])
        path.write_text(json.dumps({**versions(), "rows": list(rows.values())}, indent=1) + "\n")
    print(tabulate(rows.values(), headers="keys", floatfmt=".1e"))


def versions() -> dict[str, Any]:
    from importlib.metadata import version

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    found = {package: version(package) for package in ("tensorflow", "keras", "numpy")}
    return {"commit": commit.stdout.strip(), "seed": 0, "batch_size": BATCH_SIZE, **found}


if __name__ == "__main__":
    main()
