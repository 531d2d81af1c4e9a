"""Checks that a model and its compile() arguments allow its training step to be traced and rewritten."""

from typing import Any

import keras
import tensorflow as tf

from checkmate_tf import keras_private
from checkmate_tf.errors import UnsupportedModelError


def check_model(model: Any) -> None:
    """Raises UnsupportedModelError unless the model is compiled for the graph executor of TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedModelError(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow before importing it"
        )
    check_is_model(model)
    if not getattr(model, "compiled", False):
        raise UnsupportedModelError(f"model {model.name!r} is not compiled; call model.compile(optimizer, loss) first")
    if model.built and not model.trainable_weights:
        raise UnsupportedModelError(
            f"model {model.name!r} has no trainable weights; set trainable = True on a layer and compile again"
        )
    if model.optimizer is None:
        raise UnsupportedModelError(f"model {model.name!r} is compiled without an optimizer; compile it with one")


def check_not_keras_2(model: Any) -> None:
    """Raises UnsupportedModelError for a model of Keras 2, the package `tf_keras`."""
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise UnsupportedModelError(
            f"{type(model).__name__} is a model of Keras 2 (tf_keras), and checkmate_tf works with Keras 3; build it "
            "with `import keras`, with TF_USE_LEGACY_KERAS unset before TensorFlow is imported"
        )


def check_is_model(model: Any) -> None:
    """Raises UnsupportedModelError for an object that is not a Keras model, and for a model of Keras 2."""
    check_not_keras_2(model)
    if not keras_private.is_trainer(model):
        raise UnsupportedModelError(f"{type(model).__name__} is not a keras.Model; for functions use rewrite_function")


def check_eager() -> None:
    """Raises UnsupportedModelError within a `tf.function` or another graph, because no step can run there."""
    if not tf.executing_eagerly():
        raise UnsupportedModelError(
            "no step can be planned while TensorFlow traces a graph: call this from plain Python"
        )


def check_traceable(model: Any, *, has_data: bool) -> None:
    """Raises UnsupportedModelError unless the model's step can be traced. Without data, the model must be built."""
    check_model(model)
    check_eager()
    if model.run_eagerly:
        raise UnsupportedModelError(
            f"model {model.name!r} is compiled with run_eagerly=True, which runs operation by operation: there is no "
            "graph to rewrite; compile it with run_eagerly=False"
        )
    if not has_data and not all(layer.built for layer in keras_private.list_layers(model)):
        raise UnsupportedModelError(
            f"model {model.name!r} is not built; call model.build(input_shape), call it on a batch, "
            "or pass data=(x, y), or a dataset"
        )
