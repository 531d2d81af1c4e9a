"""Chooses where MOCCASIN's model may place computations: domains, limits C_v, and reductions that are proved safe.

Stages are Checkmate's, as in MOCCASIN's section 2.3. Stage t ends with the first computation of node t, and node j can
be computed again only in its own event of a stage. The docstring of each reduction says why no better schedule is lost.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.moccasin.model import Candidates, Fetches


@dataclass(frozen=True)
class Limits:
    """How often each node may be computed, int [num_nodes]: C_v, including the first computation.

    `enough[v]` means that no schedule that costs less than the incumbent computes v more often than that.
    """

    computations: tuple[int, ...]
    enough: tuple[bool, ...]


@dataclass(frozen=True)
class Window:
    """The stages from `first` to `last` (inclusive) in which a node may be computed again; empty if first > last."""

    first: int
    last: int

    @property
    def stages(self) -> range:
        return range(self.first, self.last + 1)


def event_time(stage: int, node: int) -> int:
    """Returns the event of a node in a stage (section 2.3, (11), counted from 0)."""
    return stage * (stage + 1) // 2 + node


def repeat_limits(
    graph: Graph,
    max_computations: int,
    per_node: Sequence[tuple[int, int]] = (),
    *,
    extra_units: int | None = None,
    costs: Sequence[int] = (),
    windows: Sequence[Window] | None = None,
) -> Limits:
    """Returns C_v of each node: `max_computations` unless `per_node` (node, C_v) differs, reduced to the useful number.

    A schedule that costs less than baseline + `extra_units` recomputes a node of cost w at most (extra_units - 1) / w
    times, at most once in each stage of its window if it is in stages, and never more often than the node is read.
    """
    wanted = dict(per_node)
    outputs = set(graph.outputs)
    useful = [1] * len(graph.nodes)
    limits = [1] * len(graph.nodes)
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if not node.recomputable:
            continue
        reads = sum(useful[user] for user in graph.successors[index]) + any(value in outputs for value in node.outputs)
        useful[index] = 1 + reads  # The first computation must happen, even if nothing reads it.
        if windows is not None:
            useful[index] = min(useful[index], 1 + len(windows[index].stages))
        if extra_units is not None and costs[index] > 0:
            useful[index] = min(useful[index], 1 + max(extra_units - 1, 0) // costs[index])
        limits[index] = min(useful[index], max(1, wanted.get(index, max_computations)))
    return Limits(tuple(limits), tuple(limit >= most for limit, most in zip(limits, useful, strict=True)))


def repeat_windows(
    graph: Graph, budget_bytes: int, repeatable: Sequence[bool], *, tail: bool = False
) -> tuple[Window, ...]:
    """Returns the stages in which computing a node again can help.

    - They end with the last stage in which a user can run, because nothing reads the node later.
    - They begin after the first stage in which all values that may still be needed exceed the budget. Up to it, a
      schedule can retain whatever it would recompute.
    - There are none if no such stage lies between the first computation and the last use.

    A node without stages never runs again, which shortens the last uses of its inputs. The reduction is therefore
    repeated until nothing changes. With `tail`, there is one more stage after the last first computation, in which
    graph outputs may be recomputed.
    """
    may_repeat = list(repeatable)
    while True:
        last = _last_stages(graph, may_repeat, tail)
        hot = _hot_stages(graph, budget_bytes, may_repeat, last)
        first_hot = int(hot.argmax()) if hot.any() else len(hot)
        before = np.concatenate(([0], np.cumsum(hot)))
        windows = []
        for node, limit in enumerate(last):
            useful = may_repeat[node] and before[min(limit, len(hot) - 1) + 1] > before[node]
            windows.append(Window(max(node, first_hot) + 1, limit if useful else -1))
        repeats = [bool(window.stages) for window in windows]
        if repeats == may_repeat:
            return tuple(windows)
        may_repeat = repeats


def fetch_windows(
    graph: Graph, budget_bytes: int, windows: Sequence[Window], *, presolve: bool = True
) -> tuple[Window, ...]:
    """Returns the stages in which fetching each value can help, [num_values]. `windows` are those of `repeat_windows`.

    As there, a schedule can retain whatever it would fetch up to the first stage in which all values that may still be
    needed exceed the budget, and a value whose copies are not needed in any such stage. It then waits no longer.
    """
    may_repeat = [bool(window.stages) for window in windows]
    last = _last_stages(graph, may_repeat, tail=False)
    hot = _hot_stages(graph, budget_bytes, may_repeat, last) if presolve else np.ones(len(windows), dtype=np.bool_)
    first_hot = int(hot.argmax()) if hot.any() else len(hot)
    before = np.concatenate(([0], np.cumsum(hot)))
    found = []
    for value, producer in zip(graph.values, graph.producer, strict=True):
        helps = value.fetch_cost is not None and value.size_bytes and before[last[producer] + 1] > before[producer]
        found.append(Window(max(producer, first_hot if presolve else 0) + 1, last[producer] if helps else -1))
    return tuple(found)


def fetch_candidates(
    graph: Graph, candidates: Candidates, windows: Sequence[Window], *, max_fetches: int, relax: bool = False
) -> tuple[Fetches, ...]:
    """Lets each value be fetched at every event of its window, as often as it is read there, but not beyond the limit.

    With `relax`, the last fetch of a value that may be read more often stands for all further ones.
    """
    events = list_events(candidates)
    made = []
    for value, window in enumerate(windows):
        if not window.stages:
            continue
        first, last = event_time(window.first, 0), event_time(window.last, window.last)
        times = tuple(events[bisect.bisect_left(events, first) : bisect.bisect_right(events, last)])
        readings = (reading for user in graph.users[value] for reading in candidates.times[user])
        reads = sum(reading[-1] >= first for reading in readings)
        reads += value in graph.outputs
        number = min(reads, max_fetches)
        more = reads > number or any(user in candidates.unlimited for user in graph.users[value])
        if times and number:
            made.append(Fetches(value, (times,) * number, 0, times[-1], unlimited=relax and more))
    return tuple(made)


def neighbourhood_fetches(
    graph: Graph,
    candidates: Candidates,
    windows: Sequence[Window],
    freed: Sequence[int],
    fetched: Mapping[int, tuple[Sequence[int], int]],
    *,
    max_fetches: int,
) -> tuple[Fetches, ...]:
    """Lets values of freed nodes be fetched, and all others where they are fetched now.

    Args:
        fetched: the events at which a schedule fetches each value, and the last one up to which its first copy is held.
    """
    producer = graph.producer
    freed_windows = [window if producer[value] in freed else Window(0, -1) for value, window in enumerate(windows)]
    anew = fetch_candidates(graph, candidates, freed_windows, max_fetches=max_fetches)
    events = list_events(candidates)
    held = []
    for value in fetched.keys() - {choice.value for choice in anew}:
        times, hold = fetched[value]
        there = tuple((events[bisect.bisect_left(events, time)],) for time in times)
        held.append(Fetches(value, there, len(there), events[bisect.bisect_right(events, hold) - 1]))
    return tuple(sorted([*anew, *held], key=lambda choice: choice.value))


def list_events(candidates: Candidates) -> list[int]:
    """Lists the events at which anything may be computed, in ascending order."""
    return sorted({time for node in candidates.times for times in node for time in times})


def all_windows(repeatable: Sequence[bool]) -> tuple[Window, ...]:
    """Returns every stage after a node's own, as in section 2.3."""
    last = len(repeatable) - 1
    return tuple(Window(node + 1, last if may_repeat else -1) for node, may_repeat in enumerate(repeatable))


def _last_stages(graph: Graph, may_repeat: Sequence[bool], tail: bool) -> list[int]:
    """Returns the last stage in which anything can read a value of each node, [num_nodes]; its own if nothing does."""
    last = list(range(len(graph.nodes)))
    for node in range(len(graph.nodes) - 1, -1, -1):
        for user in graph.successors[node]:
            last[node] = max(last[node], last[user] if may_repeat[user] else user)
        if any(value in graph.outputs for value in graph.nodes[node].outputs):
            last[node] = len(graph.nodes) - (0 if tail else 1)
    return last


def _hot_stages(graph: Graph, budget_bytes: int, may_repeat: Sequence[bool], last: Sequence[int]) -> np.ndarray:
    """Returns whether all values that may still be needed in a stage exceed the budget together, bool [num_nodes]."""
    num_nodes = len(graph.nodes)
    held = np.zeros(num_nodes + 2, dtype=np.int64)
    own = np.zeros(num_nodes, dtype=np.int64)
    for index, node in enumerate(graph.nodes):
        size = sum(graph.values[value].size_bytes for value in node.outputs)
        own[index] = size + node.workspace_bytes
        held[index + 1] += size
        held[last[index] + 1] -= size
    again = max((int(own[node]) for node in range(num_nodes) if may_repeat[node]), default=0)
    most = graph.resident_bytes + np.cumsum(held[:-2]) + np.maximum(own, again)
    return most > budget_bytes


def stage_candidates(graph: Graph, limits: Limits, windows: Sequence[Window], *, relax: bool = False) -> Candidates:
    """Section 2.3: fixes first computations, and allows others in the node's own event of each stage of its window."""
    times, unlimited = [], set()
    for node, window in enumerate(windows):
        again = tuple(event_time(stage, node) for stage in window.stages)
        repeats = min(limits.computations[node] - 1, len(again))
        if relax and again and not limits.enough[node]:
            repeats = max(repeats, 1)
            unlimited.add(node)
        times.append(((event_time(node, node),), *([again] * repeats)))
    return Candidates(tuple(times), (1,) * len(times), unlimited=frozenset(unlimited))


def bound_candidates(graph: Graph, limits: Limits, windows: Sequence[Window]) -> Candidates:
    """Relaxes every schedule in fixed order, with any order within a stage and any number of recomputations.

    Memory counts at first computations only. A node whose limit is not enough has a last computation that stands for
    all further ones. Every schedule in fixed order maps to a solution of at most its cost: recomputations of a node in
    one stage map to one there, and all beyond the limit map to the unlimited one.
    """
    times, unlimited = [], set()
    for node, window in enumerate(windows):
        again = tuple(2 * stage for stage in window.stages)
        repeats = min(limits.computations[node] - 1, len(again))
        if again and not limits.enough[node]:
            repeats = max(repeats, 1)
            unlimited.add(node)
        times.append(((2 * node + 1,), *([again] * repeats)))
    return Candidates(tuple(times), (1,) * len(times), unlimited=frozenset(unlimited), stages_only=True)


def sequence_candidates(graph: Graph, limits: Limits, *, presolve: bool = True) -> Candidates:
    """Section 2.1: domain (9), the positions of a sequence of sum C_v computations.

    With `presolve`, a node follows its ancestors, its first computation precedes its descendants, and no position
    before a taken one is free.
    """
    num_nodes = len(graph.nodes)
    length = sum(limits.computations)
    if not presolve:
        every = tuple(range(length))
        domains = tuple((every,) * count for count in limits.computations)
        return Candidates(domains, (1,) * num_nodes, distinct=True, packed=False)
    ancestors: list[set[int]] = []
    for node in range(num_nodes):
        reads = graph.predecessors[node]
        ancestors.append(set(reads).union(*(ancestors[before] for before in reads)))
    descendants = [0] * num_nodes
    for above in ancestors:
        for node in above:
            descendants[node] += 1
    times = []
    for node in range(num_nodes):
        first = tuple(range(len(ancestors[node]), length - descendants[node]))
        again = tuple(range(len(ancestors[node]) + 1, length))
        times.append((first, *([again] * (limits.computations[node] - 1))))
    return Candidates(tuple(times), (1,) * num_nodes, distinct=True)


def neighbourhood_candidates(
    graph: Graph,
    repeats: Sequence[Sequence[int]],
    freed: Sequence[int],
    limits: Limits,
    windows: Sequence[Window],
) -> Candidates:
    """Makes a neighbourhood of a schedule in stages: freed nodes may move, all others are recomputed where they are.

    Freed nodes may be recomputed where they are now and in the stages in which a user runs or may run. A neighbourhood
    may lose schedules, such as those that recompute a value stages ahead of its use.

    Args:
        repeats: the stages in which each node is recomputed now, in ascending order, [num_nodes].
    """
    free = set(freed)
    stages: dict[int, list[int]] = {}
    for node in sorted(free, reverse=True):
        choice = set(repeats[node])
        for user in graph.successors[node]:
            choice.add(user)
            choice.update(stages.get(user, repeats[user]))
        window = windows[node]
        stages[node] = sorted(stage for stage in choice if window.first <= stage <= window.last)
    times, required = [], []
    for node in range(len(graph.nodes)):
        first = (event_time(node, node),)
        if node in free:
            again = tuple(event_time(stage, node) for stage in stages[node])
            count = min(max(limits.computations[node] - 1, len(repeats[node])), len(again))
            times.append((first, *([again] * count)))
            required.append(1)
        else:
            times.append((first, *((event_time(stage, node),) for stage in repeats[node])))
            required.append(1 + len(repeats[node]))
    return Candidates(tuple(times), tuple(required))
