"""Why two models end elsewhere when they are rematerialized: rounding, not the rewrite.

    python -m experiments.numbers.rounding [--output FILE.csv]

MobileNetV2 on images of 32 pixels amplifies rounding by its batch normalization, and a Llama 3 whose weights have 8
bits rounds the inputs of its layers to 8 bits. Each trains some steps from the same weights on the same batches.
Against stock training: the rematerialized step; the stock step as a TensorFlow function within the step (nothing of
this project runs, but TensorFlow optimizes it differently); stock training from weights that differ in their last bit.
If all three are as far from stock, and all of them nearer by the ratio of the precisions in float64, the distance is
how much the network amplifies rounding. Weights of 8 bits compute in float32 alone.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "rounding.csv"
NUM_STEPS = 5
_SEED = 7
_IMAGES = (8, 32, 32, 3)
_STEPS = tuple(f"step_{step}" for step in range(1, NUM_STEPS + 1))
COLUMNS = ("model", "precision", "against_stock", *_STEPS, "seed")


def points() -> list[Point]:
    return [
        {"model": model, "precision": precision, "against_stock": name}
        for model, precision in (("MobileNetV2", "float32"), ("MobileNetV2", "float64"), ("int8 Llama 3", "float32"))
        for name in CHANGES
    ]


def compute(point: Point) -> dict[str, Any]:
    """Differences from stock after each step, the largest of all weights, relative to each tensor's largest entry."""
    import keras

    keras.config.set_floatx(point["precision"])
    keras.config.set_dtype_policy(point["precision"])
    expected = trained(point["model"], lambda model, batch: None)
    found = trained(point["model"], CHANGES[point["against_stock"]])
    distances = [distance(mine, theirs) for mine, theirs in zip(expected, found, strict=True)]
    return dict(zip(_STEPS, distances, strict=True)) | {"seed": _SEED}


def table(rows: Sequence[Row]) -> str:
    """A line a way to be different."""
    from tabulate import tabulate

    keys = ("model", "precision", "against_stock")
    lines = [
        [*(row[key] for key in keys), *(f"{float(row[step]):.1e}" if row[step] else row["error"] for step in _STEPS)]
        for row in rows
    ]
    headers = [column.replace("_", " ") for column in (*keys, *_STEPS)]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def trained(name: str, change: Callable[[Any, Any], None]) -> list[list[Any]]:
    """All weights after each step of a model that was changed beforehand."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(_SEED)
    model, batches = BUILDS[name]()
    change(model, batches[0])
    states = []
    for batch in batches:
        model.train_on_batch(*batch)
        states.append([np.asarray(weight) for weight in model.variables])
    return states


def build_mobilenet() -> tuple[Any, list[Any]]:
    import keras
    import numpy as np

    from experiments.keras_users.models import compiled

    model = compiled(keras.applications.MobileNetV2(_IMAGES[1:], alpha=0.35, weights=None, classes=4))
    random = np.random.default_rng(3)
    images = [random.normal(size=_IMAGES).astype(keras.config.floatx()) for _ in range(NUM_STEPS)]
    return model, [(x, np.arange(len(x)) % 4) for x in images]


def build_quantized() -> tuple[Any, list[Any]]:
    import keras

    from experiments.wild.models import MODELS

    entry = MODELS["hub_llama3_int8_lora"]
    model = entry.build()
    model.compile(keras.optimizers.SGD(0.1), model.loss, jit_compile=False)
    return model, [entry.batch()] * NUM_STEPS


BUILDS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "MobileNetV2": build_mobilenet,
    "int8 Llama 3": build_quantized,
}


def distance(expected: list[Any], found: list[Any]) -> float:
    from experiments.keras_users.compare import relative_difference

    return max(relative_difference(a, b) for a, b in zip(expected, found, strict=True) if a.dtype.kind == "f")


def rematerialized(model: Any, batch: Any) -> None:
    import checkmate_tf
    from experiments.keras_users.compare import RecomputeForward

    checkmate_tf.rematerialize(
        model,
        data=batch,
        batch_size=len(batch[-1]),
        budget="1000%",
        options=checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
        measure=False,
    )


def within(model: Any, batch: Any) -> None:
    """The stock forward and backward pass as a function of its own, called by the step."""
    import tensorflow as tf

    from checkmate_tf.training.step_part import make_gradient_part

    part = make_gradient_part(model)
    assert part is not None
    compute = tf.function(part.compute, autograph=False)

    def train_step(data: Any) -> Any:
        return part.finish(data, compute(data))

    model.train_step = train_step


def last_bit(model: Any, batch: Any) -> None:
    import numpy as np

    for weight in model.variables:
        value = np.asarray(weight)
        if value.dtype.kind == "f":
            weight.assign(np.nextafter(value, np.inf, dtype=value.dtype))


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "rematerialized": rematerialized,
    "function within": within,
    "last bit": last_bit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart("experiments.numbers.rounding", points(), options.output, COLUMNS)))


if __name__ == "__main__":
    main()
