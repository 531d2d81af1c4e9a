"""Decomposes a training graph's undirected form into trees and paths (TWRemat, sections 2.2, 3 and 5).

Minimum fill-in is implemented here because networkx's `treewidth_min_fill_in` examines every remaining node at each
position. It is quadratic and takes minutes for graphs of 10,000 nodes. This implementation updates the fill-in of every
node, which costs no more than the degrees of the eliminated nodes.
"""

import heapq
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from checkmate_tf.graph import Graph

Adjacency = dict[int, set[int]]


@dataclass(frozen=True)
class TreeDecomposition:
    """Bags of nodes, and the tree on them. `neighbors[b]` are the bags joined to bag b."""

    bags: tuple[frozenset[int], ...]
    neighbors: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """The size of the largest bag, minus 1."""
        return max(len(bag) for bag in self.bags) - 1


def undirected(graph: Graph) -> Adjacency:
    """Returns the nodes adjacent to each node, without the direction of edges."""
    adjacency: Adjacency = {node: set() for node in range(len(graph.nodes))}
    for node, before in enumerate(graph.predecessors):
        adjacency[node].update(before)
        for other in before:
            adjacency[other].add(node)
    return adjacency


def with_spine(adjacency: Adjacency) -> Adjacency:
    """Returns the graph with a Hamiltonian path through the input order added: the spine of section 5."""
    spined = {node: set(others) for node, others in adjacency.items()}
    for node in range(len(adjacency) - 1):
        spined[node].add(node + 1)
        spined[node + 1].add(node)
    return spined


def tree_decomposition(adjacency: Adjacency, *, seed: int = 0, deadline_s: float = math.inf) -> TreeDecomposition:
    """Returns a decomposition by the minimum fill-in heuristic, shrunk to at most n bags by Lemma 1.

    `seed` 0 breaks ties by node, others at random. Raises TimeoutError at `deadline_s`, a time of
    `time.perf_counter()`.
    """
    order, bag_of = _eliminate_by_fill_in(adjacency, seed, deadline_s)
    position = {node: index for index, node in enumerate(order)}
    parent: list[int | None] = []
    for node in order:
        later = bag_of[node] - {node}
        parent.append(min(position[other] for other in later) if later else None)
    return _shrunk([bag_of[node] for node in order], parent)


def path_decomposition(adjacency: Adjacency, *, deadline_s: float = math.inf) -> TreeDecomposition:
    """Returns the narrowest decomposition into a path of bags, among greedy linear layouts from several starts.

    A layout v1, v2, ... has, for each v_i, a bag of v_i and every earlier node with a neighbor not before v_i. After
    `deadline_s`, a time of `time.perf_counter()`, only the layout of the input order is tried.
    """
    num_nodes = len(adjacency)
    starts = sorted({0, num_nodes - 1, num_nodes // 2, min(adjacency, key=lambda node: len(adjacency[node]))})
    layouts = [_greedy_layout(adjacency, start) for start in starts if time.perf_counter() < deadline_s]
    layouts.append(list(range(num_nodes)))
    bags = min((_layout_bags(adjacency, layout) for layout in layouts), key=lambda bags: max(map(len, bags)))
    parents: list[int | None] = [*range(1, num_nodes), None]
    return _shrunk(bags, parents)


def balanced_separator(bags: Sequence[int], neighbors: Mapping[int, Sequence[int]]) -> int:
    """Returns the bag whose removal leaves the smallest largest component: at most half the bags (Lemma 3).

    `bags` are the bags of one connected part; `neighbors` may name bags outside it.
    """
    inside = set(bags)
    parent: dict[int, int] = {bags[0]: -1}
    visited = [bags[0]]
    for bag in visited:
        for other in neighbors[bag]:
            if other in inside and other not in parent:
                parent[other] = bag
                visited.append(other)
    size = dict.fromkeys(visited, 1)
    largest = dict.fromkeys(visited, 0)
    for bag in reversed(visited):
        largest[bag] = max(largest[bag], len(visited) - size[bag])
        above = parent[bag]
        if above >= 0:
            size[above] += size[bag]
            largest[above] = max(largest[above], size[bag])
    return min(visited, key=lambda bag: (largest[bag], bag))


def components(bags: Iterable[int], neighbors: Mapping[int, Sequence[int]], removed: int) -> list[list[int]]:
    """Returns the connected parts of `bags` once bag `removed` is taken out."""
    inside = set(bags) - {removed}
    parts = []
    for start in sorted(neighbors[removed]):
        if start not in inside:
            continue
        inside.discard(start)
        part = [start]
        for bag in part:
            for other in neighbors[bag]:
                if other in inside:
                    inside.discard(other)
                    part.append(other)
        parts.append(part)
    return parts


def _eliminate_by_fill_in(
    adjacency: Adjacency, seed: int, deadline_s: float
) -> tuple[list[int], dict[int, frozenset[int]]]:
    """Returns the elimination order, and for each node the bag of itself and its neighbors when it is eliminated."""
    around = {node: set(others) for node, others in adjacency.items()}
    generator = random.Random(seed)
    tie = {node: generator.random() if seed else float(node) for node in around}
    fill = {node: _missing_edges(around, node) for node in around}
    heap = [(fill[node], tie[node], node) for node in around]
    heapq.heapify(heap)
    order: list[int] = []
    bag_of: dict[int, frozenset[int]] = {}
    while heap:
        if time.perf_counter() > deadline_s:
            raise TimeoutError("no tree decomposition within the time limit")
        known_fill, _, node = heapq.heappop(heap)
        if node in bag_of or known_fill != fill[node]:
            continue
        others = sorted(around[node])
        bag_of[node] = frozenset((node, *others))
        order.append(node)
        touched = _connect(around, others, fill)
        for other in others:
            around[other].discard(node)
            # The pairs of `node` with neighbors of `other` that `node` lacks are no longer missing.
            fill[other] -= len(around[other]) - len(others) + 1
        touched.update(others)
        for other in touched:
            if other not in bag_of:
                heapq.heappush(heap, (fill[other], tie[other], other))
        del around[node]
    return order, bag_of


def _missing_edges(around: Adjacency, node: int) -> int:
    """Returns the edges that eliminating `node` adds."""
    others = around[node]
    missing_twice = sum(len(others) - 1 - _num_common(around[other], others) for other in others)
    return missing_twice // 2


def _connect(around: Adjacency, nodes: list[int], fill: dict[int, int]) -> set[int]:
    """Joins `nodes` pairwise, updates `fill`, and returns the nodes whose fill changed."""
    touched: set[int] = set()
    for position, first in enumerate(nodes):
        for second in nodes[position + 1 :]:
            if second in around[first]:
                continue
            small, large = sorted((around[first], around[second]), key=len)
            common = [node for node in small if node in large]
            for node in common:
                fill[node] -= 1
            fill[first] += len(around[first]) - len(common)
            fill[second] += len(around[second]) - len(common)
            around[first].add(second)
            around[second].add(first)
            touched.update(common)
    return touched


def _num_common(first: set[int], second: set[int]) -> int:
    small, large = (first, second) if len(first) < len(second) else (second, first)
    return sum(node in large for node in small)


def _shrunk(bags: Sequence[frozenset[int]], parent: Sequence[int | None]) -> TreeDecomposition:
    """Merges every bag that is a subset of its neighbor into it, and joins separate trees (Lemma 1)."""
    merged_into = list(range(len(bags)))

    def find(bag: int) -> int:
        while merged_into[bag] != bag:
            merged_into[bag] = merged_into[merged_into[bag]]
            bag = merged_into[bag]
        return bag

    contents = list(bags)
    edges: list[tuple[int, int]] = []
    roots = [bag for bag, above in enumerate(parent) if above is None]
    links = [(bag, above) for bag, above in enumerate(parent) if above is not None]
    links += list(pairwise(roots))
    for bag, above in links:
        child, upper = find(bag), find(above)
        if contents[child] <= contents[upper]:
            merged_into[child] = upper
        elif contents[upper] <= contents[child]:
            merged_into[upper] = child
        else:
            edges.append((bag, above))
    kept = [bag for bag in range(len(bags)) if find(bag) == bag]
    index = {bag: position for position, bag in enumerate(kept)}
    neighbors: list[list[int]] = [[] for _ in kept]
    for bag, above in edges:
        first, second = index[find(bag)], index[find(above)]
        neighbors[first].append(second)
        neighbors[second].append(first)
    return TreeDecomposition(tuple(contents[bag] for bag in kept), tuple(tuple(sorted(n)) for n in neighbors))


def _greedy_layout(adjacency: Adjacency, start: int) -> list[int]:
    """Orders nodes from `start` on so that few placed nodes have neighbors that are not placed yet."""
    unplaced_neighbors = {node: len(others) for node, others in adjacency.items()}
    placed: set[int] = set()
    layout: list[int] = []

    def growth(node: int) -> int:
        finished = sum(other in placed and unplaced_neighbors[other] == 1 for other in adjacency[node])
        return (unplaced_neighbors[node] > 0) - finished

    heap = [(-1, len(adjacency), start)]
    waiting = iter(range(len(adjacency)))
    while len(layout) < len(adjacency):
        if not heap:
            heap = [(0, 0, next(node for node in waiting if node not in placed))]
        known, _, node = heapq.heappop(heap)
        if node in placed:
            continue
        if layout and known < growth(node):
            heapq.heappush(heap, (growth(node), unplaced_neighbors[node], node))
            continue
        placed.add(node)
        layout.append(node)
        for other in adjacency[node]:
            unplaced_neighbors[other] -= 1
        changed = {other for other in adjacency[node] if other not in placed}
        for other in adjacency[node] & placed:
            if unplaced_neighbors[other] == 1:
                changed |= {last for last in adjacency[other] if last not in placed}
        for other in changed:
            heapq.heappush(heap, (growth(other), unplaced_neighbors[other], other))
    return layout


def _layout_bags(adjacency: Adjacency, layout: list[int]) -> list[frozenset[int]]:
    position = {node: index for index, node in enumerate(layout)}
    last_needed = {node: max(position[n] for n in (*others, node)) for node, others in adjacency.items()}
    bags = []
    held: set[int] = set()
    for index, node in enumerate(layout):
        held.add(node)
        bags.append(frozenset(held))
        held = {other for other in held if last_needed[other] > index}
    return bags
