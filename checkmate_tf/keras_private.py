"""Contains every use of private names of Keras. No other module imports from `keras.src`.

Each function does a part of the work of `fit` and `train_on_batch` with a compiled model. `tests/test_private_names.py`
has a test of each, which says what breaks if Keras changes it.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.errors import CheckmateError

try:
    from keras.src.backend import compute_output_spec, get_keras_mask, set_keras_mask
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.losses.loss import unscale_loss_for_distribution
except ImportError as error:
    raise CheckmateError(
        f"Keras {keras.__version__} lacks a part that checkmate_tf uses ({error}): pip install 'keras>=3.10'"
    ) from error

__all__ = [
    "RematMode",
    "build_from_batch",
    "call_in_training",
    "call_without_remat",
    "compute_training_loss",
    "get_compiled_loss",
    "get_input_structure",
    "get_keras_mask",
    "infer_predictions",
    "is_keras_method",
    "is_layer_call",
    "is_trainer",
    "list_layers",
    "list_remat_modes",
    "make_training_function",
    "set_keras_mask",
    "track_loss",
]


@dataclass(frozen=True)
class RematMode:
    """A mode of `keras.RematScope`, and the names of the layers and operations to which it applies.

    `larger_than` limits it to those that yield more elements.
    """

    mode: str
    larger_than: int
    names: tuple[str, ...]


def is_trainer(model: Any) -> bool:
    """Returns whether a model trains by Keras's own `fit` on TensorFlow."""
    return isinstance(model, TensorFlowTrainer)


def is_keras_method(model: keras.Model, name: str) -> bool:
    """Returns whether a method of a model is Keras's own, and not a user's or another package's."""
    return name not in vars(model) and getattr(type(model), name).__module__.partition(".")[0] == "keras"


def is_layer_call(frame: Any) -> bool:
    """Returns whether a frame of Python's stack is the call of a layer, for which Keras opens a name scope."""
    code = inspect.unwrap(keras.layers.Layer.__call__).__code__
    return (frame.filename, frame.name) == (code.co_filename, code.co_name)


def call_in_training(model: keras.Model, x: Any) -> Any:
    """Returns the model's predictions as its training step computes them."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def compute_training_loss(model: keras.Model, x: Any, y: Any, predictions: Any, sample_weight: Any) -> tf.Tensor:
    """Computes the loss with regularization, as the training step of a compiled model does."""
    return model._compute_loss(x=x, y=y, y_pred=predictions, sample_weight=sample_weight, training=True)


def track_loss(model: keras.Model, loss: tf.Tensor, num_rows: tf.Tensor) -> None:
    """Adds the loss of a batch to the loss that `fit` shows."""
    model._loss_tracker.update_state(unscale_loss_for_distribution(loss), sample_weight=num_rows)


def build_from_batch(model: keras.Model, batch: Any) -> None:
    """Creates weights, metrics, loss trackers and optimizer state, as the first step of `fit` does."""
    with call_without_remat(model):
        model._symbolic_build(data_batch=batch)


def infer_predictions(model: keras.Model, x: Any) -> Any:
    """Returns the shapes and dtypes of a model's predictions for those of its inputs."""
    with call_without_remat(model):
        return compute_output_spec(model, x, training=False)


def list_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Lists the model and all layers in it, however nested."""
    return list(model._flatten_layers())


def get_compiled_loss(model: keras.Model) -> Any:
    """Returns the loss object of `compile`; None if the model was compiled without a loss."""
    return model._compile_loss


def make_training_function(model: keras.Model, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a step as `fit` wraps `train_step`: in `tf.function`, compiled if the model is."""
    return model._make_function(step)


@contextmanager
def call_without_remat(model: keras.Model) -> Iterator[None]:
    """Calls all layers and operations of a model as if it was built outside of any `keras.RematScope`."""
    operations = [operation for operation in _list_operations(model) if _find_remat_scope(operation) is not None]
    modes = [(operation, operation._remat_mode) for operation in operations]
    try:
        for operation, _ in modes:
            operation._remat_mode = None
        yield
    finally:
        for operation, mode in modes:
            operation._remat_mode = mode


def list_remat_modes(model: keras.Model) -> list[RematMode]:
    """Lists the modes of the `keras.RematScope`s in which the layers and operations of a model were built."""
    modes: dict[tuple[str, int], list[str]] = {}
    for operation in _list_operations(model):
        scope = _find_remat_scope(operation)
        if scope is None or scope.mode is None or operation is model:
            continue
        if scope.mode == "list_of_layers" and operation.name not in scope.layer_names:
            continue
        if scope.mode == "activations" and getattr(operation, "activation", None) is None:
            continue
        threshold = scope.output_size_threshold if scope.mode == "larger_than" else 0
        modes.setdefault((scope.mode, threshold), []).append(operation.name)
    return [RematMode(mode, threshold, tuple(names)) for (mode, threshold), names in modes.items()]


def _find_remat_scope(operation: Any) -> Any:
    """Returns the settings of the `keras.RematScope` in which an operation was built, or None.

    Before Keras 3.15, only layers have them.
    """
    return getattr(operation, "_remat_mode", None)


def _list_operations(model: keras.Model) -> list[Any]:
    """Lists the model, all layers in it, and the operations of functional models, which need not be layers."""
    layers = list_layers(model)
    return list({id(one): one for layer in layers for one in (layer, *getattr(layer, "operations", ()))}.values())


def get_input_structure(model: keras.Model) -> Any:
    """Returns the inputs of a functional or Sequential model, nested as it takes them; None for other models."""
    structure = getattr(model, "_inputs_struct", None)
    if structure is None and getattr(model, "_functional", None) is not None:
        structure = model._functional._inputs_struct
    return structure
