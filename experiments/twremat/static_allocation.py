"""What an arena takes that gives each value of a schedule a place before the step runs (TWRemat, section 4).

The bytes that are live at once are a lower bound: a value keeps its place from the step that computes it to its last
use, and values that are live together must not overlap. To find the least arena is NP-hard; values are placed here from
the largest to the smallest, each in the smallest gap that holds it ("greedy by size", Pisarchyk and Lee, 2020).
"""

from dataclasses import dataclass

import numba
import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import find_storage


@dataclass(frozen=True)
class Buffers:
    """Buffers are live from step `start` to step `end` (inclusive) and have `size_bytes`, all int64 [num_buffers]."""

    start: np.ndarray
    end: np.ndarray
    size_bytes: np.ndarray


def count_arena_bytes(graph: Graph, schedule: Schedule) -> int:
    """Counts the bytes of an arena for all values and workspaces of a schedule, without what is resident."""
    buffers = list_buffers(graph, schedule)
    return int((place(buffers) + buffers.size_bytes).max(initial=0))


def list_buffers(graph: Graph, schedule: Schedule) -> Buffers:
    """Lists the buffers of a schedule, copies of values and workspaces; a copy that is written over is one with the
    next.
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    copies, storage = find_retention(graph, schedule), find_storage(graph, schedule)
    start, is_buffer = copies.start.copy(), np.ones(len(copies.start), dtype=bool)
    keys = copies.value * len(order) + copies.start
    written_over = np.flatnonzero(storage.end < copies.end)
    for copy in written_over[np.argsort(copies.end[written_over])].tolist():
        step = int(copies.end[copy])
        value = graph.nodes[order[step]].outputs[0]
        start[np.searchsorted(keys, value * len(order) + step)] = start[copy]
        is_buffer[copy] = False
    steps = np.arange(len(order))
    starts = np.concatenate((start[is_buffer], steps))
    ends = np.concatenate((copies.end[is_buffer], steps))
    sizes = np.concatenate((graph.sizes_bytes[copies.value[is_buffer]], graph.arrays.workspace_bytes[order]))
    there = sizes > 0
    return Buffers(starts[there], ends[there], sizes[there])


def place(buffers: Buffers) -> np.ndarray:
    """Finds an offset for each buffer, int64 [num_buffers], so that those that are live together do not overlap."""
    largest_first = np.lexsort((buffers.start, -buffers.size_bytes))
    return _place(largest_first, buffers.start, buffers.end, buffers.size_bytes)


@numba.njit(cache=True)
def _place(sequence: np.ndarray, start: np.ndarray, end: np.ndarray, size: np.ndarray) -> np.ndarray:
    offset = np.zeros(len(size), dtype=np.int64)
    placed = np.zeros(len(size), dtype=np.int64)  # by offset
    for count, buffer in enumerate(sequence):
        occupied, best, best_gap = 0, -1, 0
        for other in placed[:count]:
            if start[other] <= end[buffer] and end[other] >= start[buffer]:
                gap = offset[other] - occupied
                if gap >= size[buffer] and (best < 0 or gap < best_gap):
                    best, best_gap = occupied, gap
                occupied = max(occupied, offset[other] + size[other])
        offset[buffer] = best if best >= 0 else occupied
        position = count
        while position > 0 and offset[placed[position - 1]] > offset[buffer]:
            placed[position] = placed[position - 1]
            position -= 1
        placed[position] = buffer
    return offset
