"""Beam search over downsets: the compiled kernel behind topological_order.py.

A downset is a set of nodes closed under predecessors, that is the nodes computed at some point of an order. Without
rematerialization, the memory at a position depends only on the downset before it and on the node. An order of least
peak is therefore a minimax path through the lattice of downsets.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.compiling import keep_compiled


class OrderArrays(NamedTuple):
    """A graph as flat arrays. `*_start` are offsets [count + 1] into the array of the same first word."""

    input_start: np.ndarray
    input_value: np.ndarray
    user_start: np.ndarray
    user_node: np.ndarray
    output_start: np.ndarray
    output_value: np.ndarray
    producer: np.ndarray
    size: np.ndarray
    is_output: np.ndarray
    running_bytes: np.ndarray  # outputs and workspace, [num_nodes]
    kept_bytes: np.ndarray  # outputs that are retained after the node's position, [num_nodes]
    takes_over_bytes: np.ndarray  # size of an input whose storage the node may take over, -1 for none, [num_nodes]


class Children(NamedTuple):
    """The candidates for the next level, each [room]."""

    parent: np.ndarray
    node: np.ndarray
    live: np.ndarray
    peak: np.ndarray
    hashes: np.ndarray


@dataclass(frozen=True)
class BeamResult:
    """The result of the beam search: an `order`, or None if it found none at or below the bound.

    `truncated` means that states were dropped. Without an order and untruncated, the search proves that none exists.
    """

    order: tuple[int, ...] | None
    truncated: bool
    states: int


def beam(arrays: OrderArrays, *, bound_bytes: int, width: int, seed: int, deadline_s: float) -> BeamResult:
    """Searches for an order with a peak of at most `bound_bytes`, with `width` downsets at each level.

    The bound does not include resident bytes. Level k holds the downsets of k nodes that retain the least. After
    `deadline_s`, a time of `time.perf_counter`, the search gives up, which counts as truncated.
    """
    num_nodes = len(arrays.running_bytes)
    zobrist = np.random.default_rng(seed).integers(0, 2**63, num_nodes, dtype=np.uint64)
    done = np.zeros((1, (num_nodes + 63) // 64), dtype=np.uint64)
    sources = np.flatnonzero(np.diff(arrays.input_start) == 0)
    ready = np.zeros_like(done)
    np.bitwise_or.at(ready[0], sources >> 6, np.uint64(1) << (sources & 63).astype(np.uint64))
    live = peak = np.zeros(1, dtype=np.int64)
    hashes = np.zeros(1, dtype=np.uint64)
    levels: list[tuple[np.ndarray, np.ndarray]] = []
    truncated, states = False, 0
    for _ in range(num_nodes):
        states += len(live)
        children = _children(int(np.bitwise_count(ready).sum()))
        table = np.full(1 << (2 * len(children.node)).bit_length(), -1, dtype=np.int32)
        found = _expand(arrays, bound_bytes, done, ready, live, peak, hashes, zobrist, table, children)
        late = time.perf_counter() > deadline_s
        if found == 0 or late:
            return BeamResult(None, truncated or late, states)
        kept = np.arange(found)
        if found > width:
            truncated = True
            kept = np.sort(np.argpartition(children.live[:found], width - 1)[:width])
        parent, node = children.parent[kept], children.node[kept]
        levels.append((parent, node))
        done, ready = done[parent], ready[parent]
        _advance(arrays, done, ready, node)
        live, peak, hashes = children.live[kept], children.peak[kept], children.hashes[kept]
    state = int(np.argmin(peak))
    order = []
    for parent, node in reversed(levels):
        order.append(int(node[state]))
        state = int(parent[state])
    return BeamResult(tuple(reversed(order)), truncated, states)


def _children(room: int) -> Children:
    return Children(
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.uint64),
    )


def order_arrays(graph: Graph) -> OrderArrays:
    """Returns the arrays of a graph that `beam` takes."""
    arrays, sizes = graph.arrays, graph.sizes_bytes
    yielded = np.zeros(len(graph.nodes), dtype=np.int64)
    np.add.at(yielded, arrays.producer, sizes)
    kept = np.zeros(len(graph.nodes), dtype=np.int64)
    np.add.at(kept, arrays.producer, np.where(arrays.last_use >= 0, sizes, 0))
    return OrderArrays(
        input_start=arrays.inputs.start.astype(np.int32),
        input_value=arrays.inputs.index.astype(np.int32),
        user_start=arrays.users.start.astype(np.int32),
        user_node=arrays.users.index.astype(np.int32),
        output_start=arrays.outputs.start.astype(np.int32),
        output_value=arrays.outputs.index.astype(np.int32),
        producer=arrays.producer.astype(np.int32),
        size=sizes,
        is_output=arrays.is_output,
        running_bytes=yielded + arrays.workspace_bytes,
        kept_bytes=kept,
        takes_over_bytes=arrays.takes_over_bytes,
    )


@keep_compiled(nogil=True)
def _has(bits, index):
    return (bits[index >> 6] >> np.uint64(index & 63)) & np.uint64(1) != 0


@keep_compiled(nogil=True)
def _set(bits, index):
    bits[index >> 6] |= np.uint64(1) << np.uint64(index & 63)


@keep_compiled(nogil=True)
def _clear(bits, index):
    bits[index >> 6] &= ~(np.uint64(1) << np.uint64(index & 63))


@keep_compiled(nogil=True)
def _compute(arrays, done, live, node):
    """Returns the memory while `node` runs after the downset `done`, and the memory retained after it."""
    freed = np.int64(0)
    taken_over = np.int64(0)
    for k in range(arrays.input_start[node], arrays.input_start[node + 1]):
        value = arrays.input_value[k]
        dies = not arrays.is_output[value]
        if dies:
            for j in range(arrays.user_start[value], arrays.user_start[value + 1]):
                user = arrays.user_node[j]
                if user != node and not _has(done, user):
                    dies = False
                    break
        if dies:
            freed += arrays.size[value]
            if arrays.size[value] == arrays.takes_over_bytes[node]:
                taken_over = arrays.size[value]
    return live + arrays.running_bytes[node] - taken_over, live + arrays.kept_bytes[node] - freed


@keep_compiled(nogil=True)
def _expand(arrays, bound_bytes, done, ready, live, peak, hashes, zobrist, table, children):
    """Finds every child of every state at or below the bound, each downset once, by its path of least peak.

    A node that fits under the bound and does not add to the retained memory is taken at once and alone. Taking it early
    never hurts: retained memory is submodular in the downset, and an input that ends at a node also ends there in a
    larger downset. Returns the number of children.
    """
    mask = np.uint64(len(table) - 1)
    num_nodes = len(arrays.running_bytes)
    found = 0
    for state in range(len(live)):
        forced = -1
        for attempt in range(2):
            if attempt == 1 and forced >= 0:
                break
            for index in range(num_nodes):
                if not _has(ready[state], index):
                    continue
                during, after = _compute(arrays, done[state], live[state], index)
                if during > bound_bytes:
                    continue
                if attempt == 0:
                    if after > live[state]:
                        continue
                    forced = index
                top = max(during, peak[state])
                key = hashes[state] ^ zobrist[index]
                slot = key & mask
                while table[slot] >= 0 and not (
                    children.hashes[table[slot]] == key and children.live[table[slot]] == after
                ):
                    slot = (slot + np.uint64(1)) & mask
                child = table[slot]
                if child < 0:
                    child = found
                    table[slot] = child
                    found += 1
                elif top >= children.peak[child]:
                    if attempt == 0:
                        break
                    continue
                children.parent[child] = state
                children.node[child] = index
                children.live[child] = after
                children.peak[child] = top
                children.hashes[child] = key
                if attempt == 0:
                    break
    return found


@keep_compiled(nogil=True)
def _advance(arrays, done, ready, nodes):
    """Adds a node to each downset, and its ready successors to the ready set, in place."""
    for state in range(len(nodes)):
        node = nodes[state]
        _set(done[state], node)
        _clear(ready[state], node)
        for k in range(arrays.output_start[node], arrays.output_start[node + 1]):
            value = arrays.output_value[k]
            for j in range(arrays.user_start[value], arrays.user_start[value + 1]):
                user = arrays.user_node[j]
                complete = True
                for i in range(arrays.input_start[user], arrays.input_start[user + 1]):
                    if not _has(done[state], arrays.producer[arrays.input_value[i]]):
                        complete = False
                        break
                if complete:
                    _set(ready[state], user)
