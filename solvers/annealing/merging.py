"""Merges good schedules: CP-SAT finds the best schedule that recomputes only nodes that some of them recompute.

The method is construct, merge, solve and adapt (Blum, Pinacho, Lopez-Ibanez and Lozano, Computers & Operations Research
68, 2016). The recomputations of a few good schedules are a small part of stage space. CP-SAT often proves the optimum
of that part within seconds, and it is better than each of the schedules.

Each node's first computation has a position, and so has each recomputation of the pool, which may be left out.
Positions are in Checkmate's order (section 4.2). The positions that compute or read a value cut time into spans;
throughout a span, the value is either held or not. Memory is counted as the simulator counts it, at every position
where it can exceed the budget.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from checkmate_tf.graph import Graph, inplace_inputs
from checkmate_tf.solvers.annealing.settings import SETTINGS
from checkmate_tf.solvers.cost_units import cost_unit
from checkmate_tf.solvers.loading import can_load
from checkmate_tf.solvers.stages import Event, rows_of

Literal = Any
"""A Boolean variable of CP-SAT, its negation, True or False."""


def merge_schedules(
    graph: Graph,
    budget_bytes: int,
    pool: Iterable[Event],
    start: Collection[Event],
    *,
    time_limit_s: float,
    work_limit: float,
    seed: int = 0,
) -> tuple[np.ndarray, bool]:
    """Finds the best schedule whose recomputations are all in `pool` or `start`.

    Args:
        start: recomputations of a schedule within the budget.
        work_limit: limit of CP-SAT's deterministic time, which is roughly in seconds.

    Returns:
        The recomputations, int64 [num_events, 2] of (stage, node), and whether CP-SAT proved that no schedule of the
        pool costs less.
    """
    if not can_load("mip.cpsat", time_limit_s):
        return rows_of(start), False
    from checkmate_tf.solvers.mip.cpsat import CpSatSettings, cp_model, new_cpsat

    model = _Model(graph, budget_bytes - graph.resident_bytes, {*pool, *start}, set(start))
    if not model.add_memory():
        return rows_of(start), False
    model.minimize_cost()
    # Without linear relaxations of all constraints, the proof can take many times as long.
    solver = new_cpsat(CpSatSettings(time_limit_s, seed, work_limit=work_limit, linearizes_all=True))
    status = solver.solve(model.program)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return rows_of(start), False
    events = rows_of(position for position, runs in model.optional if solver.boolean_value(runs))
    return events, status == cp_model.OPTIMAL


class _Model:
    """The variables of the merging: which recomputations run, and in which of its spans each value is held.

    Every variable has a hint: its value in the starting schedule.
    """

    def __init__(self, graph: Graph, room_bytes: int, pool: set[Event], start: set[Event]) -> None:
        from checkmate_tf.solvers.mip.ortools_library import cp_model

        self.program = cp_model.CpModel()
        self._weighted_sum = cp_model.LinearExpr.weighted_sum
        self._graph = graph
        self._room_bytes = room_bytes
        self._hints: dict[int, bool] = {}
        positions = sorted(pool | {(stage, stage) for stage in range(len(graph.nodes))})
        self._end = len(positions)  # the end of the training step, which reads its outputs
        self._runs = [True if stage == node else self._variable((stage, node) in start) for stage, node in positions]
        self.optional = [
            (position, runs) for position, runs in zip(positions, self._runs, strict=True) if position[0] != position[1]
        ]
        self._positions_of: dict[int, list[int]] = defaultdict(list)
        self._after: dict[tuple[int, int], Literal] = {}  # (value, position that reads it) -> whether it is held after
        self._held: list[tuple[int, int, int, Literal]] = []  # first and last position, bytes, whether they are in use
        for index, (_, node) in enumerate(positions):
            self._positions_of[node].append(index)
        for value in range(len(graph.values)):
            self._add_value(value)
        for index, (_, node) in enumerate(positions):
            self._add_memory_within(index, node)

    def minimize_cost(self) -> None:
        unit = cost_unit(self._graph, len(self.optional))
        costs = [self._graph.nodes[node].cost // unit for (_, node), _ in self.optional]
        self.program.minimize(self._weighted_sum([runs for _, runs in self.optional], costs))

    def add_memory(self) -> bool:
        """Adds the memory rows; returns False, with nothing added, where they would have too many terms."""
        most_bytes, num_terms = np.zeros((2, self._end + 1), dtype=np.int64)
        begins, ends = defaultdict(list), defaultdict(list)
        for number, (first, last, size_bytes, taken) in enumerate(self._held):
            most_bytes[[first, last + 1]] += np.array([1, -1]) * max(size_bytes, 0)
            num_terms[[first, last + 1]] += np.array([1, -1]) * (taken is not True)
            begins[first].append(number)
            ends[last].append(number)
        is_tight = np.cumsum(most_bytes) > self._room_bytes
        if np.cumsum(num_terms)[is_tight].sum() > SETTINGS.max_memory_terms:
            return False
        fixed_bytes = 0
        terms: dict[int, tuple[Literal, int]] = {}
        for index in range(self._end):
            for number in begins[index]:
                _, _, size_bytes, taken = self._held[number]
                if taken is True:
                    fixed_bytes += size_bytes
                else:
                    terms[number] = taken, size_bytes
            if is_tight[index] and terms:
                total = self._weighted_sum(*map(list, zip(*terms.values(), strict=True)))
                self.program.add(total <= self._room_bytes - fixed_bytes)
            for number in ends[index]:
                if terms.pop(number, None) is None:
                    fixed_bytes -= self._held[number][2]
        return True

    def _add_value(self, value: int) -> None:
        graph, size_bytes = self._graph, self._graph.values[value].size_bytes
        made = self._positions_of[graph.producer[value]]
        reads = sorted(position for user in graph.users[value] for position in self._positions_of[user])
        if value in graph.outputs:
            reads.append(self._end)
        stays = self._stays(made, reads)
        before: Literal = False
        for first, next_made in pairwise([*made, self._end + 1]):
            inside = reads[bisect_left(reads, first) : bisect_left(reads, next_made)]
            certain = max((read for read in inside if self._runs_at(read) is True), default=first)
            points = inside if next_made > self._end else [*inside, next_made]
            last, there, after = first, self._runs[first], before
            for point in points:
                after = True if point <= certain else self._variable(stays[last])
                if last == first:
                    self._implies(after, self._runs[first], before)
                    there = self._either(self._runs[first], after)
                else:
                    self._after[value, last] = after
                    self._implies(after, before)
                if point != next_made:
                    self._implies(self._runs_at(point), after)
                self._hold(last + 1, point if point not in (next_made, self._end) else point - 1, size_bytes, after)
                last, before = point, after
            self._hold(first, first, size_bytes, there)

    def _stays(self, made: list[int], reads: list[int]) -> dict[int, bool]:
        """Returns whether the starting schedule holds a value after each position that computes or reads it."""
        stays, is_wanted, makes = {}, False, set(made)
        for point in sorted([*made, *reads], reverse=True):
            stays[point] = is_wanted
            if self._is_hinted(self._runs_at(point)):
                is_wanted = point not in makes
        return stays

    def _add_memory_within(self, index: int, node: int) -> None:
        """Adds a node's workspace, less the storage that its first output takes over from an input that ends there."""
        description = self._graph.nodes[node]
        self._hold(index, index, description.workspace_bytes, self._runs[index])
        after = [self._after.get((value, index), False) for value in inplace_inputs(self._graph, description)]
        dropped: Literal = self._runs[index]
        if all(stays is True for stays in after):
            return
        if not any(stays is False for stays in after):
            dropped = self._variable(self._is_hinted(dropped) and not all(map(self._is_hinted, after)))
            self._implies(dropped, self._runs[index])
            self._implies(dropped, *(~stays for stays in after if stays is not True))
        self._hold(index, index, -self._graph.values[description.outputs[0]].size_bytes, dropped)

    def _hold(self, first: int, last: int, size_bytes: int, taken: Literal) -> None:
        if first <= last and size_bytes:
            self._held.append((first, last, size_bytes, taken))

    def _runs_at(self, point: int) -> Literal:
        return True if point == self._end else self._runs[point]

    def _variable(self, hint: bool) -> Literal:
        variable = self.program.new_bool_var("")
        self.program.add_hint(variable, hint)
        self._hints[variable.index] = hint
        return variable

    def _is_hinted(self, literal: Literal) -> bool:
        return literal if isinstance(literal, bool) else self._hints[literal.index]

    def _implies(self, literal: Literal, *any_of: Literal) -> None:
        if not any(one is True for one in any_of):
            clause = [one for one in any_of if one is not False]
            self.program.add_bool_or(clause if literal is True else [~literal, *clause])

    def _either(self, first: Literal, second: Literal) -> Literal:
        if first is True or second is True:
            return True
        either = self._variable(self._is_hinted(first) or self._is_hinted(second))
        self._implies(first, either)
        self._implies(second, either)
        return either
