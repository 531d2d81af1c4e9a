"""The greedy rematerialization of XLA, as the TWRemat paper describes it (section 4, GreedyRemat).

The nodes of the input order run in turn. If the memory in use at a node exceeds the limit, GreedyRemat drops a value
that is held across it, and computes the value's node again just before its next use. It chooses the node that reduces
the memory in use the most: by the values of that node that the running node does not read, less the inputs that must
now be held for the repeat. If no choice reduces the memory, it goes on to the next node.

XLA looks only at the memory of the current position, so the schedule may exceed the limit elsewhere. The solver
therefore lowers the limit in `num_limits` steps, from the budget to the least that any schedule can reach, and returns
the cheapest schedule within the budget.
"""

import math
import time
from bisect import insort
from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_peak_bound, simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.search import Search

_LABEL_GAP = 1 << 20


@dataclass(frozen=True)
class XlaGreedy(Solver):
    """Runs GreedyRemat at `num_limits` memory limits, and returns the cheapest schedule within the budget."""

    num_limits: int = 12

    def search(self, search: Search) -> Result:
        problem = search.problem
        graph, budget = problem.graph, problem.budget_bytes
        span = budget - find_peak_bound(graph).peak_bytes
        best: tuple[int, Schedule] | None = None
        for index in range(self.num_limits):
            if search.remaining_s < 0:
                break
            limit_bytes = budget - span * index // max(self.num_limits - 1, 1)
            schedule = greedy_schedule(graph, limit_bytes, deadline_s=search.deadline_s)
            if schedule is None:
                break
            simulation = simulate(graph, schedule)
            if simulation.peak_bytes <= budget and (best is None or simulation.cost < best[0]):
                best = simulation.cost, schedule
                search.report(simulation.cost, graph.baseline_cost, peak_bytes=simulation.peak_bytes)
        return Result(best[1] if best else None)


def greedy_schedule(graph: Graph, limit_bytes: int, *, deadline_s: float = math.inf) -> Schedule | None:
    """Runs GreedyRemat with a memory limit, and returns its schedule; None if the deadline comes first.

    The peak of the schedule may exceed the limit.
    """
    sequence = _Sequence(graph)
    at: int | None = sequence.first
    while at is not None:
        while sequence.memory_bytes(at) > limit_bytes:
            if time.perf_counter() > deadline_s:
                return None
            node = sequence.best_to_drop(at)
            if node is None:
                break
            sequence.drop(node, at)
        sequence.advance(at)
        at = sequence.following[at]
    return Schedule(tuple(sequence.in_order()))


class _Sequence:
    """A growing linked list of occurrences of nodes, and the reads and computations that are still to come.

    An occurrence is an index into `node`, and `label` increases along the list. `reads[v]` and `computes[v]` are the
    occurrences not yet passed that read or compute value v, in the order of the list.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.sizes = graph.sizes_bytes.tolist()
        num_nodes = len(graph.nodes)
        self.node = list(range(num_nodes))
        self.label = [index * _LABEL_GAP for index in range(num_nodes)]
        self.following: list[int | None] = [*range(1, num_nodes), None]
        self.preceding: list[int | None] = [None, *range(num_nodes - 1)]
        self.first = 0
        self.reads = [list(users) for users in graph.users]
        self.computes = [[producer] for producer in graph.producer]
        self.outputs = frozenset(graph.outputs)
        self.live: set[int] = set()
        self.live_bytes = graph.resident_bytes
        # Leaves out nodes that were just recomputed and not read since: dropping those would never end.
        self.droppable: set[int] = set()

    def memory_bytes(self, at: int) -> int:
        """Returns the memory in use while occurrence `at` runs, according to the present list."""
        node = self.graph.nodes[self.node[at]]
        memory = self.live_bytes + sum(self.sizes[value] for value in node.outputs) + node.workspace_bytes
        return memory - self._taken_over(at)

    def best_to_drop(self, at: int) -> int | None:
        """Returns the node whose dropping reduces the memory in use at `at` the most; None if none does."""
        read_now = set(self.graph.nodes[self.node[at]].inputs)
        best, best_bytes = None, 0
        for index in sorted({self.graph.producer[value] for value in self.live} & self.droppable):
            node = self.graph.nodes[index]
            dropped = [value for value in node.outputs if value in self.live and value not in read_now]
            if not any(self.reads[value] for value in dropped):
                continue
            held = sum(self.sizes[value] for value in node.inputs if value not in self.live)
            reduction = sum(self.sizes[value] for value in dropped) - held
            if reduction > best_bytes:
                best, best_bytes = index, reduction
        return best

    def drop(self, index: int, at: int) -> None:
        """Computes node `index` again just before the next read of one of its values that `at` does not read."""
        node = self.graph.nodes[index]
        read_now = self.graph.nodes[self.node[at]].inputs
        reads = [self.reads[value] for value in node.outputs if value in self.live and value not in read_now]
        occurrence = self._insert(index, min((later[0] for later in reads if later), key=self.label.__getitem__))
        for value in node.outputs:
            insort(self.computes[value], occurrence, key=self.label.__getitem__)
            self._refresh(value)
        for value in node.inputs:
            insort(self.reads[value], occurrence, key=self.label.__getitem__)
            self._refresh(value)
        self.droppable.discard(index)

    def advance(self, at: int) -> None:
        """Passes occurrence `at`: its inputs have been read, and its outputs are in memory."""
        node = self.graph.nodes[self.node[at]]
        for value in node.inputs:
            self.reads[value].remove(at)
            self._allow(self.graph.producer[value])
            self._refresh(value)
        for value in node.outputs:
            self.computes[value].remove(at)
            self._refresh(value)
        if at < len(self.graph.nodes):
            self._allow(self.node[at])

    def in_order(self) -> list[int]:
        """Returns the nodes in the order of their computation."""
        order = []
        at: int | None = self.first
        while at is not None:
            order.append(self.node[at])
            at = self.following[at]
        return order

    def _insert(self, index: int, before: int) -> int:
        preceding = self.preceding[before]
        assert preceding is not None, "the occurrence being run precedes all that are to come"
        if self.label[before] - self.label[preceding] < 2:
            self._relabel()
        occurrence = len(self.node)
        self.node.append(index)
        self.label.append((self.label[preceding] + self.label[before]) // 2)
        self.following.append(before)
        self.preceding.append(preceding)
        self.following[preceding] = occurrence
        self.preceding[before] = occurrence
        return occurrence

    def _relabel(self) -> None:
        at: int | None = self.first
        label = 0
        while at is not None:
            self.label[at] = label
            label += _LABEL_GAP
            at = self.following[at]

    def _allow(self, index: int) -> None:
        if self.graph.nodes[index].recomputable:
            self.droppable.add(index)

    def _refresh(self, value: int) -> None:
        live = self._is_live(self.reads[value], value)
        if live and value not in self.live:
            self.live.add(value)
            self.live_bytes += self.sizes[value]
        elif not live and value in self.live:
            self.live.remove(value)
            self.live_bytes -= self.sizes[value]

    def _is_live(self, reads: list[int], value: int) -> bool:
        """Returns whether `reads`, or the end, need the copy that was made last."""
        computes = self.computes[value]
        if not computes:
            return bool(reads) or value in self.outputs
        return bool(reads) and self.label[reads[0]] < self.label[computes[0]]

    def _taken_over(self, at: int) -> int:
        node = self.graph.nodes[self.node[at]]
        if not node.inplace or not node.outputs:
            return 0
        size = self.sizes[node.outputs[0]]
        dying = (self.sizes[value] == size and not self._is_live(self.reads[value][1:], value) for value in node.inputs)
        return size if any(dying) else 0
