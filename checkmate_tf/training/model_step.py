"""Traces the training graph of a compiled Keras model at a batch size, and installs nothing in the model."""

from dataclasses import dataclass

import keras
import tensorflow as tf

from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.installed_step import count_resident
from checkmate_tf.training.step_parts import build_for, check_model, make_whole_part


@dataclass(frozen=True)
class ModelStep:
    """A model step is a model's training step, and a batch of zeros to run it on.

    The step reads the variables of `model`, and dies with it.
    """

    model: keras.Model
    training_graph: TrainingGraph
    arguments: tuple[tf.Tensor, ...]


def trace_model_step(model: keras.Model, batch_size: int) -> ModelStep:
    """Traces the step of a compiled model; the other sizes come from the model's own shapes.

    Raises UnsupportedModelError or BatchError for a model that `rematerialize` would refuse.
    """
    check_model(model)
    spec = guess_spec(model, batch_size)
    build_for(model, spec)
    function = make_whole_part(model).trace(spec)
    resident_bytes = count_resident(model, spec, function).total
    training_graph = extract(function, name=model.name, resident_bytes=resident_bytes)
    return ModelStep(model, training_graph, spec.make_zeros().tensors)
