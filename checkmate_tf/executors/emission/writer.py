"""Writes copies of nodes, for either executor.

`Copies` names the operations and chooses the copies of tensors that they read. An `OrderingPolicy` makes them wait for
each other.
"""

from collections.abc import Collection, Sequence

from checkmate_tf.errors import EmissionError, ScheduleError
from checkmate_tf.executors.emission.awaited_calls import delay_changes, find_awaited_calls
from checkmate_tf.executors.emission.copies import Copies, name_copy
from checkmate_tf.executors.emission.ordering import OrderingPolicy
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule


def check_emitted(graph: Graph, schedule: Schedule, awaited: Sequence[Collection[int]]) -> None:
    """Raises EmissionError for a schedule that cannot be emitted as it is.

    It must compute the graph, and must not change a variable before a repeated call reads it.

    Args:
        awaited: for each node, the nodes with the calls for which it waits, [num_nodes].
    """
    try:
        check_schedule(graph, schedule)
    except ScheduleError as error:
        raise EmissionError(f"the schedule does not compute graph {graph.name!r}: {error}") from error
    if delay_changes(graph, schedule, awaited) is not schedule:
        raise EmissionError(
            f"the schedule of {graph.name!r} changes a variable before a call of functions that reads it is repeated: "
            "arrange it for its executor first"
        )


class NodeWriter:
    """Writes copies of nodes, whose operations wait by an ordering policy."""

    def __init__(self, copies: Copies, policy: OrderingPolicy):
        """Begins with no node written."""
        self.copies = copies
        self.policy = policy
        self.num_written = [0] * len(copies.grouping.groups)
        self.repeats: dict[int, list[str]] = {}  # names of each op's copies but the first

    def write_copy(self, node: int) -> dict[int, str]:
        """Writes one more copy of a node's operations. Returns the name of each, by op."""
        copies, group = self.copies, self.copies.grouping.groups[node]
        repeat = self.num_written[node]
        self.num_written[node] += 1
        fresh: dict[int, str] = {}
        for op in group.members:
            source_name = copies.ops.ops[op].name
            name = name_copy(source_name, repeat)
            inputs = [copies.tensor(tensor, fresh) for tensor in copies.ops.inputs[op]]
            inputs = self.policy.tie_inputs(op, name, inputs)
            waits = [copies.name_control(other, fresh) for other in copies.ops.controls[op]]
            waits += [again for call in find_awaited_calls(copies.ops, op) for again in self.repeats.get(call, ())]
            controls = [f"^{wait}" for wait in waits]
            unique = f"{source_name}#{repeat}" if repeat else ""
            copies.write(op, name, inputs + controls, unique=unique, hold=self.policy.hold)
            fresh[op] = name
            if repeat:
                self.repeats.setdefault(op, []).append(name)
        return fresh
