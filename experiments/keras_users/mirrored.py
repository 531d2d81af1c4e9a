"""MirroredStrategy on two logical devices: `python -m experiments.keras_users.mirrored` prints what it found.

A process of its own, because devices are parted before TensorFlow starts.
"""

import json
import warnings
from typing import Any

import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

import checkmate_tf  # noqa: E402
from checkmate_tf.errors import CheckmateError  # noqa: E402
from experiments.keras_users.compare import RecomputeForward, relative_difference  # noqa: E402
from experiments.keras_users.models import OwnStep, compiled, vectors  # noqa: E402

QUICK: dict[str, Any] = {"budget": "1000%", "options": checkmate_tf.Options(RecomputeForward(), costs="flops")}


def main() -> None:
    warnings.simplefilter("ignore")
    stock, stock_history = _fitted(rewritten=False)
    other, history = _fitted(rewritten=True)
    pairs = [
        (mine, theirs)
        for a, b in zip(_state(stock), _state(other), strict=True)
        for mine, theirs in zip(_copies(a), _copies(b), strict=True)
    ]
    apart = next(_copies(v) for v in other.variables if v.path.endswith("moving_mean"))
    xla = _refusal_of_tensorflow()
    refused = {"synchronized BatchNorm": _synchronized, "own train_step": _own_step, "XLA": _xla, "odd batch": _net}
    print(
        json.dumps(
            {
                "difference": max(relative_difference(mine, theirs) for mine, theirs in pairs),
                "history": max(relative_difference(stock_history[key], history[key]) for key in history),
                "replicas_own_statistics": float(np.abs(apart[0] - apart[1]).max()),
                "refused": {name: _refusal(make) for name, make in refused.items()},
                "tensorflow_refuses_xla": xla,
            }
        )
    )


def _mirrored(make: Any) -> keras.Model:
    keras.utils.set_random_seed(7)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return make()


def _fitted(*, rewritten: bool) -> tuple[keras.Model, dict[str, Any]]:
    """Two batches of 16 over two replicas, and one of 4 that was not planned; twice."""
    model = _mirrored(_net)
    data = {key: array[:36] for key, array in vectors().items()}
    if rewritten:
        plan = checkmate_tf.rematerialize(model, batch_size=16, measure=True, **QUICK)
        assert plan.recomputed
        assert plan.resident.batch == 8 * (8 * 4 + 8)  # one replica's: vectors of float32, labels of int64
    keras.utils.set_random_seed(8)
    return model, model.fit(**data, batch_size=16, shuffle=False, verbose=0, epochs=2).history


def _refusal_of_tensorflow() -> str:
    """What TensorFlow says of the stock step compiled by XLA."""
    try:
        _mirrored(_xla).fit(**vectors(), batch_size=16, verbose=0)
    except tf.errors.OpError as error:
        return str(error)
    return ""


def _net() -> keras.Model:
    stack = [layers.Dense(16, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3)]
    return compiled(keras.Sequential([keras.Input((8,)), *stack, layers.Dense(4, activation="softmax")]))


def _refusal(make: Any) -> str:
    model = _mirrored(make)
    try:
        checkmate_tf.rematerialize(model, batch_size=7 if make is _net else 8, measure=False, **QUICK)
    except CheckmateError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _synchronized() -> keras.Model:
    stack = [keras.Input((8,)), layers.Dense(8), layers.BatchNormalization(synchronized=True)]
    return compiled(keras.Sequential([*stack, layers.Dense(4, activation="softmax")]))


def _own_step() -> keras.Model:
    inputs = keras.Input((8,))
    return compiled(OwnStep(inputs, layers.Dense(4, activation="softmax")(inputs)))


def _xla() -> keras.Model:
    return compiled(keras.Sequential([keras.Input((8,)), layers.Dense(4, "softmax")]), jit_compile=True)


def _state(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def _copies(variable: Any) -> list[np.ndarray]:
    return [copy.numpy() for copy in getattr(variable.value, "values", [variable.value])]


if __name__ == "__main__":
    main()
