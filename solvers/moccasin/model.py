"""MOCCASIN's retention-interval formulation (section 2, equations (1)-(8)) as a CP-SAT model.

One model serves the paper's formulation in either order, its neighbourhoods, and the relaxation that proves bounds.
`Candidates` lists the events at which each computation of each node may happen, and the rest follows from them.

A computation of a node has one start s, and each of the node's values is retained from it to an end of its own.
Intervals therefore belong to values, and activity to computations. A graph output is read once more after the last
event. Only the order of events matters, so the model's time is the rank of an event among those that can happen.

A value may also be fetched from host memory (`Fetches`). A fetch begins one more retention interval of the value, so it
takes the place of a computation wherever one copy of a value is meant. With fetches, the cost is the time at which the
step ends (lanes.py).
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.offloading.transfers import drop_unread_fetches

Term = cp_model.IntVar | int
OUTPUT_NODE = -1  # represents the end of the training step, which reads the graph's outputs


@dataclass(frozen=True)
class Fetches:
    """The fetches that a model may make of one value.

    Args:
        times: [fetches], the events at which each may happen, in ascending order, after the value's first computation.
        required: how many of them, from the first, must happen.
        hold: the last event up to which the first copy may be held, so that copying it out need not end sooner.
        unlimited: the last fetch stands for any number of them. The lane back is charged for one, and memory only where
            a first computation reads the copy.
    """

    value: int
    times: tuple[tuple[int, ...], ...]
    required: int
    hold: int
    unlimited: bool = False


@dataclass(frozen=True)
class Candidates:
    """The choices of a model.

    Args:
        times: [num_nodes][computations], the events at which each computation of a node may happen, in ascending order.
        required: [num_nodes], how many of them, from the first, must happen.
        unlimited: nodes whose last computation stands for any number of them. It is charged once, and takes memory only
            where a first computation reads its values. That relaxes the limit C_v.
        stages_only: recomputations of a stage share one event (2 t, followed by 2 t + 1 for node t), and memory counts
            at first computations only. That relaxes the order within a stage.
        distinct: starts are variable and all different, equation (6); events are the positions of a sequence.
        packed: of these, the first ones are taken, so that a sequence is one solution.
        fetches: the values that may be fetched. First computations then have one event each, in the input order.
    """

    times: tuple[tuple[tuple[int, ...], ...], ...]
    required: tuple[int, ...]
    unlimited: frozenset[int] = frozenset()
    stages_only: bool = False
    distinct: bool = False
    packed: bool = True
    fetches: tuple[Fetches, ...] = ()


@dataclass
class Computation:
    """One computation of a node, or one fetch of a value that the node yields, in ranks of events."""

    node: int
    low: int
    high: int
    start: Term
    present: cp_model.IntVar | None  # None if it must happen
    delayed: bool = False  # whether memory counts only from the next event on
    unlimited: bool = False
    is_fetch: bool = False
    ends: dict[int, Term] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        return self.present is None and self.low == self.high


@dataclass(frozen=True)
class Cover:
    """A copy that a use may read. `literal` is true if it reads `copy`, of the value's computations, then fetches."""

    copy: int
    literal: cp_model.IntVar


@dataclass(frozen=True)
class Use:
    """A computation that reads a value, and the copies that it may read. A single certain copy has no literal."""

    value: int
    reader: Computation
    covers: tuple[Cover, ...]
    certain: int | None


@dataclass(frozen=True)
class IntervalModel:
    """A built model, with the variables needed to read a solution and to give a hint.

    Args:
        fetches: of each value that may be fetched.
        end: the time at which the step ends, in units of the scaled cost; None if no value may be fetched.
    """

    graph: Graph
    model: cp_model.CpModel
    events: tuple[int, ...]
    computations: tuple[tuple[Computation, ...], ...]
    uses: tuple[Use, ...]
    costs: tuple[int, ...]
    capacity: Term
    fetches: Mapping[int, tuple[Computation, ...]] = field(default_factory=dict)
    end: cp_model.IntVar | None = None

    def copies(self, value: int) -> tuple[Computation, ...]:
        """Returns the copies of a value: the computations of its producer, then its fetches."""
        return (*self.computations[self.graph.producer[value]], *self.fetches.get(value, ()))

    def schedule(self, value_of: Callable[[cp_model.IntVar], int]) -> Schedule:
        """Returns the schedule of a solution. `value_of` returns a variable's value.

        A fetch at an event without a computation happens at the next position. Copies that nothing reads before the
        next one, which stand for others only with `unlimited`, are left out.
        """
        every = (c for computations in self.computations for c in computations if _happens(c, value_of))
        computed = sorted((_value(computation.start, value_of), computation.node) for computation in every)
        ranks, order = [rank for rank, _ in computed], tuple(node for _, node in computed)
        fetches = [
            (bisect.bisect_left(ranks, _value(fetch.start, value_of)), value)
            for value, copies in self.fetches.items()
            for fetch in copies
            if _happens(fetch, value_of)
        ]
        offloads = []
        read = drop_unread_fetches(self.graph, Schedule(order, tuple(sorted(fetches))))
        for value in sorted({value for _, value in read.fetches}):
            copies = self.copies(value)
            first, *later = sorted(
                bisect.bisect_left(ranks, _value(c.start, value_of)) for c in copies if _happens(c, value_of)
            )
            held = bisect.bisect_right(ranks, _value(copies[0].ends[value], value_of)) - 1
            if min(held, later[0] - 1) > first:
                offloads.append((min(held, later[0] - 1), value))
        return Schedule(order, read.fetches, tuple(sorted(offloads)))

    def extra(self) -> cp_model.LinearExprT:
        """Returns the cost beyond that of computing every node once, in units of the scaled cost."""
        if self.end is not None:
            return self.end - sum(self.costs)
        again = [c for computations in self.computations for c in computations[1:]]
        certain = sum(self.costs[c.node] for c in again if c.present is None)
        optional = [self.costs[c.node] * c.present for c in again if c.present is not None]
        return cp_model.LinearExpr.sum(optional) + certain

    def size(self) -> dict[str, int]:
        """Counts Boolean variables, integer variables and constraints, as Table 1 of the paper does."""
        proto = self.model.proto
        domains = [list(variable.domain) for variable in proto.variables]
        booleans = sum(domain == [0, 1] for domain in domains)
        integers = sum(domain[0] != domain[-1] for domain in domains) - booleans
        return {"booleans": booleans, "integers": integers, "constraints": len(proto.constraints)}

    def hint(self, times: Sequence[Sequence[int]], fetched: Mapping[int, Sequence[int]] | None = None) -> None:
        """Hints at the schedule that computes each node at the given events, in ascending order, [num_nodes].

        `fetched` lists the events at which it fetches values, in ascending order, by value.
        """
        starts: dict[int, int] = {}
        for computations, events in zip(self.computations, times, strict=True):
            starts |= self._hint_starts(computations, events)
        for value, copies in self.fetches.items():
            starts |= self._hint_starts(copies, (fetched or {}).get(value, ()))
        ends: dict[tuple[int, int], int] = {}
        for use in self.uses:
            reader = starts.get(id(use.reader), len(self.events) if use.reader.node == OUTPUT_NODE else None)
            copies = self.copies(use.value)
            read = -1 if reader is None else _latest(copies, starts, reader)
            if read >= 0 and reader is not None:
                ends[use.value, read] = max(ends.get((use.value, read), 0), reader)
            for cover in use.covers:
                self.model.add_hint(cover.literal, cover.copy == read)
        for value in range(len(self.graph.values)):
            for index, copy in enumerate(self.copies(value)):
                start = starts.get(id(copy), copy.low)
                end = copy.ends[value]
                if not isinstance(end, int):
                    self.model.add_hint(end, max(start, ends.get((value, index), start)))

    def _hint_starts(self, copies: Sequence[Computation], events: Sequence[int]) -> dict[int, int]:
        rank = {time: index for index, time in enumerate(self.events)}
        starts: dict[int, int] = {}
        for index, copy in enumerate(copies):
            happens = index < len(events) and events[index] in rank
            start = rank[events[index]] if happens else copy.low
            if happens:
                starts[id(copy)] = start
            if copy.present is not None:
                self.model.add_hint(copy.present, happens)
            if not isinstance(copy.start, int):
                self.model.add_hint(copy.start, start)
        return starts


def _latest(copies: Sequence[Computation], starts: dict[int, int], reader: int) -> int:
    """Returns the copy that a reader at that event reads: the last one started before it; -1 without one."""
    latest, latest_start = -1, -1
    for index, copy in enumerate(copies):
        start = starts.get(id(copy))
        shared = copy.delayed or copy.is_fetch
        if start is not None and latest_start < start < reader + (1 if shared else 0):
            latest, latest_start = index, start
    return latest


def _happens(copy: Computation, value_of: Callable[[cp_model.IntVar], int]) -> bool:
    return copy.present is None or bool(value_of(copy.present))


def _value(term: Term, value_of: Callable[[cp_model.IntVar], int]) -> int:
    return term if isinstance(term, int) else value_of(term)
