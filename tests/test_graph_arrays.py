"""The flat arrays of a graph say what its nodes and values say."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.graph_arrays import Rows
from checkmate_tf.simulator import find_first_beside
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.ordering.topological_order import search_order
from checkmate_tf.solvers.pruning import prune
from tests.graphs import graphs, training_chain


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
    assert arrays.last_use.tolist() == [2, 3, 2]
    assert arrays.is_output.tolist() == [False, True, False]
    assert arrays.workspace_bytes.tolist() == [7, 0, 0]
    assert arrays.recomputable.tolist() == [False, True, True]
    assert arrays.inplace_output.tolist() == [-1, 2, -1]
    assert arrays.takes_over_bytes.tolist() == [-1, 4, -1]


@given(graphs())
def test_rows_are_those_of_the_nodes(graph):
    links = graph.arrays.inputs.join(graph.arrays.outputs)
    assert split(links) == [[*node.inputs, *node.outputs] for node in graph.nodes]
    assert split(graph.arrays.users) == [list(users) for users in graph.users]


@pytest.mark.parametrize("solver", ["chen_sqrt", "stage_annealing", "fastsa", "auto"])
def test_what_starts_from_the_arrays_leaves_them_as_they_are(solver):
    graph = training_chain(6)
    solution = solve(graph, 6, solver=solver, order="free", time_limit_s=2)
    assert solution.schedule is not None
    prune(graph, solution.schedule, 6)
    find_first_beside(graph, solution.schedule)
    search_order(graph)
    untouched = training_chain(6)
    assert arrays_of(graph) == arrays_of(untouched)


def test_arrays_are_made_once_and_go_with_their_graph():
    graph = training_chain(2)
    arrays = weakref.ref(graph.arrays)
    assert graph.arrays is arrays()
    del graph
    gc.collect()
    assert arrays() is None


def arrays_of(graph: Graph) -> list[list[int]]:
    arrays = graph.arrays
    parts = [part for part in vars(arrays).values() if isinstance(part, np.ndarray)]
    rows = [part for row in (arrays.inputs, arrays.outputs, arrays.users) for part in (row.start, row.index)]
    return [part.tolist() for part in (*parts, *rows, graph.costs, graph.sizes_bytes)]


def split(rows: Rows) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.index, rows.start[1:-1])]
