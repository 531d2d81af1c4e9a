"""Builds MOCCASIN's model: variables and constraints (1)-(8), for the computations that `Candidates` allows."""

import math
import time
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Literal

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.moccasin.candidates import list_events
from checkmate_tf.solvers.moccasin.lanes import TakenOver, add_lanes
from checkmate_tf.solvers.moccasin.model import (
    OUTPUT_NODE,
    Candidates,
    Computation,
    Cover,
    Fetches,
    IntervalModel,
    Term,
    Use,
)
from checkmate_tf.solvers.moccasin.rows import activity, add_eviction_rows, enforce
from checkmate_tf.solvers.moccasin.scaling import Scaled

Precedence = Literal["cover", "reservoir"]


def build(
    graph: Graph,
    scaled: Scaled,
    candidates: Candidates,
    *,
    precedence: Precedence = "cover",
    least_peak: bool = False,
    max_rows: int = 0,
    deadline_s: float = math.inf,
) -> IntervalModel:
    """Builds the model that minimizes the cost within the budget.

    With `least_peak`, it is phase 1: it minimizes max(M_var, M), equation (12). Raises TimeoutError if that takes until
    after `deadline_s`, a time of `time.perf_counter()`.
    """
    return _Builder(graph, scaled, candidates, precedence, max_rows, deadline_s).build(least_peak)


class _Builder:
    def __init__(
        self,
        graph: Graph,
        scaled: Scaled,
        candidates: Candidates,
        precedence: Precedence,
        max_rows: int,
        deadline_s: float,
    ) -> None:
        self.graph = graph
        self.scaled = scaled
        self.candidates = candidates
        self.precedence = precedence
        self.max_rows = max_rows
        self.deadline_s = deadline_s
        self.model = cp_model.CpModel()
        self.events = list_events(candidates)
        self.horizon = len(self.events)
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        self.profile = np.zeros(self.horizon + 2, dtype=np.int64)  # changes of the memory that is certainly in use
        self.uses: dict[tuple[int, int], Use] = {}  # by value and id of the reader
        self.fetches: dict[int, tuple[Computation, ...]] = {}
        self.hold: dict[int, int] = {}  # by value, the last event up to which its first copy may be held
        self.taken: list[TakenOver] = []

    def build(self, least_peak: bool) -> IntervalModel:
        rank = {time: index for index, time in enumerate(self.events)}
        self.computations = tuple(self._computations(node, rank) for node in range(len(self.graph.nodes)))
        for choice in self.candidates.fetches:
            self.fetches[choice.value] = self._fetches(choice, rank)
            self.hold[choice.value] = rank[choice.hold]
        self.end = Computation(OUTPUT_NODE, self.horizon, self.horizon, self.horizon, None)
        for node in self.graph.nodes:  # Inputs come before the outputs that may take over their storage.
            self._look_at_clock()
            for value in node.outputs:
                self._value(value)
        if self.candidates.distinct:
            self._sequence()
        if self.max_rows:
            add_eviction_rows(self.model, self.graph, self.scaled, self.computations, self.fetches, self.max_rows)
        for computation in self._all():
            self._workspace(computation)
        capacity = self._memory(least_peak)
        self._needed_copies()
        uses = tuple(self.uses.values())
        end = None
        if self.fetches:
            starts = [[rank[time] for time in times] for node in self.candidates.times for times in node]
            end = add_lanes(
                self.model, self.graph, self.scaled, self.computations, self.fetches, starts, uses, self.taken
            )
        formulation = IntervalModel(
            self.graph,
            self.model,
            tuple(self.events),
            self.computations,
            uses,
            self.scaled.costs,
            capacity,
            self.fetches,
            end,
        )
        self.model.minimize(capacity if least_peak else formulation.extra())
        return formulation

    def _all(self) -> list[Computation]:
        return [computation for computations in self.computations for computation in computations]

    def _look_at_clock(self) -> None:
        if time.perf_counter() > self.deadline_s:
            raise TimeoutError(f"the model of {len(self.graph.nodes)} nodes was not built within the time limit")

    # -- starts and activity: (3), (6), (7), (8)

    def _computations(self, node: int, rank: dict[int, int]) -> tuple[Computation, ...]:
        self._look_at_clock()
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
            if present is not None and len(ranks) > 1:  # one value of the start if it does not happen
                self.model.add(start == ranks[0]).only_enforce_if(~present)
            if made:
                self._follows(made[-1], computation)
            made.append(computation)
        return tuple(made)

    def _fetches(self, choice: Fetches, rank: dict[int, int]) -> tuple[Computation, ...]:
        self._look_at_clock()
        made: list[Computation] = []
        for index, times in enumerate(choice.times):
            ranks = [rank[time] for time in times]
            present = None if index < choice.required else self.model.new_bool_var("")
            start: Term = ranks[0]
            if len(ranks) > 1:
                start = self.model.new_int_var_from_domain(cp_model.Domain.from_values(ranks), "")
            unlimited = choice.unlimited and index == len(choice.times) - 1
            node = self.graph.producer[choice.value]
            fetch = Computation(node, ranks[0], ranks[-1], start, present, unlimited=unlimited, is_fetch=True)
            if present is not None and len(ranks) > 1:
                self.model.add(start == ranks[0]).only_enforce_if(~present)
            if made:
                self._follows(made[-1], fetch)
            made.append(fetch)
        return tuple(made)

    def _follows(self, before: Computation, after: Computation) -> None:
        if before.present is not None and after.present is not None:
            self.model.add_implication(after.present, before.present)
        if before.high >= after.low:
            enforce(self.model.add(before.start + 1 <= after.start), after.present)

    def _sequence(self) -> None:
        """Makes all starts different, (6), and `packed`."""
        every = self._all()
        ones = [self.model.new_optional_fixed_size_interval_var(c.start, 1, activity(self.model, c), "") for c in every]
        self.model.add_no_overlap(ones)
        if not self.candidates.packed:
            return
        certain = sum(1 for c in every if c.present is None)
        length = certain + sum(c.present for c in every if c.present is not None)
        for c in every:
            enforce(self.model.add(c.start <= length - 1), c.present)

    # -- retention and precedence: (2), (3), (5)

    def _value(self, value: int) -> None:
        computations = self.computations[self.graph.producer[value]]
        fetches = self.fetches.get(value, ())
        copies = (*computations, *fetches)
        readers = [c for node in self.graph.users[value] for c in self.computations[node]]
        if value in self.graph.outputs:
            readers.append(self.end)
        uses = [
            (reader, self._possible_copies(computations, reader) + self._possible_fetches(copies, reader))
            for reader in readers
        ]
        self._ends(value, copies, uses)
        for reader, possible in uses:
            self._use(value, copies, reader, possible)
        for before, after in pairwise(computations):
            if not (isinstance(before.ends[value], int) and before.ends[value] <= after.low):
                enforce(self.model.add(before.ends[value] <= after.start), after.present)
        if fetches:
            self._apart(value, copies, fetches[0])
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

    def _possible_fetches(self, copies: Sequence[Computation], reader: Computation) -> list[int]:
        return [i for i, copy in enumerate(copies) if copy.is_fetch and not self._too_late(copy, reader.high)]

    def _apart(self, value: int, copies: Sequence[Computation], fetch: Computation) -> None:
        """Ends each copy of a fetched value before the next one begins.

        A copy that stands for several may overlap with others, but even then the first copy ends before any fetch.
        """
        intervals = []
        for copy in copies:
            if not copy.unlimited:
                after = copy.ends[value] + 1
                length = self.model.new_int_var(1, self.horizon + 1, "")
                intervals.append(
                    self.model.new_optional_interval_var(copy.start, length, after, activity(self.model, copy), "")
                )
        self.model.add_no_overlap(intervals)
        enforce(self.model.add(copies[0].ends[value] + 1 <= fetch.start), fetch.present)

    def _too_late(self, copy: Computation, time: int) -> bool:
        return copy.low > time or (copy.low == time and not self._shared(copy))

    def _shared(self, copy: Computation) -> bool:
        """Returns whether a reader may share the copy's event.

        Recomputations of one stage share an event, and are in the input order. A value is fetched before the node of
        the event runs.
        """
        return copy.delayed or copy.is_fetch

    def _ends(self, value: int, copies: Sequence[Computation], uses: list[tuple[Computation, list[int]]]) -> None:
        low = [copy.low for copy in copies]
        high = [copy.high for copy in copies]
        high[0] = max(high[0], self.hold.get(value, 0))
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
                enforce(self.model.add(copy.ends[value] >= reader.start), reader.present)
            self.uses[value, id(reader)] = Use(value, reader, (), possible[0])
            return
        if self.precedence == "reservoir" and reader.node != OUTPUT_NODE and not self._may_take_over(value, reader):
            self._reservoir(value, [copies[index] for index in possible], reader)
            self.uses[value, id(reader)] = Use(value, reader, (), None)
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
        self.uses[value, id(reader)] = Use(value, reader, covers, None)

    def _starts_before(self, copy: Computation, reader: Computation, literal: cp_model.IntVar | None) -> None:
        shared = self._shared(copy)
        if copy.high < reader.low or (shared and copy.high == reader.low):
            return
        enforce(self.model.add(copy.start + (0 if shared else 1) <= reader.start), literal)

    def _reservoir(self, value: int, copies: Sequence[Computation], reader: Computation) -> None:
        """Adds (10), but gives the reader's demand back one event after its start.

        As printed, an input would have to outlast the whole retention of the reader, and could not be freed at the
        event that reads it last.
        """
        times: list[Term | cp_model.LinearExpr] = [reader.start, reader.start + 1]
        changes = [-1, 1]
        actives = [activity(self.model, reader)] * 2
        for copy in copies:
            shift = 0 if self._shared(copy) else 1
            times += [copy.start + shift, copy.ends[value] + 1]
            changes += [1, -1]
            actives += [activity(self.model, copy)] * 2
        self.model.add_reservoir_constraint_with_active(times, changes, actives, 0, len(copies) + 1)

    def _copies(self, value: int) -> tuple[Computation, ...]:
        return (*self.computations[self.graph.producer[value]], *self.fetches.get(value, ()))

    def _needed_copies(self) -> None:
        """Forbids recomputations and fetches that nothing reads. No better schedule is lost."""
        read: dict[int, list[cp_model.IntVar]] = {}
        certain: set[int] = set()
        for use in self.uses.values():
            copies = self._copies(use.value)
            for cover in use.covers:
                read.setdefault(id(copies[cover.copy]), []).append(cover.literal)
            if not use.covers:
                certain.update(id(copy) for copy in copies)
        for copy in (*self._all(), *chain.from_iterable(self.fetches.values())):
            if copy.present is not None and id(copy) not in certain:
                self.model.add_bool_or([*read.get(id(copy), []), ~copy.present])

    # -- memory: (4), with workspace and in-place outputs

    def _retention(self, value: int, index: int, copy: Computation) -> None:
        size = self.scaled.sizes[value]
        if copy.unlimited or not size:
            return
        begin: Term | cp_model.LinearExpr = copy.start + (1 if copy.delayed else 0)
        end = copy.ends[value]
        if not copy.delayed and not copy.is_fetch and self.graph.nodes[copy.node].outputs[0] == value:
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
        """Returns a literal that is true only if an input of the same size, whose storage is taken over, ends here."""
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
        copies = self._copies(value)
        use = self.uses[value, id(reader)]
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
            if index == 0 and value in self.fetches:
                self.taken.append(TakenOver(value, reader, literal))
        return ways

    def _workspace(self, computation: Computation) -> None:
        demand = self.scaled.workspaces[computation.node]
        if not demand or computation.delayed:
            return
        if computation.fixed:
            self.profile[computation.low] += demand
            self.profile[computation.low + 1] -= demand
            return
        literal = activity(self.model, computation)
        self._demand(self.model.new_optional_fixed_size_interval_var(computation.start, 1, literal, ""), demand)

    def _demand(self, interval: cp_model.IntervalVar, demand: int) -> None:
        self.intervals.append(interval)
        self.demands.append(int(demand))

    def _memory(self, least_peak: bool) -> Term:
        """Adds the cumulative constraint. Memory that is certainly in use is one interval for each run of equal use."""
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


def _at_least(end: Term, time: int) -> bool:
    return isinstance(end, int) and end >= time
