"""REVOLVE, the log n checkpointing of Griewank & Walther (2000), Algorithm 799, for linear networks.

Checkmate, Table 1. With s snapshots, REVOLVE reverses a chain of l steps as follows: it advances m steps to the next
snapshot, reverses the steps after it with s - 1 snapshots, and then reverses the first m steps with s snapshots. The
binomial formula for the least number of repeated steps gives m. All steps count as equal in cost and memory. The solver
tries every number of snapshots and returns the cheapest schedule within the budget that repeats only recomputable
nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_schedule, forward_nodes, is_linear
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class Griewank(Solver):
    """Reverses a chain with the fewest repeated steps for a number of snapshots. It has no options.

    REVOLVE covers only linear networks with a mirrored backward pass. On any other graph, the solver only tries to
    retain everything.
    """

    def search(self, search: Search) -> Result:
        graph = search.problem.graph
        readers = _mirrored_readers(graph) or []
        counts = range(1, len(readers))
        schedules = (revolve_schedule(graph, readers, count) for count in counts)
        return cheapest_schedule(search, (schedule for schedule in schedules if _may_run(graph, schedule)))


def repeated_steps(num_steps: int, num_snapshots: int) -> int:
    """Returns the least number of repeated steps to reverse a chain.

    Griewank & Walther, equation 2, less the first sweep. The chain's first state is kept in addition to the snapshots.
    """
    if num_steps <= 1:
        return 0
    if num_snapshots == 0:
        return num_steps * (num_steps - 1) // 2
    repeats = 0
    while comb(num_snapshots + 1 + repeats, repeats) < num_steps:
        repeats += 1
    return repeats * num_steps - comb(num_snapshots + 1 + repeats, repeats - 1) if repeats else 0


def revolve_schedule(graph: Graph, readers: list[list[int]], num_snapshots: int) -> Schedule:
    """Returns the schedule of binomial checkpointing with this number of snapshots.

    `readers[i]` are the nodes that reverse step i. They read the values of steps i - 1 and i.
    """
    order: list[int] = []
    for step in _sweep(0, len(readers), num_snapshots):
        order.extend([step] if step >= 0 else readers[~step])
    return Schedule.of(order)


def _sweep(first: int, end: int, num_snapshots: int) -> Iterator[int]:
    """Lists the computed steps, and ~i where step i is reversed, for steps `first` to `end - 1`.

    The state before `first` is held.
    """
    while end - first > 1:
        if num_snapshots == 0:
            yield from range(first, end)
            yield ~(end - 1)
            end -= 1
            continue
        middle = first + _split(end - first, num_snapshots)
        yield from range(first, middle)
        yield from _sweep(middle, end, num_snapshots - 1)
        end = middle
    if end > first:
        yield first
        yield ~first


def _split(num_steps: int, num_snapshots: int) -> int:
    """Returns how far to advance before the next snapshot: the largest of the best distances."""
    return min(
        range(num_steps - 1, 0, -1),
        key=lambda m: m + repeated_steps(num_steps - m, num_snapshots - 1) + repeated_steps(m, num_snapshots),
    )


def _may_run(graph: Graph, schedule: Schedule) -> bool:
    """Returns whether every node that the schedule repeats is recomputable."""
    times = np.bincount(np.asarray(schedule.order), minlength=len(graph.nodes))
    return bool(graph.arrays.recomputable[times > 1].all())


def _mirrored_readers(graph: Graph) -> list[list[int]] | None:
    """Returns the nodes that reverse each step; None unless the graph is a chain with a mirrored backward pass.

    The steps are the forward nodes except the last, the loss. Its value is the first gradient, so it begins the
    backward pass.
    """
    num_steps = len(forward_nodes(graph)) - 1
    if not is_linear(graph) or num_steps < 1 or any(node.is_backward for node in graph.nodes[: num_steps + 1]):
        return None
    readers: list[list[int]] = [[] for _ in range(num_steps)]
    step = num_steps - 1
    for index in range(num_steps, len(graph.nodes)):
        reads = [node for node in graph.predecessors[index] if node < num_steps]
        latest = max(reads, default=step)
        if latest > step or min(reads, default=latest) < latest - 1:
            return None
        step = latest
        readers[step].append(index)
    return readers
