"""Ensures that a repeated call of functions, such as a loop, reads the same values of variables as the first call.

The functions of a call read variables while they run. In the source, operations that change such a variable wait for
the call. In a rewritten step, they must wait for each of its repeats, too. It is not enough that they come after the
readers of its results: TensorFlow replaces a call by the functions' operations, each of which waits only for its own
inputs.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, select_positions
from checkmate_tf.tracing.grouping import Grouping
from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.semantics import FUNCTION_CALL_TYPES


def find_awaited_calls(ops: OpList, op: int) -> list[int]:
    """Lists the calls of functions for which an operation waits without reading their results."""
    return [source for source in ops.controls[op] if ops.ops[source].type in FUNCTION_CALL_TYPES]


def find_awaited_nodes(ops: OpList, grouping: Grouping) -> list[set[int]]:
    """Returns, for each node, the nodes with the calls for which it waits, [num_nodes]."""
    return [
        {grouping.group_of[call] for member in group.members for call in find_awaited_calls(ops, member)} - {node}
        for node, group in enumerate(grouping.groups)
    ]


def delay_changes(graph: Graph, schedule: Schedule, awaited: Sequence[Collection[int]]) -> Schedule:
    """Moves nodes that wait for a call, and the nodes that depend on them, behind the call's last repeat.

    Args:
        awaited: for each node, the nodes with the calls for which it waits, [num_nodes].

    Returns:
        The new schedule; the same object if no node had to move.
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
