"""Sees to it that a repeated call of functions, such as a loop, reads the values of variables that its first one read.

The functions of a call read variables while they run. What changes such a variable waits for the call in the source;
in a rewritten step it has to wait for each of its repeats, too. That their results are read before does not suffice:
TensorFlow puts the functions' operations in the place of a call, each of which waits for its own inputs alone.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, select_positions
from checkmate_tf.tracing.grouping import Grouping
from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.semantics import FUNCTION_CALL_TYPES


def find_awaited_calls(ops: OpList, op: int) -> list[int]:
    """Finds the calls of functions that an operation waits for without reading their results."""
    return [source for source in ops.controls[op] if ops.ops[source].type in FUNCTION_CALL_TYPES]


def find_awaited_nodes(ops: OpList, grouping: Grouping) -> list[set[int]]:
    """Finds the nodes with the calls that each node waits for, [num_nodes]."""
    return [
        {grouping.group_of[call] for member in group.members for call in find_awaited_calls(ops, member)} - {node}
        for node, group in enumerate(grouping.groups)
    ]


def delay_changes(graph: Graph, schedule: Schedule, awaited: Sequence[Collection[int]]) -> Schedule:
    """Moves what waits for a call, and all that follows it, behind the call's last repeat.

    Args:
        awaited: the nodes with calls that each node waits for, [num_nodes].

    Returns the schedule itself where all waits already.
    """
    order = schedule.order
    left = Counter(order)
    done: list[int] = []
    late: list[int] = []

    def place(position: int) -> None:
        node = order[position]
        waits = not {order[other] for other in late}.isdisjoint(graph.predecessors[node])
        (late if waits or any(left[call] for call in awaited[node]) else done).append(position)

    for position, node in enumerate(order):
        place(position)
        left[node] -= 1
        waiting, late = late, []
        for one in waiting:
            place(one)
    return schedule if done == list(range(len(order))) else select_positions(graph, schedule, done)
