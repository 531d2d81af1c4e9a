"""Writes a TrainingGraph and a schedule as a new static TensorFlow function for the graph executor.

`Copies` names the operations and knows which copy of a tensor is read, an `OrderingPolicy` makes them wait for each
other, and the writer here puts the two together, node by node.
"""

from graphlib import CycleError, TopologicalSorter

from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.emission.calls import delay_changes, find_awaited_calls, find_awaited_nodes
from checkmate_tf.emission.control_edges import ControlEdges, find_begins
from checkmate_tf.emission.copies import Copies, name_copy
from checkmate_tf.emission.folding import FoldingGuard
from checkmate_tf.emission.function import EmittedFunction, build_function
from checkmate_tf.emission.ordering import Ordering, OrderingPolicy
from checkmate_tf.emission.sums import split_sums
from checkmate_tf.errors import EmissionError, ScheduleError
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.layout import keep_layout, may_change_layout


def emit(training_graph: TrainingGraph, schedule: Schedule, *, ordering: Ordering = "overlap") -> EmittedFunction:
    """Writes the step of `training_graph` anew, its nodes computed and repeated as `schedule` says.

    Raises EmissionError when the schedule does not compute the graph or TensorFlow refuses the result.
    """
    try:
        check_schedule(training_graph.graph, schedule)
    except ScheduleError as error:
        raise EmissionError(f"the schedule does not compute graph {training_graph.graph.name!r}: {error}") from error
    check_no_fetches(schedule)
    awaited = find_awaited_nodes(training_graph.ops, training_graph.grouping)
    schedule = Schedule(delay_changes(training_graph.graph, schedule.order, awaited))
    copies = Copies(training_graph)
    policy = ControlEdges(copies, schedule.order, find_begins(training_graph, schedule, ordering))
    writer = NodeWriter(copies, policy, FoldingGuard(copies))
    num_copied_ops: dict[int, int] = {}
    for step, node in enumerate(schedule.order):
        is_repeat = writer.num_written[node] > 0
        policy.begin_step(step)
        fresh = writer.write_copy(node)
        copies.name_of.update(fresh)
        policy.end_step(step, fresh)
        if is_repeat:
            num_copied_ops[node] = num_copied_ops.get(node, 0) + len(fresh)
    policy.finish()
    outputs = copies.write_outputs()
    if may_change_layout():
        for definition in copies.written:
            keep_layout(definition)
    graph_def = split_sums(copies.graph_def(), copies.sum_shapes)
    _check_acyclic(graph_def)
    function = build_function(training_graph.function, graph_def, outputs, copies.control_outputs())
    return EmittedFunction(function, dict(sorted(num_copied_ops.items())), policy.num_control_edges)


def check_no_fetches(schedule: Schedule) -> None:
    """Raises EmissionError for a schedule that fetches values from host memory, which is not emitted."""
    if schedule.fetches:
        raise EmissionError(
            "the schedule fetches values from host memory, which is not emitted: solve without offloading"
        )


class NodeWriter:
    """Writes copies of nodes whose operations wait as an ordering policy says."""

    def __init__(self, copies: Copies, policy: OrderingPolicy, guard: FoldingGuard | None = None):
        """Begins with no node written; without a `guard` nothing is hidden from grappler."""
        self.copies = copies
        self.policy = policy
        self.guard = guard
        self.num_written = [0] * len(copies.grouping.groups)
        self.repeats: dict[int, list[str]] = {}  # names of each op's copies but the first

    def write_copy(self, node: int) -> dict[int, str]:
        """Writes one more copy of a node's operations; the name of each."""
        copies, group = self.copies, self.copies.grouping.groups[node]
        repeat = self.num_written[node]
        self.num_written[node] += 1
        fresh: dict[int, str] = {}
        for op in group.members:
            source_name = copies.ops.ops[op].name
            name = name_copy(source_name, repeat)
            inputs = [copies.tensor(tensor, fresh) for tensor in copies.ops.inputs[op]]
            if self.guard is not None:
                inputs = self.guard.guard_inputs(op, name, inputs, repeat=repeat, is_backward=group.is_backward)
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


def _check_acyclic(graph_def: GraphDef) -> None:
    """Raises EmissionError where operations wait for each other in a circle, naming them."""
    order = TopologicalSorter({d.name: {i.lstrip("^").partition(":")[0] for i in d.input} for d in graph_def.node})
    try:
        order.prepare()
    except CycleError as error:
        raise EmissionError(
            f"operations of the rewritten step wait for each other: {' <- '.join(error.args[1])}"
        ) from error
