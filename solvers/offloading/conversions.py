"""Makes a schedule cheaper: recomputed copies are fetched or retained instead, and fetched ones recomputed.

A fetch in place of a recomputation reads no inputs, so memory does not rise, and recomputations that served only this
one are left out. This is a local search. It sorts the copies by the cost of computing them over that of copying them,
changes the first, then twice as many at once after each success, and keeps a change if the simulated schedule is
cheaper and within the budget.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.offloading.transfers import hide_and_simulate

_Way = Literal["fetch", "retain", "compute"]


@dataclass(frozen=True, slots=True)
class _Event:
    """A place where copies of `values` begin: `node` is computed, or they are fetched.

    If earlier copies are retained instead, nothing happens there.
    """

    node: int
    values: tuple[int, ...]
    way: _Way
    is_first: bool = False


def convert_copies(graph: Graph, schedule: Schedule, budget_bytes: int, *, deadline_s: float) -> Schedule:
    """Returns a schedule within the budget that costs no more and provides copies in cheaper ways.

    Args:
        schedule: one within the budget.
        deadline_s: time of `time.perf_counter()` at which the search ends.
    """
    conversion = _Conversion(graph, schedule, budget_bytes, deadline_s)
    ways: tuple[_Way, ...] = get_args(_Way)
    while any(map(conversion.try_all, ways)):
        pass
    return conversion.best


class _Conversion:
    """The state of one search: the events of the best schedule so far, `best`, whose transfers are hidden."""

    def __init__(self, graph: Graph, schedule: Schedule, budget_bytes: int, deadline_s: float) -> None:
        self._graph = graph
        self._budget_bytes = budget_bytes
        self._deadline_s = deadline_s
        self._events = _list_events(graph, schedule)
        self.best = schedule
        self._cost = simulate(graph, schedule).cost

    def try_all(self, way: _Way) -> int:
        """Makes each event happen in a way if that is cheaper; returns the number of changed events."""
        left = self._rank(way)
        size, num_changed = 1, 0
        while left and time.perf_counter() < self._deadline_s:
            group, rest = left[:size], left[size:]
            if self._change(group, way):
                num_changed += len(group)
                left, size = rest, 2 * size
            elif len(group) > 1:
                size = max(1, size // 4)
            else:
                left = rest
        return num_changed

    def _rank(self, way: _Way) -> list[int]:
        """Lists the events that may happen in a way, sorted by the cost of computing over that of copying."""
        graph = self._graph

        def may(event: _Event) -> bool:
            if event.is_first or event.way in (way, "retain"):
                return False
            if way == "fetch":
                return all(graph.values[value].fetch_cost is not None for value in event.values)
            return way == "retain" or graph.nodes[event.node].recomputable

        def cost_ratio(number: int) -> float:
            node = graph.nodes[self._events[number].node]
            return node.cost / (1 + sum(graph.values[value].fetch_cost or 0 for value in node.outputs))

        found = [number for number, event in enumerate(self._events) if may(event)]
        return sorted(found, key=cost_ratio, reverse=way != "compute")

    def _change(self, group: Sequence[int], way: _Way) -> bool:
        events = list(self._events)
        for number in group:
            node = events[number].node
            values = self._graph.nodes[node].outputs if way == "compute" else events[number].values
            events[number] = _Event(node, values, way)
        schedule, simulation = hide_and_simulate(self._graph, _make_schedule(self._graph, events), self._budget_bytes)
        if simulation.peak_bytes > self._budget_bytes or simulation.cost >= self._cost:
            return False
        self._events, self.best, self._cost = events, schedule, simulation.cost
        return True


def _list_events(graph: Graph, schedule: Schedule) -> list[_Event]:
    """Lists the events of a schedule in order; the fetches of a position come before its computation."""
    at: dict[int, list[int]] = {}
    for position, value in schedule.fetches:
        at.setdefault(position, []).append(value)
    events = []
    seen: set[int] = set()
    for position, number in enumerate(schedule.order):
        events += [_Event(graph.producer[value], (value,), "fetch") for value in at.get(position, ())]
        events.append(_Event(number, graph.nodes[number].outputs, "compute", number not in seen))
        seen.add(number)
    return events


def _make_schedule(graph: Graph, events: Sequence[_Event]) -> Schedule:
    """Makes the schedule of some events without recomputations and fetches that nothing reads.

    Values come back for their first readers, and are held up to their last ones.
    """
    order: list[int] = []  # from the last position to the first, as all numbers of positions here
    fetches: list[tuple[int, int]] = []
    reader = dict.fromkeys(graph.outputs, 0)
    for event in reversed(events):
        if event.way == "retain":
            continue
        if event.way == "fetch":
            fetches += [(reader.pop(value), value) for value in event.values if value in reader]
        elif event.is_first or not reader.keys().isdisjoint(event.values):
            for value in event.values:
                reader.pop(value, None)
            reader |= dict.fromkeys(graph.nodes[event.node].inputs, len(order))
            order.append(event.node)
    last = len(order) - 1
    return Schedule(tuple(order[::-1]), tuple(sorted((last - position, value) for position, value in fetches)))
