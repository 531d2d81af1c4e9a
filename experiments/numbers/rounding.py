"""Why MobileNetV2 on small images ends elsewhere when it is rematerialized: rounding, not the rewrite.

    python -m experiments.numbers.rounding [--sizes 32 ...] [--output FILE.csv]

MobileNetV2 trains some steps from the same weights on the same batches, in float32 and in float64. Against stock
training: the rematerialized step; the stock step as a TensorFlow function within the step (nothing of this project
runs, but TensorFlow optimizes it differently); stock training from weights that differ in their last bit. If all
three are as far from stock, and all of them nearer by the ratio of the precisions in float64, the distance is how
much the network amplifies rounding.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "rounding.csv"
BATCH_SIZE, NUM_STEPS = 8, 5
PRECISIONS = ("float32", "float64")
_STEPS = tuple(f"step_{step}" for step in range(1, NUM_STEPS + 1))
COLUMNS = ("image", "precision", "against_stock", *_STEPS, "seed")


def points(sizes: Sequence[int] = (32,)) -> list[Point]:
    return [
        {"image": size, "precision": precision, "against_stock": name}
        for size in sizes
        for precision in PRECISIONS
        for name in CHANGES
    ]


def compute(point: Point) -> dict[str, Any]:
    """Differences from stock after each step, the largest of all weights, relative to each tensor's largest entry."""
    import keras

    keras.config.set_floatx(point["precision"])
    keras.config.set_dtype_policy(point["precision"])
    expected = trained(point["image"], lambda model: None)
    found = trained(point["image"], CHANGES[point["against_stock"]])
    distances = [distance(mine, theirs) for mine, theirs in zip(expected, found, strict=True)]
    return dict(zip(_STEPS, distances, strict=True)) | {"seed": 7}


def table(rows: Sequence[Row]) -> str:
    """A line a way to be different."""
    from tabulate import tabulate

    keys = ("image", "precision", "against_stock")
    lines = [
        [*(row[key] for key in keys), *(f"{float(row[step]):.1e}" if row[step] else row["error"] for step in _STEPS)]
        for row in rows
    ]
    headers = [column.replace("_", " ") for column in (*keys, *_STEPS)]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def trained(size: int, change: Callable[[Any], None]) -> list[list[Any]]:
    """All weights after each step."""
    import keras
    import numpy as np

    from experiments.keras_users.models import compiled

    keras.utils.set_random_seed(7)
    model = compiled(keras.applications.MobileNetV2((size, size, 3), alpha=0.35, weights=None, classes=4))
    change(model)
    random, states = np.random.default_rng(3), []
    for _ in range(NUM_STEPS):
        x = random.normal(size=(BATCH_SIZE, size, size, 3)).astype(keras.config.floatx())
        model.train_on_batch(x, np.arange(BATCH_SIZE) % 4)
        states.append([np.asarray(weight) for weight in model.variables])
    return states


def distance(expected: list[Any], found: list[Any]) -> float:
    from experiments.keras_users.compare import relative_difference

    return max(relative_difference(a, b) for a, b in zip(expected, found, strict=True) if a.dtype.kind == "f")


def rematerialized(model: Any) -> None:
    import checkmate_tf
    from experiments.keras_users.compare import RecomputeForward

    checkmate_tf.rematerialize(
        model, batch_size=BATCH_SIZE, budget="1000%", solver=RecomputeForward(), costs="flops", measure=False
    )


def within(model: Any) -> None:
    """The stock forward and backward pass as a function of its own, called by the step."""
    import tensorflow as tf

    from checkmate_tf.training.step_parts import make_gradient_part

    part = make_gradient_part(model)
    assert part is not None
    compute = tf.function(part.compute, autograph=False)

    def train_step(batch: Any) -> Any:
        return part.finish(batch, compute(batch))

    model.train_step = train_step


def last_bit(model: Any) -> None:
    import numpy as np

    for weight in model.trainable_variables:
        value = np.asarray(weight)
        weight.assign(np.nextafter(value, np.inf, dtype=value.dtype))


CHANGES: dict[str, Callable[[Any], None]] = {
    "rematerialized": rematerialized,
    "function within": within,
    "last bit": last_bit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[32], help="of the images")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart("experiments.numbers.rounding", points(options.sizes), options.output, COLUMNS)))


if __name__ == "__main__":
    main()
