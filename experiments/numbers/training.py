"""Trains two small models on real data for a thousand steps, stock and rematerialized, and compares their losses.

    python -m experiments.numbers.training [--task NAME ...] [--steps 1000] [--output FILE.csv]

"digits" names scikit-learn's handwritten digits (convolutions, batch normalization, dropout, Adam); "text" guesses the
next letter of Python's own documentation, as `pydoc_data` carries it (causal attention, dropout, SGD with momentum and
clipped gradients).
Each training runs in a process of its own from the same seeds, the rematerialized ones within 60 % of the stock
peak; "last bit" is stock training from weights that differ in their last bit, which tells how far rounding alone
carries. The deterministic ones run after `tf.config.experimental.enable_op_determinism()`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "training.csv"
TASKS = ("digits", "text")
# By whether they are deterministic.
TRAININGS = {
    False: ("stock", "last bit", "rematerialized"),
    True: ("stock", "rematerialized", "rematerialized again"),
}
STEPS = 1000
_BATCHES_BY_TASK = {"digits": (64, 25), "text": (32, 100)}  # rows, and batches in an epoch
_BUDGET = "60%"
_SEED = 1
_LENGTH = 64
_EVERY = 10  # step whose loss is kept
COLUMNS = (
    "task", "deterministic", "training", "steps", "budget_bytes", "stock_peak_bytes", "recomputed", "held_out_accuracy",
    "losses_digest", "weights_digest", "losses",
)  # fmt: skip


def points(tasks: Sequence[str] = TASKS, steps: int = STEPS) -> list[Point]:
    return [
        {"task": task, "deterministic": deterministic, "training": training, "steps": steps}
        for task in tasks
        for deterministic, trainings in TRAININGS.items()
        for training in trainings
    ]


def compute(point: Point) -> dict[str, Any]:
    """Trains once, and gives every tenth loss, and digests of all losses and weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import checkmate_tf
    from experiments.training_steps import BatchLosses

    if point["deterministic"]:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(_SEED)
    x, y, model = _digits() if point["task"] == "digits" else _text()
    batch_size, num_batches = _BATCHES_BY_TASK[point["task"]]
    rows = batch_size * num_batches
    row: dict[str, Any] = {}
    if point["training"] == "last bit":
        for weight in model.trainable_variables:
            value = np.asarray(weight)
            weight.assign(np.nextafter(value, np.inf, dtype=value.dtype))
    if point["training"].startswith("rematerialized"):
        plan = checkmate_tf.rematerialize(
            model,
            batch_size=batch_size,
            budget=_BUDGET,
            options=checkmate_tf.Options(costs="flops"),
            time_limit_s=10,
            progress=False,
        )
        row = {
            "budget_bytes": plan.budget_bytes,
            "stock_peak_bytes": plan.stock_peak_bytes,
            "recomputed": len(plan.recomputed),
        }
    losses = BatchLosses()
    keras.utils.set_random_seed(_SEED)
    epochs = -(-point["steps"] // num_batches)
    model.fit(x[:rows], y[:rows], batch_size=batch_size, epochs=epochs, verbose=0, callbacks=[losses])
    weights = [np.asarray(variable) for variable in model.trainable_variables]
    return row | {
        "held_out_accuracy": float(model.evaluate(x[rows:], y[rows:], verbose=0)[1]),
        "losses_digest": _digest([np.asarray(losses.losses)]),
        "weights_digest": _digest(weights),
        "losses": " ".join(f"{loss:.9g}" for loss in losses.losses[::_EVERY]),
    }


def _digest(arrays: Sequence[Any]) -> str:
    from hashlib import sha256

    return sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def _digits() -> tuple[Any, Any, Any]:
    import keras
    from keras import layers
    from sklearn.datasets import load_digits

    found = load_digits()
    model = keras.Sequential([keras.Input((8, 8, 1))])
    for _ in range(5):
        model.add(layers.Conv2D(32, 3, padding="same"))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dropout(0.2))
    model.add(layers.Dense(10))
    _compile(model, "adam")
    return (found.images[..., None] / 16).astype("float32"), found.target.astype("int32"), model


def _text() -> tuple[Any, Any, Any]:
    from pydoc_data.topics import topics

    import keras
    import numpy as np
    from keras import layers

    letters, codes = np.unique(list("".join(topics.values())), return_inverse=True)
    rows = len(codes) // (_LENGTH + 1)
    table = codes[: rows * (_LENGTH + 1)].reshape(rows, _LENGTH + 1).astype("int32")
    table = table[np.random.default_rng(_SEED).permutation(rows)[:3600]]
    inputs = keras.Input((_LENGTH,), dtype="int32")
    positions = layers.Embedding(_LENGTH, 32)(keras.ops.arange(_LENGTH))
    hidden = layers.Embedding(len(letters), 32)(inputs) + positions
    for _ in range(3):
        normal = layers.LayerNormalization()(hidden)
        hidden = hidden + layers.MultiHeadAttention(4, 8, dropout=0.1)(normal, normal, use_causal_mask=True)
        wide = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Dropout(0.1)(layers.Dense(32)(wide))
    model = keras.Model(inputs, layers.Dense(len(letters))(hidden))
    _compile(model, keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0))
    return table[:, :-1], table[:, 1:], model


def _compile(model: Any, optimizer: Any) -> None:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)


def table(rows: Sequence[Row]) -> str:
    """A line a training, against the stock training of the same task."""
    from tabulate import tabulate

    stock = {(row["task"], row["deterministic"]): row for row in rows if row["training"] == "stock"}
    lines = []
    for row in rows:
        line = [row["task"], {"True": "yes", "False": "no"}[row["deterministic"]], row["training"], row["steps"]]
        if row["error"]:
            lines.append([*line, *[None] * 7, row["error"]])
            continue
        other = stock[row["task"], row["deterministic"]]
        found, expected = ([float(loss) for loss in each["losses"].split()] for each in (row, other))
        apart = [abs(mine - theirs) / abs(theirs) for mine, theirs in zip(found, expected, strict=True)]
        same = all(row[key] == other[key] for key in ("losses_digest", "weights_digest"))
        after = f"{next((n * _EVERY for n, each in enumerate(apart) if each), '')}"
        tenth = len(found) // 10
        lines.append(
            [
                *line,
                row["recomputed"],
                "yes" if same else "no",
                f"{max(apart[:tenth]):.0e}",
                f"{max(apart):.0e}",
                after,
                f"{sum(found[-tenth:]) / tenth:.4f}",
                f"{float(row['held_out_accuracy']):.1%}",
                "",
            ]
        )
    headers = ["task", "deterministic", "training", "steps", "recomputed", "bit for bit as stock"]
    headers += ["first tenth", "all", "first at step", "mean loss at the end", "held-out accuracy", "error"]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = points(options.task, options.steps)
    print(table(run_apart("experiments.numbers.training", wanted, options.output, COLUMNS)))


if __name__ == "__main__":
    main()
