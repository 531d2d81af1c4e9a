"""Seeded random layered graphs: inference-like graphs of any size, for scaling experiments.

The family of Gagrani et al., "Neural topological ordering for computation graphs" (NeurIPS 2022, appendix A), that
MOCCASIN (section 3.1) draws its graphs G1 to G4 from. The counts of nodes and edges printed there
((100, 236), (250, 944), (500, 2461), (1000, 5875)) fit a width parameter of about 1/3, the default here.
"""

import argparse
import itertools
import math
import sys

import numpy as np

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.serialization import save_graph

EDGE_DENSITY = 0.2  # of the pairs of nodes of two consecutive layers that need not be joined
SKIP_SHARE = 0.14  # of all edges
WIDTH_SPREAD = 0.75
MAX_COST = 999
# Sizes: the absolute value of a mixture of four normal distributions, in units of SIZE_UNIT_BYTES, in steps of 10
# bytes. Its mean of about 2,060 bytes is that of the published G1 (2,041) and G2 (2,043).
SIZE_WEIGHTS = (0.3, 0.3, 0.2, 0.2)
SIZE_MEANS = (0.5, 1.0, 3.0, 5.0)
SIZE_DEVIATIONS = (0.5, 1.0, 1.0, 1.0)
SIZE_UNIT_BYTES = 1000
SIZE_STEP_BYTES = 10


def layered_graph(num_nodes: int, *, seed: int, width: float = 1 / 3) -> Graph:
    """A random layered graph of one source, layers, and one sink, in a random topological order.

    Consecutive layers of a and b nodes are joined by round(max(a, b) + 0.2 (ab - max(a, b))) edges that cover every
    node; 14 % of all edges skip at least one layer; layer sizes are uniform in W (1 +- 0.75) with
    W = sqrt(n width / (1 - width)); costs are uniform in 0..999, 0 at source and sink.

    Args:
        num_nodes: source and sink included, at least 3.
        width: in (0, 1); larger is wider and shallower.

    Raises ValueError for other values. The same arguments give the same graph.
    """
    if num_nodes < 3:
        raise ValueError(
            f"a layered graph has a source, a sink and a layer between: {num_nodes} nodes are too few, use 3"
        )
    if not 0 < width < 1:
        raise ValueError(f"width is {width}; it must lie strictly between 0 and 1")
    random = np.random.default_rng([seed, num_nodes])
    layers = _layers(num_nodes, width, random)
    edges = sorted(_consecutive_edges(layers, random))
    edges = sorted({*edges, *_skip_edges(layers, len(edges), random)})
    order = random_topological_order(num_nodes, edges, random)
    return _graph(order, edges, _costs(num_nodes, random), _sizes(num_nodes, random), seed)


def num_consecutive_edges(a: int, b: int) -> int:
    """Edges between consecutive layers of a and b nodes."""
    return round(max(a, b) + EDGE_DENSITY * (a * b - max(a, b)))


def _layers(num_nodes: int, width: float, random: np.random.Generator) -> list[range]:
    """The nodes of each layer; the first and last have one node each."""
    mean = math.sqrt(num_nodes * width / (1 - width))
    layers = [range(1)]
    last = num_nodes - 1
    while (start := layers[-1].stop) < last:
        size = max(1, round(random.uniform(mean * (1 - WIDTH_SPREAD), mean * (1 + WIDTH_SPREAD))))
        layers.append(range(start, min(start + size, last)))
    return [*layers, range(last, num_nodes)]


def _consecutive_edges(layers: list[range], random: np.random.Generator) -> set[tuple[int, int]]:
    edges: set[tuple[int, int]] = set()
    for upper, lower in itertools.pairwise(layers):
        sources, targets = random.permutation(upper), random.permutation(lower)
        longer = max(len(upper), len(lower))
        covering = {(int(sources[i % len(upper)]), int(targets[i % len(lower)])) for i in range(longer)}
        others = [(u, v) for u in upper for v in lower if (u, v) not in covering]
        extra = random.permutation(len(others))[: num_consecutive_edges(len(upper), len(lower)) - longer]
        edges |= covering | {others[i] for i in extra}
    return edges


def _skip_edges(layers: list[range], num_edges: int, random: np.random.Generator) -> set[tuple[int, int]]:
    """Edges over at least one layer, so many that they are SKIP_SHARE of all; fewer where the graph is too small."""
    skips: set[tuple[int, int]] = set()
    room = sum(len(a) * len(b) for i, a in enumerate(layers) for b in layers[i + 2 :])
    wanted = min(round(num_edges * SKIP_SHARE / (1 - SKIP_SHARE)), room // 2)
    while len(skips) < wanted:
        i, j = sorted(random.choice(len(layers), size=2, replace=False))
        if j - i >= 2:
            skips.add((int(random.choice(layers[i])), int(random.choice(layers[j]))))
    return skips


def random_topological_order(num_nodes: int, edges: list[tuple[int, int]], random: np.random.Generator) -> list[int]:
    targets: list[list[int]] = [[] for _ in range(num_nodes)]
    waiting = [0] * num_nodes
    for u, v in edges:
        targets[u].append(v)
        waiting[v] += 1
    ready = [node for node in range(num_nodes) if not waiting[node]]
    order: list[int] = []
    while ready:
        order.append(ready.pop(int(random.integers(len(ready)))))
        for target in targets[order[-1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return order


def _costs(num_nodes: int, random: np.random.Generator) -> list[int]:
    costs = random.integers(0, MAX_COST, size=num_nodes, endpoint=True)
    costs[[0, -1]] = 0
    return [int(cost) for cost in costs]


def _sizes(num_nodes: int, random: np.random.Generator) -> list[int]:
    part = random.choice(len(SIZE_WEIGHTS), size=num_nodes, p=SIZE_WEIGHTS)
    drawn = np.abs(random.normal(np.array(SIZE_MEANS)[part], np.array(SIZE_DEVIATIONS)[part])) * SIZE_UNIT_BYTES
    return [SIZE_STEP_BYTES * max(1, round(size / SIZE_STEP_BYTES)) for size in drawn]


def _graph(order: list[int], edges: list[tuple[int, int]], costs: list[int], sizes: list[int], seed: int) -> Graph:
    position = {node: index for index, node in enumerate(order)}
    reads: list[list[int]] = [[] for _ in order]
    for u, v in edges:
        reads[position[v]].append(position[u])
    nodes = tuple(
        Node(f"n{node}", "op", tuple(sorted(reads[index])), (index,), costs[node]) for index, node in enumerate(order)
    )
    values = tuple(Value(f"n{node}", sizes[node]) for node in order)
    name = f"layered-n{len(order)}-seed{seed}"
    return Graph(nodes, values, name=name, source=f"random layered graph, {len(edges)} edges, seed {seed}")


def main(arguments: list[str]) -> None:
    """Writes one graph as a checkmate-graph/1 file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("num_nodes", type=int)
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=float, default=1 / 3)
    options = parser.parse_args(arguments)
    save_graph(layered_graph(options.num_nodes, seed=options.seed, width=options.width), options.path)


if __name__ == "__main__":
    main(sys.argv[1:])
