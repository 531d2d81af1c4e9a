"""Why MobileNetV2 on small images ends elsewhere when it is rematerialized: rounding, not the rewrite.

    python -m experiments.keras_rounding [--steps 5] [--output FILE]

MobileNetV2 trains some steps from the same weights on the same batches, in float32 and in float64. Against stock
training: the rematerialized step; the stock step as a TensorFlow function within the step (nothing of this project
runs, but TensorFlow optimizes it differently); stock training from weights that differ in their last bit. If all
three are as far from stock, and all of them nearer by the ratio of the precisions in float64, the distance is how
much the network amplifies rounding.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "keras_users" / "rounding.json"
BATCH_SIZE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[32])
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    rows = []
    for size in options.sizes:
        for precision in ("float32", "float64"):
            keras.config.set_floatx(precision)
            keras.config.set_dtype_policy(precision)
            rows += compared(size, precision, options.steps)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
            options.output.write_text(json.dumps({"versions": versions, "seed": 7, "rows": rows}, indent=1))
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in markdown."""
    from tabulate import tabulate

    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".1e")


def compared(size: int, precision: str, steps: int) -> list[dict[str, Any]]:
    """Differences from stock after each step, the largest of all weights, relative to each tensor's largest entry."""
    expected = trained(size, steps, lambda model: None)
    rows = []
    for name, change in {"rematerialized": rematerialized, "function within": within, "last bit": last_bit}.items():
        found = trained(size, steps, change)
        row: dict[str, Any] = {"image": size, "precision": precision, "against stock": name}
        for step, (mine, theirs) in enumerate(zip(expected, found, strict=True), 1):
            row[f"step {step}"] = distance(mine, theirs)
        rows.append(row)
    return rows


def trained(size: int, steps: int, change: Callable[[Any], None]) -> list[list[Any]]:
    """All weights after each step."""
    import keras
    import numpy as np

    from experiments.keras_users.models import compiled

    keras.utils.set_random_seed(7)
    model = compiled(keras.applications.MobileNetV2((size, size, 3), alpha=0.35, weights=None, classes=4))
    change(model)
    random, states = np.random.default_rng(3), []
    for _ in range(steps):
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


if __name__ == "__main__":
    main()
