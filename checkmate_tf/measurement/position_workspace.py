"""Counts the workspace of a schedule's positions, if operations within a node write over inputs that die there."""

from functools import cache

import numpy as np

from checkmate_tf.schedule import Retention, Schedule, find_retention
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.group_memory import find_group_memory
from checkmate_tf.tracing.ops import TensorId


def find_position_workspace(training_graph: TrainingGraph, schedule: Schedule) -> np.ndarray:
    """Returns the workspace of each position, less the part in inputs that die there, int64 [num_positions]."""
    graph = training_graph.graph
    intervals = find_retention(graph, schedule)
    workspace = graph.arrays.workspace_bytes[list(schedule.order)]
    return np.maximum(workspace - _count_overwritten_bytes(training_graph, schedule, intervals), 0)


def _count_overwritten_bytes(training_graph: TrainingGraph, schedule: Schedule, intervals: Retention) -> np.ndarray:
    """Returns the bytes of workspace that are written over inputs that die at each position, [num_positions].

    If an output of the same size takes over the storage of an input, the simulator counts that, so it is left out here.
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
