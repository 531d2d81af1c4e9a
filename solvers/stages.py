"""Converts between Checkmate's stages and schedules. Every such conversion is here.

At the start of stage t, the first t nodes have been computed. In it, some of them may be computed again, in the input
order, and it ends with the first computation of node t. A schedule in fixed order is therefore a set of recomputations
(stage, node). It is also a choice S of the values retained from one stage to the next. Checkmate's Algorithm 2
(appendix B.1) finds the cheapest R for an S: R is 1 only where a constraint requires it.
"""

import math
import time
from collections.abc import Iterable

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention, from_stages

Event = tuple[int, int]
"""A recomputation: (stage, node)."""


def rows_of(events: Iterable[Event]) -> np.ndarray:
    """Returns events as an array, int64 [num_events, 2], in ascending order."""
    return np.array(sorted(events), dtype=np.int64).reshape(-1, 2)


def events_of(schedule: Schedule) -> tuple[Event, ...]:
    """Returns the recomputations of a schedule whose first computations are in the input order."""
    stages = stages_of(schedule).tolist()
    return tuple((stage, node) for stage, node in zip(stages, schedule.order, strict=True) if node < stage)


def stages_of(schedule: Schedule) -> np.ndarray:
    """Returns the stage of each position, int64. Positions after the last first computation are in the last stage."""
    order = np.asarray(schedule.order, dtype=np.int64)
    first = np.zeros(len(order), dtype=np.int64)
    first[1:] = np.maximum.accumulate(order)[:-1] + 1
    return np.minimum(first, order.max(initial=0))


def staged_events(schedule: Schedule) -> tuple[Event, ...]:
    """Returns the recomputations of a schedule, each once a stage; none if first computations are in another order."""
    latest = np.maximum.accumulate(np.asarray(schedule.order, dtype=np.int64))
    if (np.diff(latest, prepend=-1) > 1).any():
        return ()
    return tuple(sorted(set(events_of(schedule))))


def held_at(graph: Graph, schedule: Schedule, starts: Iterable[int]) -> list[set[int]]:
    """Returns the values held at the entry of each of these stages."""
    intervals = find_retention(graph, schedule)
    stages = stages_of(schedule)
    start, end = stages[intervals.start], stages[intervals.end]
    return [set(intervals.value[(start < first) & (end >= first)].tolist()) for first in starts]


def schedule_of_events(num_nodes: int, events: np.ndarray) -> Schedule:
    """Returns the schedule of recomputations (stage, node), int64 [num_events, 2], in Checkmate's order."""
    own = np.arange(num_nodes, dtype=np.int64)
    stages = np.concatenate((events[:, 0], own))
    nodes = np.concatenate((events[:, 1], own))
    return Schedule.of(nodes[np.lexsort((nodes, stages))])


def cheapest_recompute(graph: Graph, retain: np.ndarray, *, deadline_s: float = math.inf) -> np.ndarray:
    """Returns the R of least cost for an S, bool [num_nodes, num_nodes].

    `retain` is S, bool [num_nodes, num_values], or with one more row for the end. Its entries for stages up to a
    value's own stage are not read. Values of nodes that are not recomputable are treated as retained.

    Raises TimeoutError if that takes until after `deadline_s`.
    """
    num_nodes = len(graph.nodes)
    stage = np.arange(num_nodes)
    producer = graph.arrays.producer
    fixed = ~graph.arrays.recomputable
    later = stage[:, None] > producer[None, :]
    held = np.asfortranarray((retain[:num_nodes] | fixed[producer]) & later)  # read column by column
    recompute = np.eye(num_nodes, dtype=bool, order="F")
    # (1c): a value that is retained into a stage, but not into the one before, is computed in the stage before.
    begins = held[1:] & ~held[:-1] & later[:-1]
    stages, values = np.nonzero(begins)
    recompute[stages, producer[values]] = True
    outputs = [value for value in graph.outputs if producer[value] < num_nodes - 1]
    for value in outputs:
        recompute[-1, producer[value]] |= not held[-1, value]
    # (1b), from the last node to the first: each value that a node reads is retained or computed in the same stage.
    for node in range(num_nodes - 1, -1, -1):
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"only {num_nodes - 1 - node} of {num_nodes} nodes were placed within the time limit")
        for value in graph.nodes[node].inputs:
            recompute[:, producer[value]] |= recompute[:, node] & ~held[:, value]
    return np.ascontiguousarray(recompute)


def schedule_of_checkpoints(graph: Graph, retain: np.ndarray) -> Schedule:
    """Returns the cheapest schedule for an S (see `cheapest_recompute`)."""
    return from_stages(graph, cheapest_recompute(graph, retain))
