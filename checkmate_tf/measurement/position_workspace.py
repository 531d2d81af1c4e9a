"""Counts the workspace of a schedule's steps, where an operation within a node writes over an input that dies there."""

from functools import cache

import numpy as np

from checkmate_tf.schedule import Retention, Schedule, find_retention
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.group_memory import find_group_memory
from checkmate_tf.tracing.ops import TensorId


def find_position_workspace(training_graph: TrainingGraph, schedule: Schedule) -> np.ndarray:
    """Finds the workspace of each position, less the part written over inputs that die there, int64 [num_positions]."""
    graph = training_graph.graph
    intervals = find_retention(graph, schedule)
    workspace = graph.arrays.workspace_bytes[list(schedule.order)]
    return np.maximum(workspace - _count_overwritten_bytes(training_graph, schedule, intervals), 0)


def _count_overwritten_bytes(training_graph: TrainingGraph, schedule: Schedule, intervals: Retention) -> np.ndarray:
    """Counts the bytes of workspace that are written over inputs which die at each position, [num_positions].

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
