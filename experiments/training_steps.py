"""Losses of batches, traced steps, a schedule that computes most of one twice, and what a step leaves behind."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule


class BatchLosses(keras.callbacks.Callback):
    """Keeps the loss of each batch in `losses`: the logs would have its mean over the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


def trace(model: keras.Model, *, batch_size: int = 4):
    """The concrete function of one step: loss, predictions and gradients of a batch and its integer labels."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in model.trainable_variables]

    def step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loss_of(y, predictions) + sum(model.losses)
        return {"loss": loss, "predictions": predictions, "gradients": tape.gradient(loss, variables)}

    x = tf.TensorSpec((batch_size, *model.inputs[0].shape[1:]), model.inputs[0].dtype)
    return tf.function(step, autograph=False).get_concrete_function(x, tf.TensorSpec((batch_size,), tf.int32))


def batch_of(function) -> tuple[tf.Tensor, tf.Tensor]:
    """Random data for the two arguments of a traced step."""
    x, y = function.structured_input_signature[0]
    random = np.random.default_rng(0)
    drawn = random.integers(0, 10, x.shape) if x.dtype.is_integer else random.normal(size=x.shape)
    return tf.constant(drawn, x.dtype), tf.constant(random.integers(0, 10, y.shape), y.dtype)


def run(function: Callable, arguments: Sequence[tf.Tensor], variables: Sequence = ()) -> list[np.ndarray]:
    """What a step returns, and what it leaves in the variables, which are put back as they were."""
    before = [variable.numpy() for variable in variables]
    flat = tf.nest.flatten(function(*arguments), expand_composites=True)
    after = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return [np.asarray(tensor) for tensor in flat] + after


def recompute_all(graph: Graph, *, keep_every: int = 4) -> Schedule:
    """Computes all forward nodes but every `keep_every`-th again, just before the backward node that reads them."""
    forward = [index for index, node in enumerate(graph.nodes) if not node.is_backward]
    dropped = {index for index in forward if graph.nodes[index].recomputable} - set(forward[::keep_every])
    order: list[int] = []

    def bring(node: int) -> None:
        for source in graph.predecessors[node]:
            if source in dropped:
                dropped.discard(source)
                bring(source)
                order.append(source)

    for index, node in enumerate(graph.nodes):
        if node.is_backward:
            bring(index)
        order.append(index)
    return Schedule(tuple(order))


class Branch(keras.layers.Layer):
    """Control flow, a split and a custom gradient."""

    def call(self, x):
        first, second = tf.split(x, 2, axis=-1)
        mixed = tf.concat([tf.nn.silu(first), second * second], -1)
        return tf.cond(tf.reduce_mean(x) > 0.0, lambda: tf.nn.relu(mixed) * 2.0, lambda: tf.nn.tanh(mixed))
