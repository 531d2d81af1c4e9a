"""Brings a schedule within a budget by offloading values between their readers, with copies beside nodes if possible.

The method is greedy. While a position is above the budget, one gap between two readers becomes a fetch: the gap that
removes most of the excess for each unit of copying. Then each fetch begins as early as its copying needs and memory
allows, and each copy out may take as long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import Simulation, simulate

_ROOMS = (0, 1, 2, 4)  # in units of the largest value


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of positions, `last` + 1 to `reader` - 1, in which nothing reads a copy that is held."""

    value: int
    last: int
    reader: int


def offload_to_fit(graph: Graph, schedule: Schedule, budget_bytes: int) -> Schedule | None:
    """Returns a schedule of the same positions within the budget, with values offloaded; None if none is found.

    More is offloaded than necessary if that makes room for copies that begin early or end late.

    Args:
        schedule: a schedule without fetches.
    """
    room_bytes = int(graph.sizes_bytes.max())
    found: dict[int, Schedule] = {}
    for number in _ROOMS:
        fetched = _offload(graph, schedule, budget_bytes, number * room_bytes)
        if fetched is None:
            continue
        hidden, simulation = hide_and_simulate(graph, fetched, budget_bytes)
        if simulation.peak_bytes <= budget_bytes:
            found.setdefault(simulation.cost, hidden)
    return found[min(found)] if found else None


def _offload(graph: Graph, schedule: Schedule, budget_bytes: int, room_bytes: int) -> Schedule | None:
    """Offloads until the peak is within the budget and, as far as there are gaps, below it by the wanted room."""
    gaps = _list_gaps(graph, schedule)
    memory = simulate(graph, schedule).memory_bytes
    size = np.array([graph.values[gap.value].size_bytes for gap in gaps], dtype=np.int64)
    price = np.array([_price(graph, gap.value) for gap in gaps], dtype=np.float64)
    chosen: list[Gap] = []
    left = np.ones(len(gaps), dtype=np.bool_)
    while memory.max() > budget_bytes - room_bytes:
        worst = int(memory.argmax())
        spans = [i for i in np.flatnonzero(left).tolist() if gaps[i].last < worst < gaps[i].reader]
        if not spans:
            if memory[worst] > budget_bytes:
                return None
            break
        above = np.concatenate(([0], np.cumsum(memory > budget_bytes - room_bytes)))
        relief = [(above[gaps[i].reader] - above[gaps[i].last + 1]) * size[i] / price[i] for i in spans]
        best = spans[int(np.argmax(relief))]
        left[best] = False
        chosen.append(gaps[best])
        memory[gaps[best].last + 1 : gaps[best].reader] -= size[best]
    return Schedule(schedule.order, tuple(sorted((gap.reader, gap.value) for gap in chosen)))


def drop_unread_fetches(graph: Graph, schedule: Schedule) -> Schedule:
    """Returns the schedule without fetches of copies that nothing reads before the next one, and without offloads."""
    at: dict[int, set[int]] = {}
    for position, value in schedule.fetches:
        at.setdefault(position, set()).add(value)
    wanted = set(graph.outputs)
    read = []
    for position in range(len(schedule) - 1, -1, -1):
        node = graph.nodes[schedule.order[position]]
        wanted.difference_update(node.outputs)
        wanted.update(node.inputs)
        for value in at.get(position, set()) & wanted:
            read.append((position, value))
            wanted.discard(value)
    return Schedule(schedule.order, tuple(sorted(read)))


def hide_transfers(graph: Graph, schedule: Schedule, budget_bytes: int) -> Schedule:
    """Returns the schedule within the budget with earlier fetches, and with values held until their copies out end.

    Returns a schedule above the budget itself.
    """
    return hide_and_simulate(graph, schedule, budget_bytes)[0]


def hide_and_simulate(graph: Graph, schedule: Schedule, budget_bytes: int) -> tuple[Schedule, Simulation]:
    """Returns the schedule of `hide_transfers` and its simulation."""
    simulation = simulate(graph, schedule)
    if simulation.peak_bytes > budget_bytes or not schedule.fetches:
        return schedule, simulation
    options = [(schedule, simulation)]
    for change in (_hold_until_out, _fetch_early):
        schedule, simulation = options[-1]
        changed = change(graph, schedule, simulation.memory_bytes, budget_bytes)
        simulation = simulate(graph, changed)
        if simulation.peak_bytes <= budget_bytes:
            options.append((changed, simulation))
    return min(reversed(options), key=lambda option: option[1].cost)


def _hold_until_out(graph: Graph, schedule: Schedule, memory_bytes: np.ndarray, budget_bytes: int) -> Schedule:
    """Holds first copies until their copies out would end if nothing waited for them, or as long as memory allows."""
    memory = memory_bytes.copy()
    end = np.cumsum(graph.costs[list(schedule.order)])
    intervals = find_retention(graph, schedule)
    copies = _list_copies(schedule, intervals.value, intervals.start, intervals.end)
    offloads, lane = [], 0
    for value, (start, last, following) in sorted(copies.items(), key=lambda item: item[1][0]):
        lane = max(lane, int(end[start])) + int(graph.values[value].offload_cost or 0)
        until = min(int(np.searchsorted(end, lane)), following - 1)
        size = graph.values[value].size_bytes
        while until > last and memory[last + 1 : until + 1].max() + size > budget_bytes:
            until -= 1
        if until > last:
            memory[last + 1 : until + 1] += size
            offloads.append((until, value))
    return replace(schedule, offloads=tuple(sorted(offloads)))


def _fetch_early(graph: Graph, schedule: Schedule, memory_bytes: np.ndarray, budget_bytes: int) -> Schedule:
    """Begins fetches as late as possible so that no reader waits, or as early as memory allows.

    Times are those of nodes that never wait, because waiting ends where a fetch begins early enough.
    """
    memory = memory_bytes.copy()
    costs = graph.costs[list(schedule.order)]
    begin = np.cumsum(costs) - costs
    intervals = find_retention(graph, schedule)
    before = {
        (value, start): int(intervals.end[copy - 1])
        for copy, (value, start) in enumerate(zip(intervals.value.tolist(), intervals.start.tolist(), strict=True))
    }
    fetches, lane = [], int(begin[-1])
    for position, value in sorted(schedule.fetches, reverse=True):
        lane = min(lane, int(begin[position])) - int(graph.values[value].fetch_cost or 0)
        wanted = int(np.searchsorted(begin, max(lane, 0), side="right")) - 1
        first = position
        size = graph.values[value].size_bytes
        while first - 1 > max(before[value, position], wanted - 1) and memory[first - 1] + size <= budget_bytes:
            first -= 1
        memory[first:position] += size
        fetches.append((first, value))
    return replace(schedule, fetches=tuple(sorted(fetches)))


def _list_copies(
    schedule: Schedule, value: np.ndarray, start: np.ndarray, end: np.ndarray
) -> dict[int, tuple[int, int, int]]:
    """Lists, for each fetched value, the start and the end of its first copy, and the start of the next."""
    offloaded = {one for _, one in schedule.fetches}
    found: dict[int, tuple[int, int, int]] = {}
    rows: Iterable[tuple[int, int, int]] = zip(value.tolist(), start.tolist(), end.tolist(), strict=True)
    for (one, begins, ends), (_, following, _) in pairwise(rows):
        if one in offloaded and one not in found:
            found[one] = begins, ends, following
    return found


def _list_gaps(graph: Graph, schedule: Schedule) -> list[Gap]:
    newest: dict[int, int] = {}
    gaps = []
    for position, number in enumerate(schedule.order):
        node = graph.nodes[number]
        for value in node.inputs:
            if (
                position - newest[value] > 1
                and graph.values[value].fetch_cost is not None
                and graph.values[value].size_bytes
            ):
                gaps.append(Gap(value, newest[value], position))
            newest[value] = position
        newest.update(dict.fromkeys(node.outputs, position))
    return gaps


def _price(graph: Graph, value: int) -> int:
    one = graph.values[value]
    return 1 + int(one.fetch_cost or 0) + int(one.offload_cost or 0)
