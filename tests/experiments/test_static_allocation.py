"""Arenas of tiny schedules are no larger than the least ones, which are found by trying all places."""

from itertools import product

import numpy as np
import pytest

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from experiments.twremat.static_allocation import Buffers, count_arena_bytes, list_buffers, place


def _chain(sizes: tuple[int, ...], reads: dict[int, tuple[int, ...]], inplace: tuple[int, ...] = ()) -> Graph:
    nodes = [
        Node(f"n{i}", "op", reads.get(i, (i - 1,) if i else ()), (i,), cost=1, inplace=i in inplace)
        for i in range(len(sizes))
    ]
    return Graph(tuple(nodes), tuple(Value(f"v{i}", size) for i, size in enumerate(sizes)))


def _least_arena(buffers: Buffers) -> int:
    """Of all places up to the sum of all sizes."""
    start, end, size = (column.tolist() for column in (buffers.start, buffers.end, buffers.size_bytes))
    pairs = [(i, j) for i in range(len(size)) for j in range(i) if start[i] <= end[j] and start[j] <= end[i]]
    for arena in range(max(size), sum(size) + 1):
        for offsets in product(*(range(arena - each + 1) for each in size)):
            if all(offsets[i] >= offsets[j] + size[j] or offsets[j] >= offsets[i] + size[i] for i, j in pairs):
                return arena
    raise AssertionError("one beside the other they fit")


CASES = {
    "chain": (_chain((2, 3, 1, 2, 1), {}), (0, 1, 2, 3, 4), 5),
    "recomputed": (_chain((3, 2, 3, 2), {1: (), 2: (1,)}), (0, 1, 2, 0, 3), 6),  # 8 in the order of the steps
    "read again": (_chain((1, 3, 1, 2, 1), {2: (0, 1), 3: (1,), 4: (0,)}), (0, 1, 2, 3, 0, 4), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_arena_is_the_least(name: str) -> None:
    graph, order, least = CASES[name]
    assert count_arena_bytes(graph, Schedule(order)) == least
    assert _least_arena(list_buffers(graph, Schedule(order))) == least


def test_buffers_add_up_to_the_simulated_memory() -> None:
    """A node in place goes on in its input's buffer, and a workspace is there for one step."""
    graph = _chain((2, 2, 2, 3), {}, inplace=(1, 2))
    buffers = list_buffers(graph, Schedule((0, 1, 2, 3)))
    assert sorted(zip(buffers.start, buffers.end, buffers.size_bytes, strict=True)) == [(0, 3, 2), (3, 3, 3)]
    assert count_arena_bytes(graph, Schedule((0, 1, 2, 3))) == simulate(graph, Schedule((0, 1, 2, 3))).peak_bytes == 5


def test_buffers_live_together_do_not_overlap() -> None:
    random = np.random.default_rng(0)
    start = random.integers(0, 40, 200)
    buffers = Buffers(start, start + random.integers(0, 12, 200), random.integers(1, 30, 200))
    offsets = place(buffers)
    live = [
        np.flatnonzero((buffers.start <= step) & (buffers.end >= step)) for step in range(int(buffers.end.max()) + 1)
    ]
    for together in live:
        by_offset = together[np.argsort(offsets[together])]
        assert (offsets[by_offset][1:] >= (offsets + buffers.size_bytes)[by_offset][:-1]).all()
    most_live = max(buffers.size_bytes[together].sum() for together in live)
    assert most_live <= (offsets + buffers.size_bytes).max() <= 1.5 * most_live
