"""Estimates the memory that a fractional solution of the block relaxation represents, to find where to cut next.

In the relaxation, a value that a block recomputes takes no memory inside the block. Here it is held from the position
at which the block first needs it, as far as it is recomputed. Inputs of a recomputation alone are held to the end of
that stage.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from checkmate_tf.graph import Graph, inplace_inputs
from checkmate_tf.solvers.relaxation.model import BlockModel, Reach
from checkmate_tf.solvers.relaxation.settings import SETTINGS
from checkmate_tf.solvers.stages import Event


def expected_memory_bytes(model: BlockModel, graph: Graph, point: np.ndarray) -> np.ndarray:
    """Returns the estimated memory of each stage at the first computation of its node, float64 [num_stages]."""
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
        _memory_of_block(graph, starts[block], starts[block + 1] - 1, again[block], held[block + 1])
        for block in range(num_blocks)
    ]
    return np.concatenate(memory) + graph.arrays.workspace_bytes + graph.resident_bytes


def _memory_of_block(
    graph: Graph, first: int, last: int, again: Mapping[int, float], carried: Mapping[int, float]
) -> np.ndarray:
    """Returns the estimated memory of the stages `first` to `last`.

    `again` is the amount of each node that is recomputed there, and `carried` the amount of each value held at the end.
    """
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
            if node < first and part > SETTINGS.least_recomputed_share:
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


def overfull_events(
    model: BlockModel, graph: Graph, budget_bytes: int, reach: Reach, point: np.ndarray
) -> tuple[Event, ...]:
    """Returns recomputations in blocks of one stage whose memory rows are left out and violated, the worst first."""
    num_stages, room_bytes = model.num_stages, budget_bytes - graph.resident_bytes
    singles = [(block, stage) for block, stage in enumerate(model.blocks.starts)
               if model.blocks.is_single(stage, num_stages)]  # fmt: skip
    amounts: dict[int, dict[int, float]] = {block: {} for block, _ in singles}
    held = np.zeros((len(model.blocks.starts) + 1, len(graph.values)))
    for (block, node), column in model.recompute.items():
        if block in amounts and point[column] > 0:
            amounts[block][node] = point[column]
    for (block, value), column in model.retain.items():
        held[block, value] = point[column]
    held[-1, list(graph.outputs)] = 1.0
    found, most_bytes = [], SETTINGS.over_budget_ratio * room_bytes
    for block, stage in singles:
        memory = _memory_of_events(graph, stage, amounts[block], held[block], held[block + 1], reach)
        found += [(-memory_bytes, (stage, node)) for node, memory_bytes in memory.items()
                  if memory_bytes > most_bytes and (stage, node) not in model.blocks.rows]  # fmt: skip
    return tuple(event for _, event in sorted(found))


def _memory_of_events(
    graph: Graph, stage: int, again: Mapping[int, float], held: np.ndarray, carried: np.ndarray, reach: Reach
) -> dict[int, float]:
    """Returns the left side of the event memory row of each node recomputed in a stage.

    An in-place node counts as if only one of its inputs could give its storage to the output.
    """
    sizes, producer = graph.sizes_bytes, graph.arrays.producer
    wanted = (producer < stage) & (reach.of_value >= stage)
    needed = np.where(wanted, carried, 0.0)
    needed[[value for value in graph.nodes[stage].inputs if wanted[value]]] = 1.0
    memory = {}
    for event in sorted(again, reverse=True):
        node, amount = graph.nodes[event], again[event]
        inputs = [value for value in node.inputs if wanted[value]]
        reused = inplace_inputs(graph, node)[:1]
        after = needed[list(reused)]
        needed[inputs] = np.maximum(needed[inputs], amount)
        if amount > SETTINGS.least_recomputed_share:
            now = needed.copy()
            now[list(reused)] = after
            own = sum((amount + held[value]) * sizes[value] for value in node.outputs)
            memory[event] = float(
                amount * node.workspace_bytes + own + sizes @ np.where(producer < event, now, 0.0)
                + sizes @ np.where(producer > event, held, 0.0)
            )  # fmt: skip
    return memory
