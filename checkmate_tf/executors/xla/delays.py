"""Delays a schedule's recomputation until its results are read, and other nodes until their readers run.

A solver may recompute a node long before its first reader if the budget allows. XLA may run it even earlier: as soon as
the gradient exists for which the node waits. That can be before the position with the highest memory.
"""

from collections.abc import Sequence

from checkmate_tf.executors.xla.order.late_runs import find_runs
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate


def delay_repeats(graph: Graph, schedule: Schedule) -> Schedule:
    """Moves each repeat to the place before its first reader, if the peak does not rise and the sum of memory falls.

    The first computation of a node that runs after others that follow it in the stock step moves like a repeat.

    Args:
        schedule: a valid schedule without fetches.

    >>> from checkmate_tf.graph import Node, Value
    >>> reads = {"a": (), "b": (0,), "c": (1,), "d": (2,), "e": (0, 3)}
    >>> nodes = (Node(name, name, inputs, (i,), cost=1) for i, (name, inputs) in enumerate(reads.items()))
    >>> graph = Graph(tuple(nodes), tuple(Value(name, 10) for name in reads), outputs=(4,))
    >>> delay_repeats(graph, Schedule((0, 1, 0, 2, 3, 4))).order  # node 4 reads node 0
    (0, 1, 2, 3, 0, 4)
    """
    order = list(schedule.order)
    simulation = simulate(graph, schedule)
    peak_bytes, held_bytes = simulation.peak_bytes, int(simulation.memory_bytes.sum())
    first_positions = {node: position for position, node in reversed(list(enumerate(order)))}
    for position in reversed(range(len(order))):
        node = order[position]
        is_late = graph.nodes[node].recomputable and node < max(order[:position], default=-1)
        if first_positions[node] == position and not is_late:
            continue
        yielded = set(graph.nodes[node].outputs)
        later = range(position + 1, len(order))
        reader = next((other for other in later if not yielded.isdisjoint(graph.nodes[order[other]].inputs)), position)
        if reader <= position + 1:
            continue
        delayed = [*order[:position], *order[position + 1 : reader], node, *order[reader:]]
        simulation = simulate(graph, Schedule(tuple(delayed)))
        if simulation.peak_bytes <= peak_bytes and simulation.memory_bytes.sum() < held_bytes:
            order, held_bytes = delayed, int(simulation.memory_bytes.sum())
    return Schedule(tuple(order))


def delay_fused(graph: Graph, schedule: Schedule, kernels: Sequence[frozenset[int]], small_bytes: int) -> Schedule:
    """Moves backward nodes behind the recomputation that follows them, so that XLA:GPU fuses them as in the stock step.

    Recomputation waits for a gradient. XLA writes that gradient to a buffer, and fuses nothing across the wait.
    Therefore, small sums of a gradient move if the stock step computes them in one kernel with a later node. Nodes that
    the stock step computes within their readers move if the peak does not rise.

    Args:
        schedule: a valid schedule without fetches.
        kernels: the kernels of the stock step that write results of each node, [num_nodes].
        small_bytes: results of at most so many bytes are small.
    """
    order = list(schedule.order)
    peak_bytes = simulate(graph, schedule).peak_bytes
    late = find_runs(graph, order)
    for end in sorted(set(late.values())):
        start = min(position for position, its_end in late.items() if its_end == end)
        while start >= 2 and start - 2 not in late:
            index, behind = order[start - 1], order[end:]
            moved = [*order[: start - 1], *order[start:end], index, *behind]
            if not _is_unread(graph, index, order[start:end]):
                break
            if any(graph.values[value].size_bytes > small_bytes for value in graph.nodes[index].outputs):
                is_within_readers = graph.nodes[index].is_backward and not kernels[index]
                if not is_within_readers or simulate(graph, Schedule(tuple(moved))).peak_bytes > peak_bytes:
                    break
            elif not any(kernels[index] & kernels[other] for other in behind):
                break
            order, start, end = moved, start - 1, end - 1
    return Schedule(tuple(order))


def _is_unread(graph: Graph, index: int, others: Sequence[int]) -> bool:
    """Returns whether none of the other nodes reads a result of a node."""
    return all(set(graph.nodes[index].outputs).isdisjoint(graph.nodes[other].inputs) for other in others)
