"""Separates the part of a Keras training step that is rewritten from the rest of the step, which stays Keras's own.

On TensorFlow's graph executor the whole `train_step` is rewritten. XLA orders the optimizer's update itself, and
replicas are joined in it: there the forward pass, the loss and the gradients are rewritten, and the loss tracker, the
update and the metrics stay, exactly as `TensorFlowTrainer.train_step` of Keras 3.15 writes them
(keras/src/backend/tensorflow/trainer.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf import keras_private
from checkmate_tf.errors import BatchError, UnsupportedModelError
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.tf_private import trace
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.remat_scope import call_as_built_in_no_scope
from checkmate_tf.training.replicas import count_replicas


@dataclass(frozen=True)
class StepPart:
    """A step part cuts a training step in two: `finish(batch, compute(batch))` is the whole step and gives its logs.

    `compute` is what is traced and rewritten; it returns nested tensors and None. With `jit_compile` it is traced for
    XLA, which compiles the gradient of a loop only then.
    """

    compute: Callable[[Any], Any]
    finish: Callable[[Any, Any], Any]
    jit_compile: bool

    def trace(self, spec: BatchSpec) -> Any:
        """Traces `compute` as a ConcreteFunction of the flat batch of a static spec."""

        def training_step(*tensors: tf.Tensor) -> Any:
            return self.compute(spec.pack(tensors))

        return trace(tf.function(training_step, autograph=False, jit_compile=self.jit_compile), spec.flat)


def make_whole_part(model: keras.Model) -> StepPart:
    """Takes the whole of the model's `train_step`, whosever that is, as what is rewritten."""
    step = call_as_built_in_no_scope(model, model.train_step)
    return StepPart(step, lambda _, logs: logs, bool(model.jit_compile))


def make_gradient_part(model: keras.Model) -> StepPart | None:
    """Takes the forward pass, the loss and the gradients as what is rewritten; None where the user wrote the
    `train_step`.
    """
    if "train_step" in model.__dict__ or type(model).train_step is not keras.Model.train_step:
        return None
    return StepPart(
        call_as_built_in_no_scope(model, lambda batch: _compute_gradients(model, batch)),
        lambda batch, part: _finish(model, batch, part),
        bool(model.jit_compile),
    )


def choose_part(model: keras.Model, *, with_metrics: bool = False) -> StepPart:
    """Chooses what is rewritten of a model's step: all of it on TensorFlow's graph executor on one device.

    `with_metrics`: all of it under XLA, too, so that what is rewritten need not return the model's predictions.
    """
    is_apart = (model.jit_compile and not with_metrics) or count_replicas(model) > 1
    apart = make_gradient_part(model) if is_apart else None
    return apart or make_whole_part(model)


def complete_step(part: StepPart, spec: BatchSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the whole step of a flat batch with `function` in the place of what is rewritten."""

    def step(*tensors: tf.Tensor) -> Any:
        return part.finish(spec.pack(tensors), function(*tensors))

    return step


def _compute_gradients(model: keras.Model, batch: Any) -> dict[str, Any]:
    """Computes loss, predictions, the Keras masks that ride on the flat predictions, and gradients."""
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
    """Loss tracker, optimizer update and metrics, in Keras's order; the step's logs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    predictions = part["predictions"]
    for leaf, mask in zip(tf.nest.flatten(predictions), part["masks"], strict=True):
        if mask is not None:
            keras_private.set_keras_mask(leaf, mask)
    first = next(leaf for leaf in tf.nest.flatten(x) if leaf is not None)
    keras_private.track_loss(model, part["loss"], tf.shape(first)[0])
    model.optimizer.apply_gradients(zip(part["gradients"], model.trainable_weights, strict=True))
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)


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
    """Raises UnsupportedModelError for what is no Keras model, and for a model of Keras 2."""
    check_not_keras_2(model)
    if not keras_private.is_trainer(model):
        raise UnsupportedModelError(f"{type(model).__name__} is not a keras.Model; for functions use rewrite_function")


def check_eager() -> None:
    """Raises UnsupportedModelError within a `tf.function` and in other graphs, where no step can run."""
    if not tf.executing_eagerly():
        raise UnsupportedModelError(
            "no step can be planned while TensorFlow traces a graph: call this from plain Python"
        )


def check_traceable(model: Any, *, has_data: bool) -> None:
    """Raises UnsupportedModelError unless the model's step can be traced; without data the model must be built."""
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


def build_for(model: keras.Model, spec: BatchSpec) -> None:
    """Creates the variables that the first training step would: weights, metrics, loss trackers, optimizer state.

    An interrupt waits until all are there: an optimizer that has some of them cannot train.

    A `train_step` of the user's own makes what it needs when it is traced.

    Raises BatchError where the model cannot take the batch.
    """
    if make_gradient_part(model) is None:
        return
    try:
        with hold_interrupts():
            keras_private.build_from_batch(model, spec.structure)
        # A call of the model takes inputs that lack a last dimension of 1.
        keras_private.infer_predictions(model, keras.utils.unpack_x_y_sample_weight(_make_symbolic(spec))[0])
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise BatchError(_explain_unfit_batch(model, spec, error)) from error


def _explain_unfit_batch(model: keras.Model, spec: BatchSpec, error: Exception) -> str:
    without_y = keras.utils.unpack_x_y_sample_weight(spec.structure)[1] is None
    hint = "; the data has no y: pass data=(x, y)" if without_y else ""
    return f"model {model.name!r} cannot train on a batch of {spec.key}: {error}{hint}"


def _make_symbolic(spec: BatchSpec) -> Any:
    return tf.nest.map_structure(
        lambda part: None if part is None else keras.KerasTensor(part.shape, part.dtype.name), spec.structure
    )


def list_training_variables(model: keras.Model) -> list[Any]:
    """Lists every variable that a training step may change, each once: weights, optimizer state and metrics."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(variable): variable for variable in variables}.values())
