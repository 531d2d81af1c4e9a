"""Delays a schedule's recomputation until its results are read, and sums until they share a kernel.

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


def delay_sums(graph: Graph, schedule: Schedule, kernels: Sequence[frozenset[int]], small_bytes: int) -> Schedule:
    """Moves small sums of a gradient behind the recomputation that follows them, where the stock step has one kernel.

    If a later node reads the gradient, too, XLA:GPU computes both in one kernel. With recomputation between them, which
    waits for the gradient, they would be two kernels, each of which reads it.

    Args:
        schedule: a valid schedule without fetches.
        kernels: the kernels of the stock step that write results of each node, [num_nodes].
        small_bytes: results of at most so many bytes are small.
    """
    order = list(schedule.order)
    late = find_runs(graph, order)
    for end in sorted(set(late.values())):
        start = min(position for position, its_end in late.items() if its_end == end)
        while (
            start >= 2 and start - 2 not in late and _is_read_with_later(graph, order, start - 1, kernels, small_bytes)
        ):
            order[start - 1 : end] = [*order[start:end], order[start - 1]]
            start, end = start - 1, end - 1
    return Schedule(tuple(order))


def _is_read_with_later(
    graph: Graph, order: Sequence[int], position: int, kernels: Sequence[frozenset[int]], small_bytes: int
) -> bool:
    """Returns whether a position yields small results, which none reads before a later node of the same kernel.

    That node reads a value that the position reads, too.
    """
    node = graph.nodes[order[position]]
    if any(graph.values[value].size_bytes > small_bytes for value in node.outputs):
        return False
    for other in order[position + 1 :]:
        if not set(node.outputs).isdisjoint(graph.nodes[other].inputs):
            return False
        if kernels[order[position]] & kernels[other] and not set(node.inputs).isdisjoint(graph.nodes[other].inputs):
            return True
    return False
