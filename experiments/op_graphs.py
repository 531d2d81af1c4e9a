"""Op-level training graphs of Keras models for the solver experiments: traced and extracted, never executed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.profiling.costs import CostModel, cost_training_graph
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.ops import OpList, list_ops
from checkmate_tf.tracing.semantics import is_stateful
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.step_part import make_gradient_part, make_whole_part


def op_graph(model: keras.Model, *, batch_size: int, name: str, costs: CostModel | None = None) -> Graph:
    """The graph of one training step at a batch size; the model is compiled here if it is not.

    Costs are those of the extraction, from formulas, unless a cost model is given.
    """
    if not model.compiled:
        model.compile("sgd", keras.losses.MeanSquaredError())
    spec = guess_spec(model, batch_size)
    build_for(model, spec)
    traced = extract(make_gradient_part(model).trace(spec), name=name)
    return (traced if costs is None else cost_training_graph(traced, costs)).graph


def unfused_graph(model: keras.Model, *, batch_size: int, name: str) -> Graph:
    """Every operation of a whole training step as a node of cost 1: constants, reads, views and updates, too.

    Nothing is fused, left out or written over an input, and a view takes memory of its own, as in the graphs of
    TWRemat's section 4. What a read of a variable yields takes none. No value is held to the end, as updates are nodes.
    """
    if not model.compiled:
        model.compile("sgd", keras.losses.MeanSquaredError())
    spec = guess_spec(model, batch_size)
    build_for(model, spec)
    function = make_whole_part(model).trace(spec)
    ops = list_ops(function.graph)
    # Each operation that another waits for has an empty value more, which that one reads.
    awaited = {source for sources in ops.controls for source in sources}
    first_value, values = [], []
    for index, op in enumerate(ops.ops):
        first_value.append(len(values))
        sizes = (0,) * len(op.outputs) if op.type == "ReadVariableOp" else ops.sizes_bytes[index]
        values.extend(Value(f"{op.name}:{position}", size or 0) for position, size in enumerate(sizes))
        values.extend([Value(f"^{op.name}", 0)] if index in awaited else [])
    nodes = [_op_node(ops, index, first_value, len(values), function.graph) for index in range(len(ops.ops))]
    return Graph(tuple(nodes), tuple(values), cost_unit="unit", name=name, source="tensorflow")


def _op_node(ops: OpList, index: int, first_value: Sequence[int], num_values: int, graph: tf.Graph) -> Node:
    op = ops.ops[index]
    read = {first_value[source] + position for source, position in ops.inputs[index]}
    read |= {first_value[source] + len(ops.ops[source].outputs) for source in ops.controls[index]}
    end = first_value[index + 1] if index + 1 < len(first_value) else num_values
    return Node(
        name=op.name,
        op_type=op.type,
        inputs=tuple(sorted(read)),
        outputs=tuple(range(first_value[index], end)),
        cost=1,
        is_backward=ops.is_backward[index],
        recomputable=op.type not in ("Placeholder", "ReadVariableOp") and not is_stateful(op, graph),
    )


def unit_costs(graph: Graph) -> Graph:
    """The graph with every node at cost 1, as in the experiments of TWRemat and FastSA."""
    return replace(graph, nodes=tuple(replace(node, cost=1) for node in graph.nodes), cost_unit="unit")


def feed_forward(num_layers: int, *, width: int = 1024) -> keras.Model:
    """Dense layers with ReLU, and one linear output (TWRemat, section 4)."""
    inputs = x = keras.Input((width,))
    for _ in range(num_layers):
        x = keras.layers.Dense(width, "relu")(x)
    return keras.Model(inputs, keras.layers.Dense(width)(x), name=f"feed_forward{num_layers}")


def resnet(depth: int, *, image_size: int = 224, num_classes: int = 1000) -> keras.Model:
    """ResNet v2 of depth 18, 34, 50, 101, 152 or 200 (He et al. 2016), as in TensorFlow's official model."""
    blocks = {
        18: (2, 2, 2, 2),
        34: (3, 4, 6, 3),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
        200: (3, 24, 36, 3),
    }[depth]
    block: Callable[..., keras.KerasTensor] = _basic_block if depth < 50 else _bottleneck_block
    inputs = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(64, 7, strides=2, padding="same", use_bias=False)(inputs)
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, num_blocks in enumerate(blocks):
        for index in range(num_blocks):
            x = block(x, 64 << stage, strides=2 if stage and not index else 1, project=not index)
    x = keras.layers.GlobalAveragePooling2D()(_normalized(x))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x), name=f"resnet{depth}")


def transformer(
    num_blocks: int, *, width: int = 512, num_heads: int = 8, feed_forward_width: int = 2048, length: int = 256
) -> keras.Model:
    """Pre-norm transformer blocks on 32,000 tokens; "base" of Vaswani et al. has 6 + 6 of them."""
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(32000, width)(tokens)
    for _ in range(num_blocks):
        attended = keras.layers.LayerNormalization()(x)
        attended = keras.layers.MultiHeadAttention(num_heads, width // num_heads)(attended, attended)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(attended)])
        hidden = keras.layers.Dense(feed_forward_width, "relu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(keras.layers.Dense(width)(hidden))])
    x = keras.layers.Dense(32000)(keras.layers.LayerNormalization()(x))
    model = keras.Model(tokens, x, name=f"transformer{num_blocks}")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def transformer_base(
    num_layers: int = 6,
    *,
    width: int = 512,
    num_heads: int = 8,
    feed_forward_width: int = 2048,
    length: int = 256,
    vocabulary: int = 33_708,
) -> keras.Model:
    """The encoder-decoder of Vaswani et al. with the recommended defaults of TensorFlow's official model.

    Dropout of 0.1 on attention weights, hidden layers and before every residual sum. Of what that model has, label
    smoothing and the sharing of embeddings are left out. Take 2,048 tokens a batch: 8 rows of 256.
    """
    sources, targets = keras.Input((length,), dtype="int32"), keras.Input((length,), dtype="int32")

    def embedded(tokens: keras.KerasTensor) -> keras.KerasTensor:
        x = keras.layers.Embedding(vocabulary, width)(tokens)
        return keras.layers.Dropout(0.1)(x * width**0.5 + _sinusoids(length, width))

    def attention(x: keras.KerasTensor, memory: keras.KerasTensor | None, causal: bool) -> keras.KerasTensor:
        normalized = keras.layers.LayerNormalization()(x)
        attend = keras.layers.MultiHeadAttention(num_heads, width // num_heads, dropout=0.1)
        attended = attend(normalized, normalized if memory is None else memory, use_causal_mask=causal)
        return keras.layers.Add()([x, keras.layers.Dropout(0.1)(attended)])

    def feed_forward(x: keras.KerasTensor) -> keras.KerasTensor:
        hidden = keras.layers.Dense(feed_forward_width, "relu")(keras.layers.LayerNormalization()(x))
        hidden = keras.layers.Dense(width)(keras.layers.Dropout(0.1)(hidden))
        return keras.layers.Add()([x, keras.layers.Dropout(0.1)(hidden)])

    encoded, decoded = embedded(sources), embedded(targets)
    for _ in range(num_layers):
        encoded = feed_forward(attention(encoded, None, causal=False))
    encoded = keras.layers.LayerNormalization()(encoded)
    for _ in range(num_layers):
        decoded = feed_forward(attention(attention(decoded, None, causal=True), encoded, causal=False))
    logits = keras.layers.Dense(vocabulary, use_bias=False)(keras.layers.LayerNormalization()(decoded))
    model = keras.Model([sources, targets], logits, name=f"transformer_base{num_layers}")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def transformer_big(num_layers: int = 6) -> keras.Model:
    """`transformer_base` at the size of Vaswani et al.'s "big". Take 4,096 tokens a batch: 16 rows of 256."""
    return transformer_base(num_layers, width=1024, num_heads=16, feed_forward_width=4096)


def _sinusoids(length: int, width: int) -> np.ndarray:
    """Positions as Vaswani et al. encode them (section 3.5), float32 [length, width]."""
    frequencies = 10_000.0 ** -(np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1).astype(np.float32)


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))


def _conv(x: keras.KerasTensor, filters: int, size: int, strides: int = 1) -> keras.KerasTensor:
    return keras.layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)


def _basic_block(x: keras.KerasTensor, filters: int, *, strides: int, project: bool) -> keras.KerasTensor:
    preactivated = _normalized(x)
    shortcut = _conv(preactivated, filters, 1, strides) if project else x
    x = _normalized(_conv(preactivated, filters, 3, strides))
    return keras.layers.Add()([shortcut, _conv(x, filters, 3)])


def _bottleneck_block(x: keras.KerasTensor, filters: int, *, strides: int, project: bool) -> keras.KerasTensor:
    preactivated = _normalized(x)
    shortcut = _conv(preactivated, 4 * filters, 1, strides) if project else x
    x = _normalized(_conv(preactivated, filters, 1))
    x = _normalized(_conv(x, filters, 3, strides))
    return keras.layers.Add()([shortcut, _conv(x, 4 * filters, 1)])
