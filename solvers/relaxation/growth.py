"""Chooses where to cut blocks: for the linear bound of the block relaxation, and where its solutions overshoot."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.solvers.relaxation.cuts import BoundedBlocks
from checkmate_tf.solvers.relaxation.model import Blocks, expand
from checkmate_tf.solvers.relaxation.settings import SETTINGS
from checkmate_tf.solvers.stages import Event, rows_of, schedule_of_events, stages_of

_LEAST_WORTH = 1e-9  # smaller dual values are HiGHS's rounding errors


def cut_blocks(
    strengthen: Callable[[Blocks], BoundedBlocks],
    blocks: Blocks,
    *,
    budget_bytes: int,
    known_cost: float,
    max_steps: int,
    everywhere: bool = False,
    find_overshot: Callable[[BoundedBlocks], list[int]] = lambda _: [],
    has_time: Callable[[], bool] = lambda: True,
) -> BoundedBlocks:
    """Cuts blocks where memory is short in the linear relaxation, until several steps hardly raise its bound.

    Event memory rows that its solutions violate are added, and dropped again if the bound does not depend on them.
    Starts are added either where the solution itself is short of memory, or as `find_overshot` returns them, whichever
    raised the bound more the last time.

    Args:
        strengthen: adds path cuts and solves the linear relaxation.
        known_cost: extra cost of a known schedule, or a guess of it.
        everywhere: cut at several places at once, even if the bound depends on one stage. That suits large graphs.
        find_overshot: returns starts to add where a schedule made from the solution is above the budget.
    """
    best = last = strengthen(blocks)
    mark, patience = best.bound, SETTINGS.patience_steps
    places = [lambda last: _find_starts_short_of_memory(last, budget_bytes, everywhere), find_overshot]
    gains = [math.inf, math.inf]
    for _ in range(max_steps):
        kind = 0 if gains[0] >= gains[1] else 1
        starts = places[kind](last)
        if not starts:
            gains[kind], kind = -math.inf, 1 - kind
            starts = places[kind](last)
        events = last.overfull[: SETTINGS.max_event_rows]
        if not (starts or events) or patience == 0 or not has_time():
            break
        rows, before = _select_useful_rows(last, blocks.rows).union(events), last.bound
        last = strengthen(replace(last.blocks, rows=rows).with_starts(starts))
        gains[kind] = last.bound - before
        best = max(best, last, key=lambda bounded: bounded.bound)
        patience -= 1
        if best.bound >= mark + SETTINGS.notable_rise_share * (known_cost - mark):
            mark, patience = best.bound, SETTINGS.patience_steps
    return best


def find_overshot_starts(bounded: BoundedBlocks, graph: Graph, reduced: Graph, budget_bytes: int) -> list[int]:
    """Returns starts to add where the rounded solution, as a schedule, is most above the budget.

    They are after the stage, or on both sides of it if a recomputation is above the budget.
    """
    linear, model = bounded.linear, bounded.model
    if linear is None or model is None:
        return []
    pressure_bytes = simulate_stock(graph).memory_bytes
    schedule = schedule_of_events(len(graph.nodes), rows_of(expand(model, reduced, linear.point, pressure_bytes)))
    memory_bytes, stages = simulate(graph, schedule).memory_bytes, stages_of(schedule)
    for position in np.argsort(-memory_bytes, kind="stable").tolist():
        if memory_bytes[position] <= budget_bytes:
            break
        stage = int(stages[position])
        around = {stage + 1} if schedule.order[position] == stage else {stage, stage + 1}
        starts = around - {*bounded.blocks.starts, model.num_stages}
        if starts:
            return sorted(starts)
    return []


def join_blocks(
    strengthen: Callable[[Blocks], BoundedBlocks],
    full: BoundedBlocks,
    at_least: float,
    *,
    wanted: Collection[int] = (),
    has_time: Callable[[], bool],
) -> BoundedBlocks:
    """Joins blocks while the linear bound stays high enough, beginning where the cut between two matters least.

    HiGHS searches the tree of a program with few blocks many times as fast. That is worth more than the small loss of
    the linear bound.

    Args:
        at_least: the linear bound to keep.
        wanted: starts that stay.
    """
    best, kept = full, set(wanted)
    number = max(1, len(full.blocks.starts) // SETTINGS.join_one_in)
    while has_time():
        left = sorted(
            (start for start in best.worth_of_start if start not in kept), key=best.worth_of_start.__getitem__
        )
        if not left:
            break
        wanted_rows = (row for row in best.blocks.rows if row[0] in wanted)
        few = strengthen(replace(best.blocks, rows=_select_useful_rows(best, wanted_rows)).without(left[:number]))
        if few.bound >= at_least:
            best, number = few, 2 * number
        elif number == 1:
            kept.add(left[0])
        number = max(1, number // 2) if few is not best else number
    return best


def _select_useful_rows(bounded: BoundedBlocks, wanted: Iterable[Event]) -> frozenset[Event]:
    """Returns the event memory rows on which the bound depends, and those in `wanted`."""
    useful = {row for row, worth in bounded.worth_of_row.items() if worth > _LEAST_WORTH}
    return bounded.blocks.rows & useful.union(wanted)


def _find_starts_short_of_memory(bounded: BoundedBlocks, budget_bytes: int, everywhere: bool) -> list[int]:
    """Returns a start to add: after the stage inside a block on which the bound depends most.

    If there is no such stage, or with `everywhere`, it also returns starts where the memory that the fractional
    solution represents is above the budget.
    """
    memory_bytes = bounded.memory_bytes
    starts = [] if bounded.tightest_stage is None else [bounded.tightest_stage + 1]
    max_places = SETTINGS.max_places if everywhere else 1
    if memory_bytes is None:
        return starts
    for stage in np.argsort(-memory_bytes, kind="stable").tolist():
        if len(starts) == max_places or memory_bytes[stage] <= SETTINGS.over_budget_ratio * budget_bytes:
            break
        start = stage + 1
        apart = all(abs(start - other) > SETTINGS.apart_stages for other in starts)
        if apart and start < len(memory_bytes) and start not in bounded.blocks.starts:
            starts.append(start)
    return starts


class Overshoots:
    """Where the schedules of solutions have exceeded the budget so far."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}  # of each node inside a block
        self._hot: set[int] = set()  # nodes in blocks of one stage

    def cut(self, blocks: Blocks, schedule: Schedule, memory_bytes: np.ndarray, budget_bytes: int) -> Blocks:
        """Cuts a block, or adds rows, at the worst overshoot of a schedule for which there is anything to add.

        Cutting at several at once would make programs grow so fast that soon none is solved to its end.
        """
        stages = stages_of(schedule)
        num_stages = int(stages[-1]) + 1
        starts, rows = set(blocks.starts), set(blocks.rows)
        before = len(starts) + len(rows)
        for position in np.argsort(-memory_bytes, kind="stable").tolist():
            if len(starts) + len(rows) > before or memory_bytes[position] <= budget_bytes:
                break
            stage, node = int(stages[position]), schedule.order[position]
            if node == stage:
                starts |= {stage + 1}
            elif blocks.is_single(stage, num_stages):
                rows.add((stage, node))
                self._hot.add(node)
            else:
                again = self._times.get(node, 0)
                self._times[node] = again + 1
                first = max(stage + 1 - 2**again, node + 1)
                starts |= set(range(first, stage + 2))
            starts.discard(num_stages)
        refined = Blocks(tuple(sorted(starts)), inner=blocks.inner)
        rows |= {(stage, node) for stage in starts for node in self._hot
                 if node < stage and refined.is_single(stage, num_stages)}  # fmt: skip
        rows = {row for row in rows if refined.is_single(row[0], num_stages)}
        return replace(refined, rows=frozenset(rows), cuts=blocks.cuts)
