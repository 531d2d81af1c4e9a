"""Layers and source lines of nodes, on models whose lines are known here."""

import inspect
from pathlib import Path

import keras
import tensorflow as tf
from keras import layers

from checkmate_tf.graph import Graph
from checkmate_tf.origins import NodeOrigin, Origins
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.origins import find_origins
from checkmate_tf.training.traced_model import trace_model

HERE = Path(__file__).resolve().relative_to(Path.cwd()).as_posix()


class Block(layers.Layer):
    """Two layers, one used twice, and operations of its own in a name scope of the user's."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = layers.Dense(64, name="narrow")
        self.second = layers.Dense(64, name="narrow_1")

    def call(self, x):
        y = self.second(self.first(x))
        with tf.name_scope("mine"):
            y = tf.nn.gelu(y)
        return self.second(y)


def lines_of(text: str) -> str:
    """This file and the line of `Block.call` that has the text."""
    source, first = inspect.getsourcelines(Block.call)
    return f"{HERE}:{first + next(i for i, line in enumerate(source) if text in line)}"


def traced() -> tuple[Graph, Origins]:
    inputs = keras.Input((64,))
    outputs = layers.ReLU(name="bend")(Block(name="block")(layers.Dense(64, name="stem")(inputs)))
    model = keras.Model(inputs, layers.Dense(1, name="head")(outputs), name="net")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
    training_graph = trace_model(model, batch_size=512).extract()
    return training_graph.graph, find_origins(training_graph)


def test_nodes_have_layers_and_lines() -> None:
    graph, origins = traced()
    found = {node.name: origin for node, origin in zip(graph.nodes, origins.nodes, strict=True)}
    called = lines_of("self.first(x)")
    assert found["net_1/stem_1/MatMul"] == NodeOrigin("stem", "")
    assert found["net_1/block_1/narrow_1/MatMul"] == NodeOrigin("block/narrow", called)
    assert found["net_1/block_1/narrow_1_2/MatMul"] == NodeOrigin("block/narrow_1", called)
    assert found["net_1/block_1/mine/Gelu/Erfc"] == NodeOrigin("block", lines_of("gelu"))
    assert found["net_1/block_1/narrow_1_4/MatMul"] == NodeOrigin("block/narrow_1", lines_of("self.second(y)"))
    gradient = "gradient_tape/net_1/block_1/"
    assert found[f"{gradient}narrow_1_2/MatMul/MatMul"] == NodeOrigin("block/narrow_1", called)
    assert found[f"{gradient}mine/Gelu/Square"] == NodeOrigin("block", lines_of("gelu"))
    assert {origin.layer for origin in origins.nodes} >= {"stem", "block", "bend", "head", "compile_loss/mse"}


def test_updates_belong_to_the_layer_whose_gradient_they_read() -> None:
    graph, origins = traced()
    updates = {
        origin.layer
        for node, origin in zip(graph.nodes, origins.nodes, strict=True)
        if "Assign" in node.op_type and len(node.inputs) == 1
    }
    assert {"stem", "block/narrow"} <= updates


def test_values_have_shapes_and_types() -> None:
    graph, origins = traced()
    value = next(i for i, value in enumerate(graph.values) if value.name == "net_1/block_1/narrow_1/BiasAdd:0")
    assert str(origins.values[value]) == "float32 [512, 64]"


def test_functions_without_a_model() -> None:
    dense = layers.Dense(64, name="inner")
    dense.build((64,))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(dense(x)))
        return tape.gradient(loss, dense.trainable_variables)

    training_graph = extract(step.get_concrete_function(tf.TensorSpec((512, 64))))
    origins = find_origins(training_graph)
    by_name = {node.name: origin for node, origin in zip(training_graph.graph.nodes, origins.nodes, strict=True)}
    layers_found = {origin.layer for origin in by_name.values()}
    assert "inner" in layers_found
    assert all(origin.source.startswith(f"{HERE}:") for name, origin in by_name.items() if "Tanh" in name)
