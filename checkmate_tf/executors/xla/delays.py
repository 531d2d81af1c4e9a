"""Delays a schedule's recomputation until its results are read.

A solver may recompute a node long before its first reader if the budget allows. XLA may run it even earlier: as soon as
the gradient exists for which the node waits. That can be before the position with the highest memory.
"""

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
