"""The batches that a model's own `fit` hands over, and what that leaves behind."""

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import BatchError
from checkmate_tf.training.batches import take_batch_from_fit

QUICK: dict[str, Any] = {
    "budget": "1000%",
    "options": checkmate_tf.Options(solver="retain_all", costs="flops"),
    "measure": False,
}


class Rows(keras.utils.PyDataset):
    """Four batches of `rows` rows, which counts how often an epoch begins and ends."""

    def __init__(self, rows: int = 8, **options: Any):
        super().__init__(**options)
        self.rows, self.begun, self.ended = rows, 0, 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.ones((self.rows, 6), "float32"), np.ones((self.rows, 1), "float32")

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


class Simulator:
    """Makes a dataset, as the models of some packages do within `fit`."""

    def make_dataset(self, num_rows: int) -> Rows:
        return Rows(num_rows)


class Approximator(keras.Model):
    """A model whose `fit` takes a dataset, or a simulator and what is for that, but no x."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def fit(self, *, dataset: Any = None, simulator: Simulator | None = None, **kwargs: Any) -> Any:
        if dataset is None and simulator is None:
            raise ValueError("Received no data to fit on")
        dataset = simulator.make_dataset(kwargs.pop("num_rows")) if simulator else dataset
        return super().fit(x=dataset, **kwargs)


class Continuous(Approximator):
    """Passes on all that it is given."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)


class Compiling(keras.Sequential):
    """Compiles before each training."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        self.compile("sgd", "mse")
        return super().fit(*args, **kwargs)


def compiled(model: keras.Model) -> Any:
    model.compile("sgd", "mse")
    return model


def dense(*names: str) -> Any:
    inputs = [keras.Input((6,), name=name) for name in names or ("values",)]
    hidden = keras.layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    outputs = keras.layers.Dense(1)(hidden)
    return compiled(keras.Model({one.name: one for one in inputs} if names else inputs[0], outputs))


@pytest.mark.parametrize(
    "data", [Rows(5), {"dataset": Rows(5)}, {"simulator": Simulator(), "num_rows": 5}], ids=["data", "named", "made"]
)
@pytest.mark.parametrize("kind", [Approximator, Continuous])
def test_data_go_to_the_argument_that_the_models_own_fit_has(kind: Any, data: Any) -> None:
    batch = take_batch_from_fit(compiled(kind()), data, None)
    assert [tuple(spec.shape) for spec in batch.spec.flat] == [(5, 6), (5, 1)]


def test_an_argument_that_fit_does_not_take_is_explained_by_those_it_has() -> None:
    with pytest.raises(BatchError, match=r"Continuous.fit has arguments of its own \(dataset, simulator\)"):
        take_batch_from_fit(compiled(Continuous()), {"simulator": None}, None)


def test_a_model_that_compiles_in_its_own_fit_is_planned_and_trained() -> None:
    model = compiled(Compiling([keras.Input((6,)), keras.layers.Dense(1)]))
    checkmate_tf.rematerialize(model, data=Rows(5), **QUICK)
    assert model.fit(Rows(5), verbose=0).history["loss"]


def test_a_model_in_a_strategys_scope_is_planned_before_its_metrics_are_built() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    checkmate_tf.rematerialize(model, data=Rows(5), **QUICK)
    assert model.fit(Rows(5), verbose=0).history["mae"]


def test_a_dictionary_is_of_arguments_or_of_inputs_by_its_keys() -> None:
    x, y = np.ones((8, 6), "float32"), np.ones((8, 1), "float32")
    for model, data, num_tensors in [
        (dense(), {"x": x, "y": y}, 2),
        (dense(), {"x": Rows(), "steps_per_epoch": 2}, 2),
        (dense("x", "y"), {"x": x, "y": x}, 2),
        (dense("x", "y"), {"x": {"x": x, "y": x}, "y": y}, 3),
        (dense("x", "y"), ({"x": x, "y": x}, y), 3),
        (dense("left", "right"), {"left": x, "right": x}, 2),
    ]:
        batch = take_batch_from_fit(model, data, None)
        assert len(batch.spec.flat) == num_tensors
        assert batch.spec.batch_size == 8
    assert set(take_batch_from_fit(dense("x", "y"), {"x": x, "y": x}, 4).spec.structure) == {"x", "y"}


@pytest.mark.parametrize("workers", [1, 2])
def test_no_worker_stays_and_every_epoch_that_begins_ends(workers: int) -> None:
    model, before = dense(), threading.active_count()
    for _ in range(3):
        data = Rows(workers=workers)
        take_batch_from_fit(model, data, None)
        assert data.begun == data.ended - 1 == 1  # Keras ends one more before the first.
    assert threading.active_count() <= before + 1  # tf.data's own, which is there for good
