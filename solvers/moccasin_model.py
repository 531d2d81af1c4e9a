"""MOCCASIN's retention-interval formulation (section 2, equations (1)-(8)) as a CP-SAT model.

One model serves the paper's formulation in either order mode, its neighbourhoods and the relaxation that proves bounds:
`Candidates` says at which events each computation of each node may happen, and everything else follows.

A computation of a node is one start s; each of the node's values is retained from it to an end of its own, so
intervals are per value, activity is per computation. A graph output is read once more after the last event. Only the
order of events matters, so the model's time is the rank of an event among those that can happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from ortools.sat.python import cp_model

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.moccasin_scaling import Scaled

Precedence = Literal["cover", "reservoir"]
Term = cp_model.IntVar | int
OUTPUT_NODE = -1


@dataclass(frozen=True)
class Candidates:
    """What a model may decide.

    Args:
        times: [num_nodes][computations], the ascending events at which each computation of a node may happen.
        required: [num_nodes], how many of them, from the first, must happen.
        unlimited: nodes whose last computation stands for any number of them: it is charged once and takes memory
            only where a first computation reads its values. That relaxes the limit C_v away.
        stages_only: recomputations of a stage share one event (2 t, followed by 2 t + 1 for node t) and memory counts
            at first computations only. That relaxes the order within a stage away.
        distinct: starts are variable and all different, equation (6); events are the positions of a sequence.
    """

    times: tuple[tuple[tuple[int, ...], ...], ...]
    required: tuple[int, ...]
    unlimited: frozenset[int] = frozenset()
    stages_only: bool = False
    distinct: bool = False


@dataclass
class Computation:
    """One computation of a node, in ranks of events."""

    node: int
    low: int
    high: int
    start: Term
    present: cp_model.IntVar | None  # None: it must happen
    delayed: bool = False  # memory counts from the next event on
    unlimited: bool = False
    ends: dict[int, Term] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        return self.present is None and self.low == self.high


@dataclass(frozen=True)
class Cover:
    """`literal`: `copy` is the computation whose value a use reads."""

    copy: int
    literal: cp_model.IntVar


@dataclass(frozen=True)
class Use:
    """A computation that reads a value, and the copies that it may read (a single certain one has no literal)."""

    value: int
    reader: Computation
    covers: tuple[Cover, ...]
    certain: int | None


@dataclass(frozen=True)
class Formulation:
    """A built model and what is needed to read a solution and to give a hint."""

    graph: Graph
    model: cp_model.CpModel
    events: tuple[int, ...]
    computations: tuple[tuple[Computation, ...], ...]
    uses: tuple[Use, ...]
    costs: tuple[int, ...]
    capacity: Term

    def order(self, value_of) -> list[int]:
        """The nodes in the order of their events; `value_of` gives a variable's value."""
        steps = []
        for computations in self.computations:
            for computation in computations:
                if computation.present is None or value_of(computation.present):
                    steps.append((_value(computation.start, value_of), computation.node))
        return [node for _, node in sorted(steps)]

    def extra(self) -> cp_model.LinearExprT:
        """The cost of what need not be computed, in units of the scaled cost."""
        every = (c for computations in self.computations for c in computations)
        return cp_model.LinearExpr.sum([self.costs[c.node] * c.present for c in every if c.present is not None])

    def hint(self, times: Sequence[Sequence[int]]) -> None:
        """Hints the schedule that computes each node at the given events, ascending, [num_nodes]."""
        starts = self._hint_starts(times)
        ends: dict[tuple[int, int], int] = {}
        for use in self.uses:
            reader = starts.get(id(use.reader), len(self.events) if use.reader.node == OUTPUT_NODE else None)
            copies = self.computations[self.graph.producer[use.value]]
            read = -1 if reader is None else _latest(copies, starts, reader)
            if read >= 0 and reader is not None:
                ends[use.value, read] = max(ends.get((use.value, read), 0), reader)
            for cover in use.covers:
                self.model.add_hint(cover.literal, cover.copy == read)
        for node, computations in enumerate(self.computations):
            for index, copy in enumerate(computations):
                start = starts.get(id(copy), copy.low)
                for value in self.graph.nodes[node].outputs:
                    end = copy.ends[value]
                    if not isinstance(end, int):
                        self.model.add_hint(end, max(start, ends.get((value, index), start)))

    def _hint_starts(self, times: Sequence[Sequence[int]]) -> dict[int, int]:
        rank = {time: index for index, time in enumerate(self.events)}
        starts: dict[int, int] = {}
        for computations, events in zip(self.computations, times, strict=True):
            for index, copy in enumerate(computations):
                happens = index < len(events) and events[index] in rank
                start = rank[events[index]] if happens else copy.low
                if happens:
                    starts[id(copy)] = start
                if copy.present is not None:
                    self.model.add_hint(copy.present, happens)
                if not isinstance(copy.start, int):
                    self.model.add_hint(copy.start, start)
        return starts


def build(
    graph: Graph,
    scaled: Scaled,
    candidates: Candidates,
    *,
    precedence: Precedence = "cover",
    least_peak: bool = False,
    max_rows: int = 0,
) -> Formulation:
    """The model: least cost within the budget, or, with `least_peak`, phase 1: least max(M_var, M), equation (12)."""
    return _Builder(graph, scaled, candidates, precedence, max_rows).build(least_peak)


class _Builder:
    def __init__(
        self, graph: Graph, scaled: Scaled, candidates: Candidates, precedence: Precedence, max_rows: int
    ) -> None:
        self.graph = graph
        self.scaled = scaled
        self.candidates = candidates
        self.precedence = precedence
        self.max_rows = max_rows
        self.model = cp_model.CpModel()
        self.events = sorted({time for node in candidates.times for times in node for time in times})
        self.horizon = len(self.events)
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        self.profile = np.zeros(self.horizon + 2, dtype=np.int64)  # differences of what is certainly in use
        self.uses: list[Use] = []

    def build(self, least_peak: bool) -> Formulation:
        rank = {time: index for index, time in enumerate(self.events)}
        self.computations = tuple(self._computations(node, rank) for node in range(len(self.graph.nodes)))
        self.end = Computation(OUTPUT_NODE, self.horizon, self.horizon, self.horizon, None)
        for value in range(len(self.graph.values)):
            self._value(value)
        if self.candidates.distinct:
            self._sequence()
        if self.max_rows:
            self._evictions()
        for computation in self._all():
            self._workspace(computation)
        capacity = self._memory(least_peak)
        self._needed_recomputations()
        formulation = Formulation(
            self.graph,
            self.model,
            tuple(self.events),
            self.computations,
            tuple(self.uses),
            self.scaled.costs,
            capacity,
        )
        self.model.minimize(capacity if least_peak else formulation.extra())
        return formulation

    def _all(self) -> list[Computation]:
        return [computation for computations in self.computations for computation in computations]

    # -- starts and activity: (3), (6), (7), (8)

    def _computations(self, node: int, rank: dict[int, int]) -> tuple[Computation, ...]:
        made: list[Computation] = []
        every = self.candidates.times[node]
        for index, times in enumerate(every):
            ranks = [rank[time] for time in times]
            required = index < self.candidates.required[node]
            present = None if required else self.model.new_bool_var("")
            start: Term = ranks[0]
            if len(ranks) > 1:
                start = self.model.new_int_var_from_domain(cp_model.Domain.from_values(ranks), "")
            unlimited = node in self.candidates.unlimited and index == len(every) - 1
            delayed = self.candidates.stages_only and index > 0
            computation = Computation(node, ranks[0], ranks[-1], start, present, delayed, unlimited)
            if present is not None and len(ranks) > 1:  # one value of the start where it does not happen
                self.model.add(start == ranks[0]).only_enforce_if(~present)
            if made:
                self._follows(made[-1], computation)
            made.append(computation)
        return tuple(made)

    def _follows(self, before: Computation, after: Computation) -> None:
        if before.present is not None and after.present is not None:
            self.model.add_implication(after.present, before.present)
        if before.high >= after.low:
            _enforce(self.model.add(before.start + 1 <= after.start), after.present)

    def _sequence(self) -> None:
        """Starts all different, (6), packed from the first position on, so that a sequence is one solution."""
        every = self._all()
        ones = [self.model.new_optional_fixed_size_interval_var(c.start, 1, _literal(self.model, c), "") for c in every]
        self.model.add_no_overlap(ones)
        certain = sum(1 for c in every if c.present is None)
        length = certain + sum(c.present for c in every if c.present is not None)
        for c in every:
            _enforce(self.model.add(c.start <= length - 1), c.present)

    # -- retention and precedence: (2), (3), (5)

    def _value(self, value: int) -> None:
        copies = self.computations[self.graph.producer[value]]
        readers = [c for node in self.graph.users[value] for c in self.computations[node]]
        if value in self.graph.outputs:
            readers.append(self.end)
        uses = [(reader, self._possible_copies(copies, reader)) for reader in readers]
        self._ends(value, copies, uses)
        for reader, possible in uses:
            self._use(value, copies, reader, possible)
        for before, after in pairwise(copies):
            if not (isinstance(before.ends[value], int) and before.ends[value] <= after.low):
                _enforce(self.model.add(before.ends[value] <= after.start), after.present)
        for index, copy in enumerate(copies):
            self._retention(value, index, copy)

    def _possible_copies(self, copies: Sequence[Computation], reader: Computation) -> list[int]:
        possible = []
        for index, copy in enumerate(copies):
            following = copies[index + 1] if index + 1 < len(copies) else None
            overtaken = following is not None and following.fixed and not self._too_late(following, reader.low)
            if not self._too_late(copy, reader.high) and not overtaken:
                possible.append(index)
        return possible

    def _too_late(self, copy: Computation, time: int) -> bool:
        return copy.low > time or (copy.low == time and not self._shared(copy))

    def _shared(self, copy: Computation) -> bool:
        """Whether a reader may share the copy's event: recomputations of one stage, which are in the input order."""
        return copy.delayed

    def _ends(self, value: int, copies: Sequence[Computation], uses: list[tuple[Computation, list[int]]]) -> None:
        low = [copy.low for copy in copies]
        high = [copy.high for copy in copies]
        for reader, possible in uses:
            for index in possible:
                high[index] = max(high[index], reader.high)
            if len(possible) == 1 and reader.present is None:
                low[possible[0]] = max(low[possible[0]], reader.low)
        for index, copy in enumerate(copies):
            if copy.unlimited:
                copy.ends[value] = self.horizon
            elif low[index] == high[index]:
                copy.ends[value] = low[index]
            else:
                end = self.model.new_int_var(low[index], high[index], "")
                copy.ends[value] = end
                if copy.low != copy.high:
                    self.model.add(copy.start <= end)
                    if copy.present is not None:
                        self.model.add(end == copy.start).only_enforce_if(~copy.present)
                elif copy.present is not None:
                    self.model.add(end == low[index]).only_enforce_if(~copy.present)

    def _use(self, value: int, copies: Sequence[Computation], reader: Computation, possible: list[int]) -> None:
        if len(possible) == 1 and copies[possible[0]].present is None:
            copy = copies[possible[0]]
            self._starts_before(copy, reader, reader.present)
            if not _at_least(copy.ends[value], reader.high):
                _enforce(self.model.add(copy.ends[value] >= reader.start), reader.present)
            self.uses.append(Use(value, reader, (), possible[0]))
            return
        if self.precedence == "reservoir" and reader.node != OUTPUT_NODE and not self._may_take_over(value, reader):
            self._reservoir(value, [copies[index] for index in possible], reader)
            self.uses.append(Use(value, reader, (), None))
            return
        covers = tuple(Cover(index, self.model.new_bool_var("")) for index in possible)
        for cover in covers:
            copy = copies[cover.copy]
            if copy.present is not None:
                self.model.add_implication(cover.literal, copy.present)
            self._starts_before(copy, reader, cover.literal)
            if not _at_least(copy.ends[value], reader.high):
                self.model.add(copy.ends[value] >= reader.start).only_enforce_if(cover.literal)
            if copy.unlimited and not reader.delayed and reader.low == reader.high and self.scaled.sizes[value]:
                once = self.model.new_optional_fixed_size_interval_var(reader.start, 1, cover.literal, "")
                self._demand(once, self.scaled.sizes[value])
        literals = [cover.literal for cover in covers]
        if reader.present is None:
            self.model.add_exactly_one(literals)
        else:
            self.model.add(sum(literals) == reader.present)
        self.uses.append(Use(value, reader, covers, None))

    def _starts_before(self, copy: Computation, reader: Computation, literal: cp_model.IntVar | None) -> None:
        shared = self._shared(copy)
        if copy.high < reader.low or (shared and copy.high == reader.low):
            return
        _enforce(self.model.add(copy.start + (0 if shared else 1) <= reader.start), literal)

    def _reservoir(self, value: int, copies: Sequence[Computation], reader: Computation) -> None:
        """(10), with the reader's demand given back one event after its start: as printed, an input would have to
        outlast all of the reader's retention, and could not be freed at the event that reads it last."""
        times: list[Term | cp_model.LinearExpr] = [reader.start, reader.start + 1]
        changes = [-1, 1]
        actives = [_literal(self.model, reader)] * 2
        for copy in copies:
            shift = 0 if self._shared(copy) else 1
            times += [copy.start + shift, copy.ends[value] + 1]
            changes += [1, -1]
            actives += [_literal(self.model, copy)] * 2
        self.model.add_reservoir_constraint_with_active(times, changes, actives, 0, len(copies) + 1)

    def _needed_recomputations(self) -> None:
        """A recomputation that nothing reads can be left out: safe."""
        read: dict[int, list[cp_model.IntVar]] = {}
        certain: set[int] = set()
        for use in self.uses:
            copies = self.computations[self.graph.producer[use.value]]
            for cover in use.covers:
                read.setdefault(id(copies[cover.copy]), []).append(cover.literal)
            if not use.covers:
                certain.update(id(copy) for copy in copies)
        for computation in self._all():
            if computation.present is not None and id(computation) not in certain:
                self.model.add_bool_or([*read.get(id(computation), []), ~computation.present])

    # -- memory: (4), with workspace and in-place outputs

    def _retention(self, value: int, index: int, copy: Computation) -> None:
        size = self.scaled.sizes[value]
        if copy.unlimited or not size:
            return
        begin: Term | cp_model.LinearExpr = copy.start + (1 if copy.delayed else 0)
        end = copy.ends[value]
        if not copy.delayed and self.graph.nodes[copy.node].outputs[0] == value:
            takeover = self._takeover(copy, value)
            if takeover is not None:
                begin = self.model.new_int_var(copy.low, copy.high + 1, "")
                self.model.add(begin == copy.start + takeover)
        if copy.present is None and isinstance(begin, int) and isinstance(end, int):
            self.profile[begin] += size
            self.profile[end + 1] -= size
            return
        if isinstance(begin, int):
            length: cp_model.LinearExpr | cp_model.IntVar | int = end + 1 - begin
        else:
            length = self.model.new_int_var(0, self.horizon + 1, "")
        interval = (
            self.model.new_interval_var(begin, length, end + 1, "")
            if copy.present is None
            else self.model.new_optional_interval_var(begin, length, end + 1, copy.present, "")
        )
        self._demand(interval, size)

    def _may_take_over(self, value: int, reader: Computation) -> bool:
        if reader.node == OUTPUT_NODE or reader.delayed:
            return False
        node = self.graph.nodes[reader.node]
        return node.inplace and bool(node.outputs) and self._same_size(value, node.outputs[0])

    def _same_size(self, a: int, b: int) -> bool:
        return self.graph.values[a].size_bytes == self.graph.values[b].size_bytes

    def _takeover(self, reader: Computation, output: int) -> cp_model.IntVar | None:
        """True only where an input of the same size ends at this computation: its storage is taken over."""
        if not self.graph.nodes[reader.node].inplace:
            return None
        ways: list[cp_model.IntVar] = []
        for value in self.graph.nodes[reader.node].inputs:
            if self._same_size(value, output):
                ways += self._ways_to_take_over(value, reader)
        if not ways:
            return None
        takeover = self.model.new_bool_var("")
        self.model.add(sum(ways) == takeover)
        return takeover

    def _ways_to_take_over(self, value: int, reader: Computation) -> list[cp_model.IntVar]:
        copies = self.computations[self.graph.producer[value]]
        use = next(use for use in self.uses if use.value == value and use.reader is reader)
        ways: list[cp_model.IntVar] = []
        choices = [(use.certain, None)] if use.certain is not None else [(c.copy, c.literal) for c in use.covers]
        for index, covered in choices:
            copy = copies[index]
            end = copy.ends[value]
            if isinstance(end, int) and not copy.unlimited and (end < reader.low or end > reader.high):
                continue
            literal = self.model.new_bool_var("")
            if covered is not None:
                self.model.add_implication(literal, covered)
            if not copy.unlimited:
                self.model.add(end == reader.start).only_enforce_if(literal)
            ways.append(literal)
        return ways

    def _evictions(self) -> None:
        """Implied rows: of the values that first computations after node t read, those that are not in memory at its
        first computation are computed again after it, so enough of them must be for the rest to fit."""
        needs = []
        for node, (first, *_) in enumerate(self.computations):
            own = self._least_at(node)
            across = self._read_across(node)
            need = own + sum(self.scaled.sizes[value] for value in across) - self.scaled.budget
            if first.fixed and need > 0:
                needs.append((need, node, across))
        needs.sort(key=lambda entry: (-entry[0], entry[1]))
        for need, node, across in sorted(needs[: self.max_rows], key=lambda entry: entry[1]):
            evicted: dict[int, int] = {}
            for value in across:
                producer = self.graph.producer[value]
                evicted[producer] = evicted.get(producer, 0) + self.scaled.sizes[value]
            time = self.computations[node][0].low
            terms = [min(size, need) * self._again_after(producer, time) for producer, size in evicted.items()]
            self.model.add(sum(terms) >= need)

    def _again_after(self, node: int, time: int) -> cp_model.LinearExpr | cp_model.IntVar | int:
        later = []
        for copy in self.computations[node][1:]:
            if copy.low > time or copy.unlimited:
                later.append(_literal(self.model, copy))
            elif copy.high > time:
                literal = self.model.new_bool_var("")
                _enforce(self.model.add(copy.start >= time + 1), literal)
                if copy.present is not None:
                    self.model.add_implication(literal, copy.present)
                later.append(literal)
        if len(later) <= 1:
            return later[0] if later else 0
        some = self.model.new_bool_var("")
        self.model.add_bool_or([*later, ~some])
        return some

    def _read_across(self, node: int) -> list[int]:
        """Values that exist before node t and that later first computations read, but not t itself."""
        reads = set(self.graph.nodes[node].inputs)
        outputs = set(self.graph.outputs)
        across = []
        for value, users in enumerate(self.graph.users):
            later = value in outputs or (users and users[-1] > node)
            if self.graph.producer[value] < node and later and value not in reads and self.scaled.sizes[value]:
                across.append(value)
        return across

    def _least_at(self, node: int) -> int:
        entry = self.graph.nodes[node]
        held = sum(self.scaled.sizes[value] for value in (*entry.inputs, *entry.outputs))
        reusable = entry.inplace and any(self._same_size(value, entry.outputs[0]) for value in entry.inputs)
        return held + self.scaled.workspaces[node] - (self.scaled.sizes[entry.outputs[0]] if reusable else 0)

    def _workspace(self, computation: Computation) -> None:
        demand = self.scaled.workspaces[computation.node]
        if not demand or computation.delayed:
            return
        if computation.fixed:
            self.profile[computation.low] += demand
            self.profile[computation.low + 1] -= demand
            return
        literal = _literal(self.model, computation)
        self._demand(self.model.new_optional_fixed_size_interval_var(computation.start, 1, literal, ""), demand)

    def _demand(self, interval: cp_model.IntervalVar, demand: int) -> None:
        self.intervals.append(interval)
        self.demands.append(int(demand))

    def _memory(self, least_peak: bool) -> Term:
        """The cumulative constraint; what is certain is one interval for each run of equal use."""
        certain = np.cumsum(self.profile[: self.horizon + 1])
        capacity: Term = self.scaled.budget
        if least_peak:
            most = int(certain.max(initial=0)) + sum(self.demands)
            capacity = self.model.new_int_var(self.scaled.budget, max(most, self.scaled.budget), "")
        elif certain[: self.horizon].max(initial=0) > self.scaled.budget:
            self.model.add_bool_or([])
        runs = np.flatnonzero(np.diff(certain, prepend=certain[0] - 1))
        for begin, end in zip(runs, [*runs[1:], self.horizon + 1], strict=True):
            if certain[begin]:
                self._demand(
                    self.model.new_fixed_size_interval_var(int(begin), int(end - begin), ""), int(certain[begin])
                )
        self.model.add_cumulative(self.intervals, self.demands, capacity)
        return capacity


def _enforce(constraint: cp_model.Constraint, literal: cp_model.IntVar | None) -> None:
    if literal is not None:
        constraint.only_enforce_if(literal)


def _literal(model: cp_model.CpModel, computation: Computation) -> cp_model.IntVar:
    return model.new_constant(1) if computation.present is None else computation.present


def _at_least(end: Term, time: int) -> bool:
    return isinstance(end, int) and end >= time


def _latest(copies: Sequence[Computation], starts: dict[int, int], reader: int) -> int:
    """The copy that a reader at that event reads: the last one started before it; -1 where there is none."""
    latest = -1
    for index, copy in enumerate(copies):
        start = starts.get(id(copy))
        if start is not None and start < reader + (1 if copy.delayed else 0):
            latest = index
    return latest


def _value(term: Term, value_of) -> int:
    return term if isinstance(term, int) else value_of(term)
