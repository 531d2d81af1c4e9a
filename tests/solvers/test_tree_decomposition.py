import random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.solvers.twremat.tree_decomposition import (
    Adjacency,
    TreeDecomposition,
    balanced_separator,
    components,
    path_decomposition,
    tree_decomposition,
    undirected,
    with_spine,
)
from tests.graphs import training_chain


def check_tree_decomposition(adjacency: Adjacency, decomposition: TreeDecomposition) -> None:
    """Raises ValueError unless the three properties of section 2.2 hold and the bags form a tree."""
    bags = decomposition.bags
    tree: nx.Graph = nx.Graph()
    tree.add_nodes_from(range(len(bags)))
    tree.add_edges_from((bag, other) for bag, others in enumerate(decomposition.neighbors) for other in others)
    if not nx.is_tree(tree):
        raise ValueError("the bags are not joined in a tree")
    holding: dict[int, list[int]] = {node: [] for node in adjacency}
    for index, bag in enumerate(bags):
        for node in bag:
            holding[node].append(index)
    for node, where in holding.items():
        if not where:
            raise ValueError(f"node {node} is in no bag")
        if not nx.is_connected(tree.subgraph(where)):
            raise ValueError(f"the bags of node {node} are not connected")
        for other in adjacency[node]:
            if not any(other in bags[bag] for bag in where):
                raise ValueError(f"no bag holds both ends of edge {node} - {other}")


@st.composite
def adjacencies(draw):
    num_nodes = draw(st.integers(1, 14))
    graph = nx.gnp_random_graph(num_nodes, draw(st.floats(0, 1)), seed=draw(st.integers(0, 1000)))
    return {node: set(graph[node]) for node in graph}


@settings(deadline=None, max_examples=100)
@given(adjacencies(), st.integers(0, 3))
def test_min_fill_in_gives_a_shrunk_tree_decomposition(adjacency, seed):
    decomposition = tree_decomposition(adjacency, seed=seed)
    check_tree_decomposition(adjacency, decomposition)
    assert len(decomposition.bags) <= len(adjacency)  # Lemma 1
    for bag, others in enumerate(decomposition.neighbors):
        assert not any(decomposition.bags[bag] <= decomposition.bags[other] for other in others)


@settings(deadline=None, max_examples=100)
@given(adjacencies())
def test_min_fill_in_eliminates_what_a_full_recount_would(adjacency):
    around = {node: set(others) for node, others in adjacency.items()}
    widest = 0
    while around:
        node = min(around, key=lambda node: (len(_missing(around, node)), node))
        widest = max(widest, len(around[node]))
        for first, second in _missing(around, node):
            around[first].add(second)
            around[second].add(first)
        for other in around.pop(node):
            around[other].discard(node)
    assert tree_decomposition(adjacency).width == widest


def _missing(around, node):
    others = sorted(around[node])
    return [(a, b) for a in others for b in others if a < b and b not in around[a]]


@settings(deadline=None, max_examples=100)
@given(adjacencies())
def test_path_decomposition_is_a_path(adjacency):
    decomposition = path_decomposition(adjacency)
    check_tree_decomposition(adjacency, decomposition)
    assert all(len(others) <= 2 for others in decomposition.neighbors)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_balanced_separator_leaves_at_most_half(num_bags, seed):
    tree = nx.random_labeled_tree(num_bags, seed=seed)
    neighbors = {bag: sorted(tree[bag]) for bag in tree}
    chosen = balanced_separator(range(num_bags), neighbors)
    parts = components(range(num_bags), neighbors, chosen)
    assert sorted(bag for part in parts for bag in part) == sorted(set(range(num_bags)) - {chosen})
    assert all(2 * len(part) <= num_bags for part in parts)  # Lemma 3


@pytest.mark.parametrize("num_layers", [5, 50])
def test_a_training_chain_keeps_its_width_as_it_grows(num_layers):
    adjacency = undirected(training_chain(num_layers))
    assert tree_decomposition(adjacency).width <= 3
    spined = with_spine(adjacency)
    assert path_decomposition(spined).width <= 6


def test_no_tree_decomposition_is_made_after_the_deadline():
    with pytest.raises(TimeoutError):
        tree_decomposition(undirected(training_chain(5)), deadline_s=0.0)


def test_the_spine_joins_neighbors_in_the_input_order():
    spined = with_spine({0: set(), 1: {2}, 2: {1}})
    assert spined == {0: {1}, 1: {0, 2}, 2: {1}}


def test_check_names_the_property_that_fails():
    adjacency = {0: {1}, 1: {0, 2}, 2: {1}}

    def decomposition(bags, neighbors):
        return TreeDecomposition(tuple(map(frozenset, bags)), neighbors)

    with pytest.raises(ValueError, match="node 2 is in no bag"):
        check_tree_decomposition({0: {1}, 1: {0}, 2: set()}, decomposition([{0, 1}], ((),)))
    with pytest.raises(ValueError, match="no bag holds both ends"):
        check_tree_decomposition(adjacency, decomposition([{0, 1}, {2}], ((1,), (0,))))
    with pytest.raises(ValueError, match="bags of node 1 are not connected"):
        check_tree_decomposition(adjacency, decomposition([{0, 1}, {0}, {1, 2}], ((1,), (0, 2), (1,))))
    with pytest.raises(ValueError, match="not joined in a tree"):
        check_tree_decomposition(adjacency, decomposition([{0, 1}, {1, 2}], ((), ())))


def test_as_narrow_as_networkx_on_random_partial_k_trees():
    generator = random.Random(0)
    for _ in range(20):
        adjacency = partial_k_tree(generator, num_nodes=30, width=3)
        graph = nx.Graph((a, b) for a, others in adjacency.items() for b in others)
        networkx_width, _ = nx.algorithms.approximation.treewidth_min_fill_in(graph)
        assert tree_decomposition(adjacency).width <= networkx_width + 1


def partial_k_tree(generator: random.Random, *, num_nodes: int, width: int):
    """A random graph of treewidth at most `width`, connected."""
    adjacency = {node: set() for node in range(num_nodes)}
    cliques = [tuple(range(width))]
    for node in range(num_nodes):
        clique = generator.choice(cliques) if node >= width else tuple(range(node))
        kept = [other for other in clique if generator.random() < 0.7] or list(clique[:1])
        for other in kept:
            adjacency[node].add(other)
            adjacency[other].add(node)
        if node >= width:
            cliques += [(*clique[:gone], *clique[gone + 1 :], node) for gone in range(width)]
    return adjacency
