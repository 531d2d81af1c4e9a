"""What `fit` leaves behind at the end of an epoch and of its data: the same, to the bit, as with the stock step."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate_tf

# Planned steps that compute nothing again, so that no sum is rounded otherwise.
QUICK: dict[str, Any] = {
    "budget": "1000%",
    "options": checkmate_tf.Options(solver="retain_all", costs="flops"),
    "measure": False,
}


def make_model(*, steps_per_execution: int = 1, jit_compile: bool = False) -> keras.Model:
    """All that a step may change: dropout's seed, moving statistics, the optimizer's iterations, decay, metrics."""
    keras.utils.set_random_seed(3)
    hidden = [layers.Dense(16, activation="relu", kernel_regularizer="l2"), layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dropout(0.5), layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    model.compile(
        keras.optimizers.AdamW(rate),
        "mse",
        metrics=["mae"],
        jit_compile=jit_compile,
        steps_per_execution=steps_per_execution,
    )
    return model


def generated(rows: int = 24, *, drop_remainder: bool = False) -> tf.data.Dataset:
    """Batches of 8 rows, nobody knows how many."""

    def generate() -> Iterator[Any]:
        random = np.random.default_rng(0)
        for _ in range(rows):
            x = random.normal(size=6).astype("float32")
            yield x, x[:1]

    signature = (tf.TensorSpec((6,), "float32"), tf.TensorSpec((1,), "float32"))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return data.batch(8, drop_remainder=drop_remainder)


class StopAt(keras.callbacks.Callback):
    """Ends an epoch after its second batch, by an exception or as a callback may."""

    def __init__(self, *, error: bool):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and self.error:
            raise KeyboardInterrupt
        self.model.stop_training = batch == 1


FITS: dict[str, dict[str, Any]] = {
    "unknown length": {"x": generated(20), "epochs": 2, "validation_data": generated(12)},
    "steps_per_epoch, data run out": {"x": generated(40), "epochs": 4, "steps_per_epoch": 2},
    "batches of one size": {"x": generated(drop_remainder=True), "epochs": 2},
    "repeated": {"x": generated().repeat(), "epochs": 2, "steps_per_epoch": 4},
    "an epoch stopped": {"x": generated(), "epochs": 2, "callbacks": [StopAt(error=False)]},
    "an epoch interrupted": {"x": generated(), "epochs": 2, "callbacks": [StopAt(error=True)]},
}
# Such steps begin only with a batch: the end of data adds nothing.
WHOLE_STEPS = list(FITS)[:2]


def fit(model: keras.Model, arguments: dict[str, Any]) -> Any:
    keras.utils.set_random_seed(4)
    try:
        return model.fit(**arguments, verbose=0, shuffle=False).history
    except KeyboardInterrupt:
        return None


def list_states(model: keras.Model) -> list[np.ndarray]:
    seeds = [layer.seed_generator.state for layer in model.layers if getattr(layer, "seed_generator", None)]
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, *seeds]
    return [np.asarray(variable) for variable in variables]


@pytest.mark.parametrize(
    ("settings", "names"),
    [({}, list(FITS)), ({"steps_per_execution": 2}, WHOLE_STEPS), ({"jit_compile": True}, WHOLE_STEPS)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_states_are_those_of_stock_after_every_way_to_end_an_epoch(settings: dict[str, Any], names: list[str]) -> None:
    stock, model = make_model(**settings), make_model(**settings)
    checkmate_tf.rematerialize(model, data=generated(), **QUICK)
    checkmate_tf.rematerialize(model, batch_size=4, **QUICK)
    for name in names:
        assert fit(model, FITS[name]) == fit(stock, FITS[name]), name
        states, expected = list_states(model), list_states(stock)
        assert len(states) == len(expected) > 20
        assert all(map(np.array_equal, states, expected)), name


def test_iterations_count_the_end_of_data_as_keras_does() -> None:
    """By hand: two epochs of three steps, and one more at the end of each, whose seed no batch sees."""
    model = make_model()
    checkmate_tf.rematerialize(model, data=generated(), **QUICK)
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(int(model.layers[2].seed_generator.state[1]))
    )
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(generated(), epochs=2, verbose=0, callbacks=[note])
    assert seen == [1, 2, 3, 5, 6, 7]
    assert int(model.optimizer.iterations) == 8
