"""The part of a Keras training step that is rewritten, and the rest of the step, which stays Keras's own.

With Keras's `train_step` the forward pass, the loss and the gradients are rewritten; the loss tracker, the
optimizer's update and the metrics stay, exactly as `TensorFlowTrainer.train_step` of Keras 3.15 writes
them (keras/src/backend/tensorflow/trainer.py). A `train_step` of the user's own is rewritten whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.losses.loss import unscale_loss_for_distribution

from checkmate_tf.errors import BatchError, UnsupportedModelError
from checkmate_tf.training_data import BatchSpec


@dataclass(frozen=True)
class StepPart:
    """A training step in two parts: `finish(batch, compute(batch))` is the whole step and gives its logs.

    `compute` is what is traced and rewritten; it returns nested tensors and None. `original` is the step
    that the rewrite stands in for.
    """

    compute: Callable[[Any], Any]
    finish: Callable[[Any, Any], Any]
    original: Callable[[Any], Any]
    is_whole: bool

    def trace(self, spec: BatchSpec) -> Any:
        """`compute` as a ConcreteFunction of the flat batch of a static spec."""

        def training_step(*tensors: tf.Tensor) -> Any:
            return self.compute(spec.pack(tensors))

        return tf.function(training_step, autograph=False).get_concrete_function(*spec.flat)


def step_part(model: keras.Model, own_step: Callable[[Any], Any] | None = None) -> StepPart:
    """What to rewrite of the model's step; `own_step` is a `train_step` set on the instance, None for its class's."""
    original = own_step or type(model).train_step.__get__(model)
    if own_step is None and type(model).train_step is keras.Model.train_step:
        return StepPart(lambda b: _gradients(model, b), lambda b, part: _finish(model, b, part), original, False)
    return StepPart(original, lambda _, logs: logs, original, True)


def _gradients(model: keras.Model, batch: Any) -> dict[str, Any]:
    """Loss, predictions, the Keras masks that ride on the flat predictions, and gradients."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        predictions = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=predictions, sample_weight=sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    return {
        "loss": loss,
        "predictions": predictions,
        "masks": [get_keras_mask(leaf) for leaf in tf.nest.flatten(predictions)],
        "gradients": tape.gradient(scaled, model.trainable_weights),
    }


def _finish(model: keras.Model, batch: Any, part: dict[str, Any]) -> Any:
    """Loss tracker, optimizer update and metrics, in Keras's order; the step's logs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    predictions = part["predictions"]
    for leaf, mask in zip(tf.nest.flatten(predictions), part["masks"], strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)
    first = next(leaf for leaf in tf.nest.flatten(x) if leaf is not None)
    model._loss_tracker.update_state(unscale_loss_for_distribution(part["loss"]), sample_weight=tf.shape(first)[0])
    model.optimizer.apply_gradients(zip(part["gradients"], model.trainable_weights, strict=True))
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)


def check_model(model: Any) -> None:
    """Raises UnsupportedModelError unless the model is compiled for the graph executor of TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedModelError(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow before importing it"
        )
    if not isinstance(model, TensorFlowTrainer):
        raise UnsupportedModelError(f"{type(model).__name__} is not a keras.Model; for functions use rewrite_function")
    if not getattr(model, "compiled", False):
        raise UnsupportedModelError(f"model {model.name!r} is not compiled; call model.compile(optimizer, loss) first")
    if model.optimizer is None:
        raise UnsupportedModelError(f"model {model.name!r} is compiled without an optimizer; compile it with one")


def build_for(model: keras.Model, spec: BatchSpec | None) -> None:
    """Creates the variables that the first training step would: weights, metrics, loss trackers, optimizer state.

    A `train_step` of the user's own makes what it needs beside the weights when it is traced.

    Raises UnsupportedModelError where the model is not built and `spec` is None, or has nothing to train,
    and BatchError where the model cannot take the batch.
    """
    if spec is None and not all(layer.built for layer in model._flatten_layers()):
        raise UnsupportedModelError(
            f"model {model.name!r} is not built; call model.build(input_shape), call it on a batch, "
            "or pass rematerialize(model, data=(x, y)), or a dataset"
        )
    if spec is not None:
        try:
            if type(model).train_step is keras.Model.train_step:
                model._symbolic_build(data_batch=spec.structure)
            model.compute_output_spec(keras.utils.unpack_x_y_sample_weight(_symbolic(spec))[0])
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            without_y = keras.utils.unpack_x_y_sample_weight(spec.structure)[1] is None
            hint = "; the data has no y: pass rematerialize(model, data=(x, y))" if without_y else ""
            raise BatchError(f"model {model.name!r} cannot train on a batch of {spec.key}: {error}{hint}") from error
    if model.built and not model.trainable_weights:
        raise UnsupportedModelError(
            f"model {model.name!r} has no trainable weights; set trainable = True on a layer and compile again"
        )


def _symbolic(spec: BatchSpec) -> Any:
    return tf.nest.map_structure(
        lambda part: None if part is None else keras.KerasTensor(part.shape, part.dtype.name), spec.structure
    )


def training_variables(model: keras.Model) -> list[Any]:
    """Every variable that a training step may change: weights, optimizer state, metrics; each once."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(variable): variable for variable in variables}.values())
