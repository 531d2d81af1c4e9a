"""Counts what TensorFlow makes of a schedule's memory, beyond what the simulator and the solvers know.

Within a node: an operation may write its output over an input of the node that dies there.

Between nodes: where grappler's memory optimizer estimates that a step takes most of the device, it adds up an AddN of
three or more terms in a temporary variable, if a term is there at the estimated peak (`SchedulingPass` of
tensorflow/core/grappler/optimizers/memory_optimizer.cc). The variable is made when the first term is there, and filled
while the next step runs; then the term is freed.
"""

import math
from functools import cache

import numpy as np

from checkmate_tf.schedule import Retention, Schedule, find_retention
from checkmate_tf.tf_private import find_memory_limit
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.group_memory import find_group_memory
from checkmate_tf.tracing.ops import TensorId

# Of what TensorFlow may take on the device; it says that every CPU has 256 MiB.
_MOST = 0.8
_FEWEST_TERMS = 3


def find_step_workspace(training_graph: TrainingGraph, schedule: Schedule, *, device: str = "CPU:0") -> np.ndarray:
    """Finds the workspace of each step, with what TensorFlow adds and saves, int64 [num_steps]."""
    graph = training_graph.graph
    intervals = find_retention(graph, schedule)
    workspace = graph.arrays.workspace_bytes[list(schedule.order)]
    saved = _count_overwritten_bytes(training_graph, schedule, intervals)
    limit_bytes = find_memory_limit(*device.split(":"))
    most_bytes = math.inf if limit_bytes is None else _MOST * limit_bytes
    added = _count_temporary_variable_bytes(training_graph, schedule, intervals, most_bytes)
    return np.maximum(workspace - saved, 0) + added


def _count_overwritten_bytes(training_graph: TrainingGraph, schedule: Schedule, intervals: Retention) -> np.ndarray:
    """Counts the bytes of workspace that are written over inputs which die at each step, [num_steps].

    Inputs as large as an output that takes over storage are left out: the simulator knows of these.
    """
    graph, ops, grouping = training_graph.graph, training_graph.ops, training_graph.grouping
    dying: list[set[TensorId]] = [set() for _ in schedule.order]
    for value, end in zip(intervals.value.tolist(), intervals.end.tolist(), strict=True):
        node = graph.nodes[schedule.order[end]]
        known = node.inplace and graph.values[node.outputs[0]].size_bytes == graph.values[value].size_bytes
        if value in node.inputs and value not in graph.outputs and not known:
            dying[end].update(training_graph.tensors[value])

    @cache
    def count_workspace(node: int, dying: frozenset[TensorId]) -> int:
        kept = frozenset(tensor for value in graph.nodes[node].outputs for tensor in training_graph.tensors[value])
        return find_group_memory(ops, grouping, grouping.groups[node].members, kept, dying).workspace_bytes

    return np.array(
        [
            count_workspace(node, frozenset()) - count_workspace(node, frozenset(tensors))
            for node, tensors in zip(schedule.order, dying, strict=True)
        ]
    )


def _count_temporary_variable_bytes(
    training_graph: TrainingGraph, schedule: Schedule, intervals: Retention, most_bytes: float
) -> np.ndarray:
    """Counts the bytes of temporary variables beside the first terms of sums, [num_steps]."""
    ops, grouping = training_graph.ops, training_graph.grouping
    value_of = {tensor: value for value, tensors in enumerate(training_graph.tensors) for tensor in tensors}
    at_peak = _find_copies_at_peak(training_graph, schedule, intervals, most_bytes)
    found = np.zeros(len(schedule), dtype=np.int64)
    steps = np.array(schedule.order)
    for number, op in enumerate(ops.ops):
        if op.type != "AddN" or len(op.inputs) < _FEWEST_TERMS:
            continue
        roots = {root for root in map(grouping.root, ops.inputs[number]) if root is not None}
        terms = np.isin(intervals.value, [value_of[root] for root in roots if root in value_of])
        for step in np.flatnonzero(steps == grouping.group_of[number]):
            read = terms & (intervals.start < step) & (step <= intervals.end)
            if (at_peak & read).any():
                found[intervals.start[read].min() + 1] += ops.sizes_bytes[number][0] or 0
    return found


def _find_copies_at_peak(
    training_graph: TrainingGraph, schedule: Schedule, intervals: Retention, most_bytes: float
) -> np.ndarray:
    """Finds which copies are there at the peak that grappler estimates, if that is above `most_bytes`, bool
    [num_copies].

    It takes the steps in order, lets nothing take over the storage of what it reads, and counts arguments and the
    values of variables until their last use.
    """
    graph, ops, grouping = training_graph.graph, training_graph.ops, training_graph.grouping
    change = np.zeros(len(schedule) + 1, dtype=np.int64)
    np.add.at(change, intervals.start, graph.sizes_bytes[intervals.value])
    np.subtract.at(change, intervals.end + 1, graph.sizes_bytes[intervals.value])
    last_use = {
        tensor: step
        for step, node in enumerate(schedule.order)
        for member in grouping.groups[node].members
        for tensor in ops.inputs[member]
        if grouping.root(tensor) is None
    }
    for (source, output), last in last_use.items():
        change[[0, last + 1]] += np.array([1, -1]) * (ops.sizes_bytes[source][output] or 0)
    held = np.cumsum(change[:-1])
    peak = int(held.argmax())
    return (held[peak] > most_bytes) & (intervals.start <= peak) & (peak <= intervals.end)
