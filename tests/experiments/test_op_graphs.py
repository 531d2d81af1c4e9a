"""An unfused graph has every operation of a training step, with what each yields."""

from collections import Counter

import keras

from checkmate_tf.simulator import simulate_stock
from experiments.op_graphs import feed_forward, unfused_graph


def test_unfused_graph_has_a_node_an_operation() -> None:
    """Two layers: two products forward, two gradients of weights and one of a layer's input."""
    model = feed_forward(1, width=16)
    model.compile(keras.optimizers.SGD(), keras.losses.MeanSquaredError())
    graph = unfused_graph(model, batch_size=64, name="two layers")
    types = Counter(node.op_type for node in graph.nodes)
    assert (types["MatMul"], types["BiasAdd"], types["Relu"], types["BiasAddGrad"]) == (5, 2, 1, 2)
    assert {node.cost for node in graph.nodes} == {1}
    sizes = {graph.values[node.outputs[0]].size_bytes for node in graph.nodes if node.op_type == "MatMul"}
    assert sizes == {4 * 64 * 16, 4 * 16 * 16}
    repeated = {node.op_type for node in graph.nodes if not node.recomputable}
    assert "ReadVariableOp" in repeated
    assert "MatMul" not in repeated
    assert (
        simulate_stock(graph).peak_bytes >= 5 * 4 * 64 * 16
    )  # x, y, the hidden layer before and after ReLU, the output
