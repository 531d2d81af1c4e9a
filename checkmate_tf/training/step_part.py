"""Separates the part of a Keras training step that is rewritten from the rest of the step, which stays Keras's own.

On TensorFlow's graph executor, the whole `train_step` is rewritten. XLA orders the optimizer's update itself, and
replicas are joined in it. In both cases, only the forward pass, the loss and the gradients are rewritten. The loss
tracker, the update and the metrics stay as in `TensorFlowTrainer.train_step` of Keras 3.15
(keras/src/backend/tensorflow/trainer.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf import keras_private
from checkmate_tf.tf_private import trace
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.remat_scope import call_as_built_in_no_scope
from checkmate_tf.training.replicas import count_replicas


@dataclass(frozen=True)
class StepPart:
    """The two parts of a training step: `finish(batch, compute(batch))` is the whole step, and returns its logs.

    `compute` is traced and rewritten. It returns nested tensors and None. With `jit_compile`, it is traced for XLA,
    which otherwise cannot compile the gradient of a loop.
    """

    compute: Callable[[Any], Any]
    finish: Callable[[Any, Any], Any]
    jit_compile: bool

    def trace(self, spec: BatchSpec) -> Any:
        """Traces `compute` for the flat batch of a static spec, and returns the ConcreteFunction."""

        def training_step(*tensors: tf.Tensor) -> Any:
            return self.compute(spec.pack(tensors))

        return trace(tf.function(training_step, autograph=False, jit_compile=self.jit_compile), spec.flat)


def make_whole_part(model: keras.Model) -> StepPart:
    """Returns parts of which the first is all of the model's `train_step`, Keras's or the user's."""
    step = call_as_built_in_no_scope(model, model.train_step)
    return StepPart(step, lambda _, logs: logs, bool(model.jit_compile))


def make_gradient_part(model: keras.Model) -> StepPart | None:
    """Returns parts of which the first is the forward pass, the loss and the gradients.

    Returns None if the user wrote the `train_step`.
    """
    if "train_step" in model.__dict__ or type(model).train_step is not keras.Model.train_step:
        return None
    return StepPart(
        call_as_built_in_no_scope(model, lambda batch: _compute_gradients(model, batch)),
        lambda batch, part: _finish(model, batch, part),
        bool(model.jit_compile),
    )


def choose_part(model: keras.Model, *, with_metrics: bool = False) -> StepPart:
    """Returns the parts of a model's step. On TensorFlow's graph executor on one device, all of it is rewritten.

    With `with_metrics`, all of it is rewritten under XLA, too, so that `compute` need not return the predictions.
    """
    is_apart = (model.jit_compile and not with_metrics) or count_replicas(model) > 1
    apart = make_gradient_part(model) if is_apart else None
    return apart or make_whole_part(model)


def complete_step(part: StepPart, spec: BatchSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the whole step of a flat batch, with `function` instead of `compute`."""

    def step(*tensors: tf.Tensor) -> Any:
        return part.finish(spec.pack(tensors), function(*tensors))

    return step


def _compute_gradients(model: keras.Model, batch: Any) -> dict[str, Any]:
    """Computes loss, predictions, the Keras masks of the flat predictions, and gradients."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        predictions = keras_private.call_in_training(model, x)
        loss = keras_private.compute_training_loss(model, x, y, predictions, sample_weight)
        scaled = model.optimizer.scale_loss(loss)
    return {
        "loss": loss,
        "predictions": predictions,
        "masks": [keras_private.get_keras_mask(leaf) for leaf in tf.nest.flatten(predictions)],
        "gradients": tape.gradient(scaled, model.trainable_weights),
    }


def _finish(model: keras.Model, batch: Any, part: dict[str, Any]) -> Any:
    """Updates loss tracker, variables and metrics, in Keras's order. Returns the step's logs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    predictions = part["predictions"]
    for leaf, mask in zip(tf.nest.flatten(predictions), part["masks"], strict=True):
        if mask is not None:
            keras_private.set_keras_mask(leaf, mask)
    first = next(leaf for leaf in tf.nest.flatten(x) if leaf is not None)
    keras_private.track_loss(model, part["loss"], tf.shape(first)[0])
    model.optimizer.apply_gradients(zip(part["gradients"], model.trainable_weights, strict=True))
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)
