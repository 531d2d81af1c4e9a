"""Schedules in fixed order as sets of recomputations (stage, node)."""

from collections.abc import Iterable

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, retention

Event = tuple[int, int]
"""(stage, node recomputed there)."""


def rows_of(events: Iterable[Event]) -> np.ndarray:
    """int64 [num_events, 2], ascending."""
    return np.array(sorted(events), dtype=np.int64).reshape(-1, 2)


def events_of(schedule: Schedule) -> tuple[Event, ...]:
    """The recomputations of a schedule whose first computations are in the input order."""
    stages = stages_of(schedule).tolist()
    return tuple((stage, node) for stage, node in zip(stages, schedule.order, strict=True) if node < stage)


def stages_of(schedule: Schedule) -> np.ndarray:
    """The stage of each step, int64; what is computed after the last first computation is of the last stage."""
    order = np.asarray(schedule.order, dtype=np.int64)
    first = np.zeros(len(order), dtype=np.int64)
    first[1:] = np.maximum.accumulate(order)[:-1] + 1
    return np.minimum(first, order.max(initial=0))


def held_at(graph: Graph, schedule: Schedule, starts: Iterable[int]) -> list[set[int]]:
    """The values held at the entry of each of these stages."""
    intervals = retention(graph, schedule)
    stages = stages_of(schedule)
    start, end = stages[intervals.start], stages[intervals.end]
    return [set(intervals.value[(start < first) & (end >= first)].tolist()) for first in starts]


def schedule_of(num_nodes: int, events: np.ndarray) -> Schedule:
    """The schedule of recomputations (stage, node), int64 [num_events, 2], in Checkmate's order."""
    own = np.arange(num_nodes, dtype=np.int64)
    stages = np.concatenate((events[:, 0], own))
    nodes = np.concatenate((events[:, 1], own))
    return Schedule.of(nodes[np.lexsort((nodes, stages))])
