"""Layer-level graphs of Keras models by the Checkmate paper's rule."""

import pytest

from checkmate_tf.simulator import simulate_stock
from experiments.layer_graphs import BATCH_SIZES, committed_graph, layer_graph, named_layer_graph, num_edges


@pytest.mark.parametrize(("name", "nodes", "edges"), [("fcn8", 73, 149), ("resnet50", 353, 751)])
def test_published_counts(name, nodes, edges):
    graph = named_layer_graph(name, batch_size=BATCH_SIZES[name])
    assert (len(graph.nodes), num_edges(graph)) == (nodes, edges)
    assert graph == committed_graph(name)


def test_a_small_model_by_hand():
    import keras

    image = keras.Input((4, 4, 1))
    x = keras.layers.Conv2D(2, 3, padding="same", name="conv")(image)
    y = keras.layers.ReLU(name="relu")(x)
    model = keras.Model(image, keras.layers.Add(name="add")([x, y]))
    graph = layer_graph(model, batch_size=5)
    # 4 * 4 pixels of 2 channels of 4 bytes for each of 5 examples.
    assert [value.size_bytes for value in graph.values] == [640, 640, 640, 20, 640, 640, 640]
    assert [node.inputs for node in graph.nodes] == [(), (0,), (0, 1), (2,), (0, 1, 2, 3), (0, 1, 4), (0, 4, 5)]
    # 5 * 32 outputs of 3 * 3 * 1 multiply-adds; elements read; gradients twice that.
    assert [node.cost for node in graph.nodes] == [1440, 160, 320, 160, 640, 320, 2880]
    # The batch, and 20 parameters with their gradients.
    assert graph.resident_bytes == 5 * 16 * 4 + 2 * 20 * 4


@pytest.mark.parametrize("name", BATCH_SIZES)
def test_committed_graphs_load(name):
    graph = committed_graph(name)
    assert len(graph.nodes) % 2 == 1
    assert simulate_stock(graph).overhead == 0
