"""One step's gradients, rematerialized against stock, in float32 and both against stock in float64.

    python -m experiments.numbers.gradients [--model NAME ...] [--budget 60%]

Each model of `peak_table` makes one step of `fit` under SGD with momentum, whose momentum then holds the
gradients times the learning rate, here 1. A difference is the largest one of a tensor over the tensor's largest
entry; tensors whose float64 gradient is nowhere above 1e-5 of the largest of all are rounding and left out. Dropout is
off: in float64 it draws other masks.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peak_table import BATCH_SIZE, MODELS, build
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "gradients.csv"
WAYS = ("ours_vs_stock", "stock_vs_stock", "ours_vs_float64", "stock_vs_float64")
COLUMNS = ("model", "budget", "batch_size", "recomputed_nodes", "tensors", "left_out", *WAYS, "seed")


def points(models: Sequence[str] = MODELS, budget: str = "60%") -> list[Point]:
    return [{"model": name, "budget": budget} for name in models]


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


def compute(point: Point) -> dict[str, Any]:
    """The differences of a model at a budget."""
    import checkmate_tf
    from experiments.numbers.differences import are_compared, largest_difference

    name = point["model"]
    stock, batch = model_of(name, "float32")
    weights = stock.get_weights()
    of_stock = gradients(stock, batch)
    of_stock_again = gradients(*model_of(name, "float32", weights))
    model, _ = model_of(name, "float32", weights)
    plan = checkmate_tf.rematerialize(
        model,
        data=batch,
        budget=point["budget"],
        options=checkmate_tf.Options(costs="flops"),
        measure=False,
        time_limit_s=20,
        progress=False,
    )
    rematerialized = gradients(model, batch)
    reference = gradients(*model_of(name, "float64", weights))
    compared = are_compared(reference, len(reference))
    return {
        "batch_size": BATCH_SIZE,
        "recomputed_nodes": len(plan.recomputed),
        "tensors": sum(compared),
        "left_out": len(compared) - sum(compared),
        "ours_vs_stock": largest_difference(rematerialized, of_stock, compared),
        "stock_vs_stock": largest_difference(of_stock_again, of_stock, compared),
        "ours_vs_float64": largest_difference(rematerialized, reference, compared),
        "stock_vs_float64": largest_difference(of_stock, reference, compared),
        "seed": 0,
    }


def table(rows: Sequence[Row]) -> str:
    """A line a model."""
    from tabulate import tabulate

    columns = ("model", "budget", "recomputed_nodes", "tensors", "left_out")
    lines = [
        [
            *(row[column] for column in columns),
            *(f"{float(row[way]):.1e}" if row[way] else row["error"] for way in WAYS),
        ]
        for row in sorted(rows, key=lambda row: MODELS.index(row["model"]))
    ]
    headers = [column.replace("_", " ") for column in (*columns, *WAYS)]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = points(options.model, options.budget)
    print(table(run_apart("experiments.numbers.gradients", wanted, options.output, COLUMNS)))


if __name__ == "__main__":
    main()
