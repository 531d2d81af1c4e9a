"""MOCCASIN's retention-interval formulation (section 2, equations (1)-(8)) as a CP-SAT model.

One model serves the paper's formulation in either order, its neighbourhoods, and the relaxation that proves bounds.
`Candidates` lists the events at which each computation of each node may happen, and the rest follows from them.

A computation of a node has one start s, and each of the node's values is retained from it to an end of its own.
Intervals therefore belong to values, and activity to computations. A graph output is read once more after the last
event. Only the order of events matters, so the model's time is the rank of an event among those that can happen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.mip.ortools_library import cp_model

Term = cp_model.IntVar | int
OUTPUT_NODE = -1  # represents the end of the training step, which reads the graph's outputs


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
    """

    times: tuple[tuple[tuple[int, ...], ...], ...]
    required: tuple[int, ...]
    unlimited: frozenset[int] = frozenset()
    stages_only: bool = False
    distinct: bool = False
    packed: bool = True


@dataclass
class Computation:
    """One computation of a node, in ranks of events."""

    node: int
    low: int
    high: int
    start: Term
    present: cp_model.IntVar | None  # None if it must happen
    delayed: bool = False  # whether memory counts only from the next event on
    unlimited: bool = False
    ends: dict[int, Term] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        return self.present is None and self.low == self.high


@dataclass(frozen=True)
class Cover:
    """A copy that a use may read. `literal` is true if it reads computation `copy`."""

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
    """A built model, with the variables needed to read a solution and to give a hint."""

    graph: Graph
    model: cp_model.CpModel
    events: tuple[int, ...]
    computations: tuple[tuple[Computation, ...], ...]
    uses: tuple[Use, ...]
    costs: tuple[int, ...]
    capacity: Term

    def order(self, value_of: Callable[[cp_model.IntVar], int]) -> list[int]:
        """Returns the nodes in the order of their events. `value_of` returns a variable's value."""
        computed = []
        for computations in self.computations:
            for computation in computations:
                if computation.present is None or value_of(computation.present):
                    computed.append((_value(computation.start, value_of), computation.node))
        return [node for _, node in sorted(computed)]

    def extra(self) -> cp_model.LinearExprT:
        """Returns the cost of the optional computations, in units of the scaled cost."""
        every = (c for computations in self.computations for c in computations)
        return cp_model.LinearExpr.sum([self.costs[c.node] * c.present for c in every if c.present is not None])

    def size(self) -> dict[str, int]:
        """Counts Boolean variables, integer variables and constraints, as Table 1 of the paper does."""
        proto = self.model.proto
        domains = [list(variable.domain) for variable in proto.variables]
        booleans = sum(domain == [0, 1] for domain in domains)
        integers = sum(domain[0] != domain[-1] for domain in domains) - booleans
        return {"booleans": booleans, "integers": integers, "constraints": len(proto.constraints)}

    def hint(self, times: Sequence[Sequence[int]]) -> None:
        """Hints at the schedule that computes each node at the given events, in ascending order, [num_nodes]."""
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


def _latest(copies: Sequence[Computation], starts: dict[int, int], reader: int) -> int:
    """Returns the copy that a reader at that event reads: the last one started before it; -1 without one."""
    latest = -1
    for index, copy in enumerate(copies):
        start = starts.get(id(copy))
        if start is not None and start < reader + (1 if copy.delayed else 0):
            latest = index
    return latest


def _value(term: Term, value_of: Callable[[cp_model.IntVar], int]) -> int:
    return term if isinstance(term, int) else value_of(term)
