"""What memory a fractional solution of the block relaxation stands for: it shows where to cut blocks next.

In the relaxation a value that a block recomputes takes no memory inside the block. Here it is held from where the block
first needs it, as far as it is recomputed; what feeds a recomputation alone is held to the end of that stage.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.block_model import BlockModel

_LEAST_PART = 0.05


def expected_memory_bytes(model: BlockModel, graph: Graph, point: np.ndarray) -> np.ndarray:
    """About the memory of each stage at the first computation of its node, float64 [num_stages]."""
    num_blocks = len(model.blocks.starts)
    again: list[dict[int, float]] = [{} for _ in range(num_blocks)]
    held: list[dict[int, float]] = [{} for _ in range(num_blocks + 1)]
    for (block, node), column in model.recompute.items():
        again[block][node] = point[column]
    for (block, value), column in model.retain.items():
        held[block][value] = point[column]
    held[num_blocks] = dict.fromkeys(graph.outputs, 1.0)
    starts = (*model.blocks.starts, model.num_stages)
    memory = [
        _of_block(graph, starts[block], starts[block + 1] - 1, again[block], held[block + 1])
        for block in range(num_blocks)
    ]
    workspace = np.array([node.workspace_bytes for node in graph.nodes])
    return np.concatenate(memory) + workspace + graph.resident_bytes


def _of_block(
    graph: Graph, first: int, last: int, again: Mapping[int, float], carried: Mapping[int, float]
) -> np.ndarray:
    """Memory of the stages `first` to `last`; `again` is how much of each node is recomputed there, `carried` how much
    of each value is held at the end."""
    change = np.zeros(last - first + 2)
    place: dict[int, int] = {}

    def hold(begin: int, end: int, amount_bytes: float) -> None:
        if begin <= end:
            change[begin - first] += amount_bytes
            change[end + 1 - first] -= amount_bytes

    for node in range(last, -1, -1):
        part = again.get(node, 0.0)
        needed = []
        for value in graph.nodes[node].outputs:
            size, out = graph.values[value].size_bytes, carried.get(value, 0.0)
            read = [user for user in graph.users[value] if first <= user <= last]
            if node >= first:
                hold(node, node, size * part)
            until = max(read, default=node if node >= first else first - 1)
            hold(max(node, first), until, size * (1.0 - part))
            hold(until + 1, last, size * max(0.0, out - part))
            if node < first and part > _LEAST_PART:
                uses = [*read, *_places(graph.users[value], place)]
                if not uses and out > 0:
                    uses = [last]
                if uses:
                    hold(min(uses), max(uses), size * part)
                    hold(max(uses) + 1, last, size * min(out, part))
                    needed.append(min(uses))
        if needed:
            place[node] = min(needed)
    return np.cumsum(change[:-1])


def _places(nodes: Iterable[int], place: Mapping[int, int]) -> list[int]:
    return [place[node] for node in nodes if node in place]
