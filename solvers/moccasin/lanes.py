"""Adds time to MOCCASIN's model in stages: when events begin, and when the lanes copy values out and back.

The model's events are ranks, without duration. With fetches, each event also has a time, and the cost is the time at
which the step ends, as `time_schedule` has it:

- READY[r], the earliest time at which event r can begin, is after the node of the event before it. BEGIN[r] >= READY[r]
  is when its own node begins, after the fetched copies that the node reads have arrived.
- The lane out copies values in the order of their first computations. SENT[v] is when it has copied v. The event after
  the last one of v's first copy is not ready before that, and a node that writes over this copy does not begin before.
- A fetch at event r is an interval on the lane back, at or after READY[r], so that it is also after SENT[v]: v's first
  copy ends before event r. The lane back makes one copy at a time.

Three rules of the simulator are left out, so that the optimum is a lower bound on the cost: the lane back may make
copies in any order, a fetch may begin at an event at which no node runs, and a node need not wait for a copy that it
could write over but does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.moccasin.model import OUTPUT_NODE, Computation, Use
from checkmate_tf.solvers.moccasin.rows import activity, enforce
from checkmate_tf.solvers.moccasin.scaling import Scaled


@dataclass(frozen=True)
class TakenOver:
    """A reader that writes over the first copy of a value if `literal` is true."""

    value: int
    reader: Computation
    literal: cp_model.IntVar


def add_lanes(
    model: cp_model.CpModel,
    graph: Graph,
    scaled: Scaled,
    computations: Sequence[Sequence[Computation]],
    fetches: Mapping[int, Sequence[Computation]],
    starts: Sequence[Sequence[int]],
    uses: Sequence[Use],
    taken: Sequence[TakenOver],
) -> cp_model.IntVar:
    """Adds the times of events and copies. Returns the time at which the step ends, in units of the scaled cost.

    Args:
        starts: the ranks at which each computation may happen, one list for each computation of each node.
    """
    every = [computation for of_node in computations for computation in of_node]
    copies = [value for value, of_value in fetches.items() for _ in of_value]
    most = sum(scaled.costs[computation.node] for computation in every)
    most += sum(scaled.offload_costs[value] for value in fetches) + sum(scaled.fetch_costs[value] for value in copies)
    lanes = _Lanes(model, graph, scaled, computations, fetches, 1 + max(ranks[-1] for ranks in starts), most)
    lanes.run_nodes(every, starts)
    sent = lanes.copy_out()
    arrivals = lanes.copy_back()
    for use in uses:
        lanes.wait(use, arrivals)
    for one in taken:
        model.add(lanes.begin_of(one.reader) >= sent[one.value]).only_enforce_if(
            one.literal, activity(model, fetches[one.value][0])
        )
    return lanes.end


class _Lanes:
    def __init__(
        self,
        model: cp_model.CpModel,
        graph: Graph,
        scaled: Scaled,
        computations: Sequence[Sequence[Computation]],
        fetches: Mapping[int, Sequence[Computation]],
        num_events: int,
        most: int,
    ) -> None:
        self.model, self.graph, self.scaled = model, graph, scaled
        self.computations, self.fetches, self.most = computations, fetches, most
        self.ready = [self._time() for _ in range(num_events + 1)]
        self.begin = [self._time() for _ in range(num_events)]
        self.end = self._time()
        self.begins: dict[int, cp_model.IntVar] = {}  # by id of the computation

    def _time(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.most, "")

    def run_nodes(self, every: Sequence[Computation], starts: Sequence[Sequence[int]]) -> None:
        """Adds the time of the computations to the events at which they happen."""
        taken: list[list[cp_model.LinearExpr | int]] = [[] for _ in self.begin]
        for computation, ranks in zip(every, starts, strict=True):
            cost = self.scaled.costs[computation.node]
            if len(ranks) == 1:
                taken[ranks[0]].append(cost if computation.present is None else cost * computation.present)
                continue
            chosen = [self.model.new_bool_var("") for _ in ranks]
            self.model.add(sum(chosen) == activity(self.model, computation))
            later = [(rank - ranks[0]) * literal for rank, literal in zip(ranks, chosen, strict=True)]
            self.model.add(computation.start == ranks[0] + sum(later))
            for rank, literal in zip(ranks, chosen, strict=True):
                taken[rank].append(cost * literal)
        for rank, costs in enumerate(taken):
            self.model.add(self.begin[rank] >= self.ready[rank])
            self.model.add(self.ready[rank + 1] >= self.begin[rank] + sum(costs))
        self.model.add(self.end >= self.ready[-1])

    def copy_out(self) -> dict[int, cp_model.IntVar]:
        """Adds the lane out. Returns SENT by value."""
        sent: dict[int, cp_model.IntVar] = {}
        before: cp_model.IntVar | int = 0
        for node in self.graph.nodes:
            for value in node.outputs:
                if value not in self.fetches:
                    continue
                first, out = self.computations[self.graph.producer[value]][0], self.fetches[value][0]
                copying = self.scaled.offload_costs[value] * activity(self.model, out)
                sent[value] = self._time()
                ended = self.begin[first.low] + self.scaled.costs[first.node]
                self.model.add(sent[value] >= ended + copying)
                self.model.add(sent[value] >= before + copying)
                enforce(
                    self.model.add(self._at((*self.ready, self.end), first.ends[value] + 1) >= sent[value]), out.present
                )
                before = sent[value]
        return sent

    def copy_back(self) -> dict[int, cp_model.LinearExpr]:
        """Adds the lane back. Returns the time at which each fetched copy is there, by id of the fetch."""
        arrivals: dict[int, cp_model.LinearExpr] = {}
        lane = []
        for value, fetches in self.fetches.items():
            duration = self.scaled.fetch_costs[value]
            for fetch in fetches:
                begin, active = self._time(), activity(self.model, fetch)
                arrivals[id(fetch)] = begin + duration
                lane.append(self.model.new_optional_fixed_size_interval_var(begin, duration, active, ""))
                enforce(self.model.add(begin >= self._at(self.ready, fetch.start)), fetch.present)
        self.model.add_no_overlap(lane)
        return arrivals

    def wait(self, use: Use, arrivals: Mapping[int, cp_model.LinearExpr]) -> None:
        """Delays a computation, or the end of the step, until the fetched copy that it reads is there."""
        copies = (*self.computations[self.graph.producer[use.value]], *self.fetches.get(use.value, ()))
        for cover in use.covers:
            if copies[cover.copy].is_fetch:
                begin = self.end if use.reader.node == OUTPUT_NODE else self.begin_of(use.reader)
                self.model.add(begin >= arrivals[id(copies[cover.copy])]).only_enforce_if(cover.literal)

    def begin_of(self, computation: Computation) -> cp_model.IntVar:
        """Returns the time at which a computation begins."""
        if id(computation) not in self.begins:
            self.begins[id(computation)] = self._at(self.begin, computation.start)
        return self.begins[id(computation)]

    def _at(self, times: Sequence[cp_model.IntVar], rank: cp_model.LinearExprT) -> cp_model.IntVar:
        if isinstance(rank, int):
            return times[rank]
        time = self._time()
        self.model.add_element(rank, times, time)
        return time
