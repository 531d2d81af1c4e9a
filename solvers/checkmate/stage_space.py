"""Restricts Checkmate's R and S: bounds of every entry, and the events at which the budget can bind.

Each restriction keeps an optimal solution, or at least every solution that costs no more than `most_extra_cost`:

- A node that costs more than `most_extra_cost` is computed once. So is a node that is not recomputable, and a node
  whose values take no bytes. The value of such a node is retained until its last use,
  unless it can be offloaded.
- Value v is retained into stage t, or computed again in it, only if a node that can run in stage t or later reads it.
- An event (stage t, node k) needs no budget row if everything that can be held and needed there fits (`binding`).
- In a run of stages without any such row, it is enough to recompute in the first stage and to hold every value until
  the last, because everything fits. The other stages of a run are `merged`. If values can be
  offloaded, no stage is merged, because copies would have less time to hide.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.graph_arrays import Rows, mark


@dataclass(frozen=True)
class StageSpace:
    """Bounds of R and S, and the events at which the budget can bind.

    Args:
        recompute_lower, recompute_upper: of R, bool [num_stages, num_nodes].
        retain_lower, retain_upper: of S, bool [num_stages + 1, num_values]; row num_stages holds the values at the end.
        binding: the events that need a budget row, bool [num_stages, num_nodes].
        merged: the stage is in a run of stages that need no budget row, and is not the first of it, bool [num_stages].
        frontier_advancing: stage t ends with the first computation of node t (8a-8c); otherwise form (1).
    """

    recompute_lower: np.ndarray
    recompute_upper: np.ndarray
    retain_lower: np.ndarray
    retain_upper: np.ndarray
    binding: np.ndarray
    merged: np.ndarray
    frontier_advancing: bool = True


def full_space(graph: Graph) -> StageSpace:
    """Returns the frontier-advancing stages of (9) as in the paper: lower triangular, without presolve."""
    num_nodes, num_values = len(graph.nodes), len(graph.values)
    producer = graph.arrays.producer
    recomputable = graph.arrays.recomputable
    diagonal = np.eye(num_nodes, dtype=bool)
    recompute_upper = np.tril(np.broadcast_to(recomputable, (num_nodes, num_nodes)), -1) | diagonal
    retain_upper = producer[None, :] < np.arange(num_nodes + 1)[:, None]
    retain_lower = np.zeros((num_nodes + 1, num_values), dtype=bool)
    retain_lower[num_nodes, list(graph.outputs)] = True
    retain_upper[num_nodes] = retain_lower[num_nodes]
    return StageSpace(
        diagonal, recompute_upper, retain_lower, retain_upper, recompute_upper, np.zeros(num_nodes, dtype=bool)
    )


def unpartitioned_space(graph: Graph, *, num_stages: int) -> StageSpace:
    """Returns the space of form (1): any node can run in any of `num_stages` stages; nothing is held at first (1d)."""
    num_nodes, num_values = len(graph.nodes), len(graph.values)
    anything = np.ones((num_stages, num_nodes), dtype=bool)
    retain_upper = np.ones((num_stages + 1, num_values), dtype=bool)
    retain_upper[0] = False
    retain_lower = np.zeros_like(retain_upper)
    retain_lower[num_stages, list(graph.outputs)] = True
    return StageSpace(
        ~anything, anything, retain_lower, retain_upper, anything, np.zeros(num_stages, dtype=bool), False
    )


def presolved_space(
    graph: Graph, budget_bytes: int, *, most_extra_cost: int | None = None, deadline_s: float = math.inf
) -> StageSpace:
    """Returns the stage space without the entries that no schedule of interest needs.

    These are the schedules within the budget whose repeats cost at most `most_extra_cost`. Raises TimeoutError if the
    computation takes until after `deadline_s`.
    """
    num_nodes = len(graph.nodes)
    producer = graph.arrays.producer
    repeats = np.array([_can_repeat(graph, node, most_extra_cost) for node in range(num_nodes)])
    needed = _last_need(graph, repeats)
    needed_node = np.array([max((needed[v] for v in node.outputs), default=-1) for node in graph.nodes], dtype=np.int64)
    stage = np.arange(num_nodes)[:, None]
    boundary = np.arange(num_nodes + 1)[:, None]
    diagonal = np.eye(num_nodes, dtype=bool)
    recompute_upper: np.ndarray = diagonal | (repeats & (np.arange(num_nodes) < stage) & (stage <= needed_node))
    retain_upper = (producer < boundary) & (boundary <= needed)
    offloadable = find_offloadable(graph)
    stays = ~repeats[producer] & ~offloadable
    retain_lower: np.ndarray = (producer < boundary) & (boundary <= graph.arrays.last_use) & stays
    retain_lower[num_nodes, list(graph.outputs)] = True
    binding = np.zeros((num_nodes, num_nodes), dtype=bool)
    edges = edges_of(graph)
    for t in range(num_nodes):
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"only {t} of {num_nodes} stages were prepared within the time limit")
        binding[t] = _binding_events(
            graph, edges, producer, recompute_upper[t], retain_upper[t], retain_upper[t + 1], budget_bytes
        )
    slack: np.ndarray = np.logical_not(binding.any(axis=1))
    merged = slack & (not offloadable.any())
    merged[1:] &= slack[:-1]
    merged[0] = False
    recompute_upper[merged] &= diagonal[merged]
    return StageSpace(diagonal, recompute_upper, retain_lower, retain_upper, binding, merged)


def find_offloadable(graph: Graph) -> np.ndarray:
    """Finds which values can be offloaded and would make room, bool [num_values]."""
    return np.array([value.fetch_cost is not None and value.size_bytes > 0 for value in graph.values], dtype=np.bool_)


def own_events(space: StageSpace) -> np.ndarray:
    """Returns the binding events at which a stage's own node runs, bool [num_stages, num_nodes]."""
    num_stages, num_nodes = space.binding.shape
    return space.binding & np.eye(num_stages, num_nodes, dtype=bool)


def _can_repeat(graph: Graph, index: int, most_extra_cost: int | None) -> bool:
    node = graph.nodes[index]
    if not node.recomputable or all(graph.values[value].size_bytes == 0 for value in node.outputs):
        return False
    return most_extra_cost is None or node.cost <= most_extra_cost


def _last_need(graph: Graph, repeats: np.ndarray) -> np.ndarray:
    """Returns the last stage in which a node that can run there reads each value, int64 [num_values]; -1 if none."""
    num_nodes = len(graph.nodes)
    needed = np.full(len(graph.values), -1, dtype=np.int64)
    needed[list(graph.outputs)] = num_nodes
    for index in range(num_nodes - 1, -1, -1):
        node = graph.nodes[index]
        last = max((int(needed[value]) for value in node.outputs), default=-1) if repeats[index] else -1
        for value in node.inputs:
            needed[value] = max(needed[value], index, last)
    return needed


def _binding_events(
    graph: Graph,
    edges: "Edges",
    producer: np.ndarray,
    can_run: np.ndarray,
    can_enter: np.ndarray,
    can_leave: np.ndarray,
    budget_bytes: int,
) -> np.ndarray:
    """Returns the events of one stage at which the values held and needed can exceed the budget, bool [num_nodes]."""
    num_nodes = len(graph.nodes)
    last_read = np.full(len(graph.values), -1, dtype=np.int64)
    runs = can_run[edges.user]
    np.maximum.at(last_read, edges.value[runs], edges.user[runs])
    made = can_run[producer]
    first = np.where(can_enter, 0, producer)
    last = np.where(can_leave, num_nodes - 1, np.maximum(last_read, np.where(made, producer, -1)))
    held = (can_enter | made) & (last >= first)
    sizes = graph.sizes_bytes[held]
    change = np.zeros(num_nodes + 1, dtype=np.int64)
    np.add.at(change, first[held], sizes)
    np.subtract.at(change, last[held] + 1, sizes)
    return can_run & (graph.resident_bytes + np.cumsum(change[:-1]) + graph.arrays.workspace_bytes > budget_bytes)


@dataclass(frozen=True)
class Edges:
    """The reads of a graph: node `user[e]` reads value `value[e]`. Sorted by value, then user. int64 [num_edges]."""

    value: np.ndarray
    user: np.ndarray


def edges_of(graph: Graph, *, diagonal: Iterable[int] = ()) -> Edges:
    """Returns the reads of a graph. A value in `diagonal` is also read by its own producer, which comes first."""
    is_own = mark(diagonal, len(graph.values))
    own = Rows(np.append(0, np.cumsum(is_own)), graph.arrays.producer[is_own])
    readers = own.join(graph.arrays.users)
    return Edges(np.repeat(np.arange(len(graph.values)), readers.lengths), readers.index)
