"""Traced training steps of small models, schedules for them, and how to compare what steps return."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule

layers = keras.layers


def conv_chain(*, num_layers: int = 6, size: int = 16, channels: int = 32) -> keras.Model:
    """Convolutions with bias and ReLU, one after the other."""
    inputs = outputs = keras.Input((size, size, 3))
    for _ in range(num_layers):
        outputs = layers.Conv2D(channels, 3, padding="same", activation="relu")(outputs)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs)))


def stateful_net() -> keras.Model:
    """Batch normalization, dropout, weight decay and a skip connection."""
    inputs = keras.Input((16, 16, 3))
    outputs = layers.Conv2D(16, 3, padding="same", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
    for _ in range(2):
        skip = outputs
        outputs = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(outputs))
        outputs = layers.Dropout(0.3)(layers.Activation("silu")(outputs))
        outputs = layers.Add()([outputs, skip])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs)))


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


@st.composite
def schedules(draw: st.DrawFn, graph: Graph) -> Schedule:
    """Random valid schedules: any topological order, with repeats anywhere."""
    missing = [len(sources) for sources in graph.predecessors]
    ready = [node for node, count in enumerate(missing) if count == 0]
    computed: list[int] = []
    order: list[int] = []
    while ready:
        repeatable = [node for node in computed if graph.nodes[node].recomputable]
        if repeatable:
            order += draw(st.lists(st.sampled_from(repeatable), max_size=2))
        node = ready.pop(draw(st.integers(0, len(ready) - 1)))
        order.append(node)
        computed.append(node)
        for user in graph.successors[node]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return Schedule(tuple(order))
