"""The random layered graphs of the experiments have the properties that define the family."""

import itertools

import numpy as np
import pytest

from checkmate_tf.graph import Graph
from experiments.layered_graphs import layered_graph, num_consecutive_edges


def _edges(graph: Graph) -> list[tuple[int, int]]:
    return [(u, v) for v, reads in enumerate(graph.predecessors) for u in reads]


def _depths(graph: Graph) -> np.ndarray:
    depth = np.zeros(len(graph.nodes), dtype=np.int64)
    for index, reads in enumerate(graph.predecessors):
        depth[index] = 1 + max((depth[u] for u in reads), default=-1)
    return depth


@pytest.mark.parametrize("num_nodes", [3, 4, 10, 100, 500])
def test_one_source_and_one_sink_without_cost(num_nodes: int) -> None:
    graph = layered_graph(num_nodes, seed=1)
    assert len(graph.nodes) == num_nodes
    assert [i for i, reads in enumerate(graph.predecessors) if not reads] == [0]
    assert [i for i, users in enumerate(graph.successors) if not users] == [num_nodes - 1]
    assert graph.costs[0] == graph.costs[-1] == 0
    assert graph.costs.min() >= 0
    assert graph.costs.max() <= 999
    assert graph.sizes_bytes.min() > 0


@pytest.mark.parametrize("seed", range(3))
def test_layers_and_edges_are_those_of_the_family(seed: int) -> None:
    """Every node is joined to the next layer, so a node's depth is its layer, and counts follow from layer sizes."""
    graph = layered_graph(400, seed=seed)
    depth = _depths(graph)
    sizes = np.bincount(depth)
    mean = np.sqrt(400 / 2)  # width 1/3: w / (1 - w) = 1/2
    assert sizes[0] == sizes[-1] == 1
    assert sizes[1:-2].min() >= round(0.25 * mean)  # the last layer before the sink takes what is left
    assert sizes.max() <= round(1.75 * mean)
    jumps = np.array([depth[v] - depth[u] for u, v in _edges(graph)])
    consecutive = sum(num_consecutive_edges(a, b) for a, b in itertools.pairwise(sizes))
    assert (jumps == 1).sum() == consecutive
    assert (jumps > 1).sum() == round(consecutive * 0.14 / 0.86)


def test_number_of_consecutive_edges_by_hand() -> None:
    assert num_consecutive_edges(3, 5) == 7  # 5 + 0.2 * (15 - 5)
    assert num_consecutive_edges(1, 4) == 4


def test_edge_counts_are_like_the_published_ones() -> None:
    """MOCCASIN, Figure 5: (100, 236), (250, 944), (500, 2461), (1000, 5875). Width 1/3 fits within 20 %."""
    for num_nodes, published in ((250, 944), (500, 2461), (1000, 5875)):
        counts = [len(_edges(layered_graph(num_nodes, seed=seed))) for seed in range(5)]
        assert abs(np.mean(counts) / published - 1) < 0.2


def test_the_same_seed_gives_the_same_graph() -> None:
    assert layered_graph(60, seed=3) == layered_graph(60, seed=3)
    assert layered_graph(60, seed=3) != layered_graph(60, seed=4)


@pytest.mark.parametrize(("num_nodes", "width"), [(2, 0.3), (10, 0.0), (10, 1.0)])
def test_impossible_arguments_are_errors(num_nodes: int, width: float) -> None:
    with pytest.raises(ValueError, match=r"nodes are too few|strictly between"):
        layered_graph(num_nodes, seed=0, width=width)
