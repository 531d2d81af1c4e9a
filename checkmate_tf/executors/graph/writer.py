"""Emits a schedule of a training graph as a new static TensorFlow function for the graph executor."""

from collections.abc import Callable
from functools import partial
from graphlib import CycleError, TopologicalSorter

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.awaited_calls import delay_changes, find_awaited_nodes
from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.emission.writer import NodeWriter, check_emitted
from checkmate_tf.executors.graph.control_edges import ControlEdges, find_begins
from checkmate_tf.executors.graph.host_state import HostReads, place_state
from checkmate_tf.executors.graph.moved_state import MovedState, PageReleases
from checkmate_tf.executors.graph.offloads import Offloads
from checkmate_tf.executors.graph.sums import split_sums
from checkmate_tf.executors.step import HostMemory, OffloadFolder
from checkmate_tf.rewriting.body import build_function
from checkmate_tf.schedule import Schedule, drop_unread
from checkmate_tf.tf_private import hold
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.layout import keep_layout, may_change_layout


def arrange(training_graph: TrainingGraph, schedule: Schedule) -> Schedule:
    """Returns a schedule in the form that the graph executor runs.

    It drops computations that nothing reads, and moves changes of variables behind the last repeat of a call that reads
    them.
    """
    awaited = find_awaited_nodes(training_graph.ops, training_graph.grouping)
    return delay_changes(training_graph.graph, drop_unread(training_graph.graph, schedule), awaited)


def emit(
    training_graph: TrainingGraph,
    schedule: Schedule,
    *,
    ordering: Ordering = "overlap",
    place: OffloadFolder | HostMemory | None = None,
    state: MovedState | None = None,
) -> EmittedFunction:
    """Writes a step that computes the nodes of `training_graph` in the order of `schedule`.

    Args:
        schedule: a schedule from `arrange`, or one that repeats no call that reads variables.
        place: the place to which values are offloaded.
        state: the variables that the step uses outside of the device's memory; nodes then run one by one.

    Raises EmissionError if the schedule does not compute the graph, or if TensorFlow refuses the step.
    """
    awaited = find_awaited_nodes(training_graph.ops, training_graph.grouping)
    check_emitted(training_graph.graph, schedule, awaited)
    copies = Copies(training_graph)
    begins = find_begins(training_graph, schedule, "chain" if state else ordering)
    policy = ControlEdges(copies, schedule.order, begins)
    writer = NodeWriter(copies, policy)
    offloads = Offloads(copies, policy, schedule, place)
    releases = PageReleases(copies, policy, state)
    reads = HostReads(copies, policy, state.host if state else None)
    num_copied_ops: dict[int, int] = {}
    for position, node in enumerate(schedule.order):
        is_repeat = writer.num_written[node] > 0
        offloads.write_fetches(position)
        reads.write(position, node)
        policy.begin_position(position)
        fresh = writer.write_copy(node)
        copies.name_of.update(fresh)
        policy.end_position(position, fresh)
        offloads.write_offloads(position)
        releases.write(position, node)
        if is_repeat:
            num_copied_ops[node] = num_copied_ops.get(node, 0) + len(fresh)
    policy.finish()
    outputs = copies.write_outputs()
    if may_change_layout():
        for definition in copies.written:
            keep_layout(definition)
    graph_def = split_sums(copies.graph_def(), copies.sum_shapes)
    updates = state.write_updates(graph_def) if state else []
    _check_acyclic(graph_def)
    controls = [*copies.control_outputs(), *releases.names]
    captured = state.host.handles if state and state.host else {}
    function = build_function(training_graph.function, graph_def, outputs, controls, captured)
    hold(function.graph, [*offloads.calls, *releases.calls, *updates])
    return EmittedFunction(
        function,
        dict(sorted(num_copied_ops.items())),
        policy.num_control_edges,
        on_begin=_move_state(function, place, state),
        on_end=offloads.check,
    )


def _move_state(
    function: tf.types.experimental.ConcreteFunction, place: OffloadFolder | HostMemory | None, state: MovedState | None
) -> Callable[[], None]:
    """Returns what moves the variables to where a step uses them."""
    if isinstance(place, HostMemory):
        return partial(place_state, function.graph.variables, state.variables if state else ())
    return state.file.move_in if state and state.file else lambda: None


def _check_acyclic(graph_def: GraphDef) -> None:
    """Raises EmissionError, which names the operations, if some wait for each other in a circle."""
    order = TopologicalSorter({d.name: {i.lstrip("^").partition(":")[0] for i in d.input} for d in graph_def.node})
    try:
        order.prepare()
    except CycleError as error:
        raise EmissionError(
            f"operations of the rewritten step wait for each other: {' <- '.join(error.args[1])}"
        ) from error
