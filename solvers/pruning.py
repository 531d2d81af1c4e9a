"""Removes recomputations that the budget does not need from a schedule: a pass that any solver can use.

If a repeat is removed, the copy before it is retained until the last use of the removed copy. Repeats are tried in the
order of the cost saved per byte and position of that longer retention, until a pass removes hardly any of them. A tree
over the positions (memory_tree.py) keeps the memory exactly as `simulate` counts it, so a trial takes microseconds.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.compiling import Kernel

if TYPE_CHECKING:
    from checkmate_tf.solvers.pruning_kernel import Events, Nodes


@dataclass(frozen=True)
class Settings:
    """Steers the pruning.

    Args:
        timed_trials: trials between two looks at the clock. With fewer, pruning ends closer to the deadline.
        worthwhile_part: another pass follows if the last one removed more than one in this many repeats. More passes
            remove a little more, and each takes as long as the first.
    """

    timed_trials: int = 1 << 14
    worthwhile_part: int = 100


SETTINGS = Settings()


def prune(graph: Graph, schedule: Schedule, budget_bytes: int, *, deadline_s: float = float("inf")) -> Schedule:
    """Removes recomputations while the peak stays within `budget_bytes`, or that of `schedule` if it is higher.

    Recomputations are never moved, so first computations keep their order. At `deadline_s`, a time of
    `time.perf_counter()`, pruning stops with the result so far. If the deadline is too early to compile the pruning, it
    removes nothing. `schedule` must not fetch anything.
    """
    if not KERNEL.compile_within(deadline_s - perf_counter()):
        return schedule
    return _remove_positions(graph, schedule, budget_bytes, deadline_s)


def _remove_positions(graph: Graph, schedule: Schedule, budget_bytes: int, deadline_s: float) -> Schedule:
    from checkmate_tf.solvers import pruning_kernel as kernel

    memory = simulate(graph, schedule).memory_bytes
    most = max(budget_bytes, int(memory.max()))
    nodes = _node_arrays(graph)
    events = _event_arrays(nodes, schedule, memory)
    kernel.link_events(nodes, events)
    ratio = np.empty(len(schedule))
    worthwhile = True
    while worthwhile and perf_counter() < deadline_s:
        kernel.savings(nodes, events, ratio)
        repeats = np.flatnonzero(ratio >= 0)
        ranked = repeats[np.lexsort((-repeats, -ratio[repeats]))]
        num_removed = 0
        for start in range(0, len(ranked), SETTINGS.timed_trials):
            if perf_counter() > deadline_s:
                break
            num_removed += kernel.remove_positions(nodes, events, ranked[start : start + SETTINGS.timed_trials], most)
        worthwhile = SETTINGS.worthwhile_part * num_removed > len(repeats)
    return Schedule(tuple(events.order[~events.removed].tolist()))


def compile_pruning() -> None:
    """Compiles or loads the pruning, by removing a recomputation."""
    nodes = (Node("a", "", (), (0,), 1), Node("b", "", (0,), (1,), 1), Node("c", "", (0, 1), (2,), 1))
    chain = Graph(nodes, (Value("a", 1), Value("b", 1), Value("c", 1)))
    _remove_positions(chain, Schedule((0, 1, 0, 2)), 4, float("inf"))


KERNEL = Kernel(compile_pruning, last=("memory_tree.multiply_range", "pruning_kernel.remove_positions"))


def _node_arrays(graph: Graph) -> "Nodes":
    from checkmate_tf.solvers.pruning_kernel import Nodes

    arrays = graph.arrays
    links = arrays.inputs.join(arrays.outputs)
    return Nodes(
        start=links.start,
        middle=links.start[:-1] + arrays.inputs.lengths,
        links=links.index,
        workspace=arrays.workspace_bytes,
        takes=arrays.takes_over_bytes,
        cost=graph.costs,
        size=graph.sizes_bytes,
        is_output=arrays.is_output,
    )


def _event_arrays(nodes: "Nodes", schedule: Schedule, memory: np.ndarray) -> "Events":
    """Returns the events of a schedule, not linked yet, and the tree of its memory."""
    from checkmate_tf.solvers.memory_tree import deltas_of
    from checkmate_tf.solvers.pruning_kernel import Events

    order = np.array(schedule.order, dtype=np.int64)
    first = np.concatenate(([0], np.cumsum(np.diff(nodes.start)[order])))
    num_events = int(first[-1])
    return Events(
        order=order,
        first=first,
        position=np.empty(num_events, dtype=np.int64),
        computes=np.empty(num_events, dtype=np.bool_),
        before=np.empty(num_events, dtype=np.int64),
        after=np.empty(num_events, dtype=np.int64),
        dying=np.zeros(len(order), dtype=np.int64),
        is_repeat=np.empty(len(order), dtype=np.bool_),
        removed=np.zeros(len(order), dtype=np.bool_),
        deltas=deltas_of(memory),
    )
