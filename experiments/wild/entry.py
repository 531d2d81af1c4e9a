"""What an entry of the list of models is: a model, the data that it trains on, and how it is handed to the tool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

Arrays = tuple[Any, ...]


def batched(arrays: Arrays, batch_size: int) -> tf.data.Dataset:
    """Batches of rows, the last one maybe smaller; of the bare tensor where x stands alone."""
    data = arrays if len(arrays) > 1 or isinstance(arrays[0], tuple) else arrays[0]
    return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


@dataclass(frozen=True)
class WildModel:
    """A compiled model and the data that it trains on.

    `dataclasses.replace(model, batch_size=4)` is the same model with smaller batches.

    Args:
        what: its features that a stack of layers under `fit` does not have.
        build: gives the compiled model; for the same Keras seed, the same weights.
        arrays: made-up data of that many rows: (x,), (x, y) or (x, y, sample_weight), nested as the model takes them.
        batch_size: rows of a batch.
        planned_with: what `rematerialize` is told, the number of rows or the data that `fit` gets.
        dataset: makes a dataset of arrays for `fit`; None where `fit` gets the arrays.
        has_bare_batches: the training step takes x itself, which `train_on_batch` cannot hand over.
        needs: a package that need not be installed.
        after: the public example that it is written after.
    """

    name: str
    what: str
    build: Callable[[], keras.Model]
    arrays: Callable[[np.random.Generator, int], Arrays]
    batch_size: int
    planned_with: Literal["batch_size", "data"] = "data"
    dataset: Callable[[Arrays, int], tf.data.Dataset] | None = None
    has_bare_batches: bool = False
    needs: str = ""
    after: str = ""

    def plan_arguments(self, num_batches: float = 10) -> dict[str, Any]:
        """What `rematerialize` is given beside the budget."""
        if self.planned_with == "batch_size":
            return {"batch_size": self.batch_size}
        arrays = self._arrays(num_batches)
        if self.dataset is not None:
            return {"data": self.dataset(arrays, self.batch_size)}
        return {"data": arrays, "batch_size": self.batch_size}

    def fit_arguments(self, num_batches: float = 10) -> dict[str, Any]:
        """What `fit` is given: the same batches in the same order whenever it is asked."""
        arrays = self._arrays(num_batches)
        if self.dataset is not None:
            return {"x": self.dataset(arrays, self.batch_size)}
        named = zip(("x", "y", "sample_weight"), arrays, strict=False)
        return {**dict(named), "batch_size": self.batch_size, "shuffle": False}

    def batch(self) -> Arrays | None:
        """The arguments of `train_on_batch`; None where the training step cannot take what it makes of them."""
        if self.has_bare_batches:
            return None
        arrays = self._arrays(num_batches=1)
        if self.dataset is None:
            return arrays
        first = next(iter(self.dataset(arrays, self.batch_size)))
        return first if isinstance(first, tuple) else (first,)

    def of_unknown_length(self, num_batches: float) -> tf.data.Dataset:
        """The same batches from a generator, whose length and rows nobody knows beforehand."""

        def open_rows(part: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec([None, *part.shape[1:]], part.dtype)

        batches = (self.dataset or batched)(self._arrays(num_batches), self.batch_size)
        signature = tf.nest.map_structure(open_rows, batches.element_spec)
        return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)

    def _arrays(self, num_batches: float) -> Arrays:
        return self.arrays(np.random.default_rng(0), int(num_batches * self.batch_size))


@dataclass(frozen=True)
class WildLoop:
    """A custom training loop: one step is a function of arrays, which changes the variables that it holds.

    Args:
        make: gives the `tf.function` of the step and the variables that it trains; for the same seeds, the same ones.
        arrays: made-up arguments of the step.
        after: the public example that it is written after.
    """

    name: str
    what: str
    make: Callable[[], tuple[Any, list[Any]]]
    arrays: Callable[[np.random.Generator], Arrays]
    after: str

    def arguments(self) -> tuple[tf.Tensor, ...]:
        """The same arguments whenever it is asked."""
        return tuple(map(tf.convert_to_tensor, self.arrays(np.random.default_rng(0))))


class LearnedPositions(keras.layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, shape: Any) -> None:
        self.positions = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, inputs: Any) -> Any:
        return inputs + self.positions


def compile_classifier(model: keras.Model, rate: float = 0.01) -> keras.Model:
    """Compiles a model whose outputs are logits of classes, and returns it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal numbers in float32."""
    return random.standard_normal(shape, dtype="float32")


def classes(random: np.random.Generator, num_classes: int, *shape: int) -> np.ndarray:
    """Class indices in int32."""
    return random.integers(num_classes, size=shape, dtype="int32")
