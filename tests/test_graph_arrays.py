"""The flat arrays of a graph say what its nodes and values say."""

import numpy as np
from hypothesis import given

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.graph_arrays import Rows
from tests.graphs import graphs


def test_arrays_of_a_small_graph():
    nodes = (
        Node("a", "A", inputs=(), outputs=(0, 1), cost=1, workspace_bytes=7, recomputable=False),
        Node("b", "B", inputs=(0,), outputs=(2,), cost=1, inplace=True),
        Node("c", "C", inputs=(2, 0), outputs=(), cost=1, inplace=True),
    )
    arrays = Graph(nodes, (Value("x", 4), Value("y", 8), Value("z", 4)), outputs=(1,)).arrays
    assert [arrays.inputs.start.tolist(), arrays.inputs.index.tolist()] == [[0, 0, 1, 3], [0, 2, 0]]
    assert [arrays.outputs.start.tolist(), arrays.outputs.index.tolist()] == [[0, 2, 3, 3], [0, 1, 2]]
    assert [arrays.users.start.tolist(), arrays.users.index.tolist()] == [[0, 2, 2, 3], [1, 2, 2]]
    assert arrays.producer.tolist() == [0, 0, 1]
    assert arrays.last_user.tolist() == [2, -1, 2]
    assert arrays.is_output.tolist() == [False, True, False]
    assert arrays.workspace_bytes.tolist() == [7, 0, 0]
    assert arrays.recomputable.tolist() == [False, True, True]
    assert arrays.takes_over_bytes.tolist() == [-1, 4, -1]


@given(graphs())
def test_rows_are_those_of_the_nodes(graph):
    links = graph.arrays.inputs.join(graph.arrays.outputs)
    assert split(links) == [[*node.inputs, *node.outputs] for node in graph.nodes]
    assert split(graph.arrays.users) == [list(users) for users in graph.users]


def split(rows: Rows) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.index, rows.start[1:-1])]
