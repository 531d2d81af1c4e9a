"""Creates and lists the variables that a training step of a model changes."""

from typing import Any

import keras
import tensorflow as tf

from checkmate_tf import keras_private
from checkmate_tf.errors import BatchError
from checkmate_tf.executors.graph.host_state import place_state
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.step_part import make_gradient_part


def build_for(model: keras.Model, spec: BatchSpec) -> None:
    """Creates the variables of the first training step: weights, metrics, loss trackers, optimizer state.

    An interrupt waits until all of them exist, because an optimizer with some of its variables cannot train. A
    `train_step` of the user's own creates its variables when it is traced.

    Raises BatchError if the model cannot train on such a batch.
    """
    if make_gradient_part(model) is None:
        return
    try:
        with hold_interrupts():
            keras_private.build_from_batch(model, spec.structure)
        # A call of the model accepts inputs that lack a last dimension of 1.
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


def return_state(model: keras.Model) -> None:
    """Moves optimizer state that a step keeps in host memory back to the device, where traced functions expect it."""
    place_state(variable.value for variable in list_training_variables(model))


def list_training_variables(model: keras.Model) -> list[Any]:
    """Lists the variables that a training step may change, without repeats: weights, optimizer state and metrics."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(variable): variable for variable in variables}.values())
