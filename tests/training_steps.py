"""Small models whose training steps are traced, and random schedules for them."""

import keras
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
