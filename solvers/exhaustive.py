"""Searches exhaustively: the oracle for small graphs, written independently of every other solver.

The search is Dijkstra's over states (nodes computed, values held in memory). Every node must be computed once, so its
first computation is free, and the distance of a state is the extra cost of its repeats. A held value can be dropped at
any time at no cost. A node fits if the held values, its outputs and its workspace do.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search

State = tuple[int, int, int]
"""A state: (bit mask of computed nodes, last node recomputed in the stage or -1, bit mask of held values)."""

_DROP = -1


@dataclass(frozen=True)
class Exhaustive(Solver):
    """Finds the optimum in either order, for graphs of about eight nodes.

    Args:
        stages: search only Checkmate's stage space, whatever the problem's order: first computations in the input
            order, and between two of them other nodes in the input order, each at most once. Without it, "fixed" order
            restricts first computations only, so its optimum can be lower.
        max_states: the search stops after this many states (about 400 bytes each).
    """

    stages: bool = False
    max_states: int = 2_000_000

    def search(self, search: Search) -> Result:
        problem = search.problem
        space = _Space.of(problem, stages=self.stages)
        start: State = (0, -1, 0)
        distance = {start: 0}
        reached_by: dict[State, tuple[State, int]] = {}
        # Among equally cheap states, the one with the most computed nodes comes first.
        queue: list[tuple[int, int, State]] = [(0, 0, start)]
        extra = 0
        done: set[State] = set()
        while queue:
            extra, _, state = heapq.heappop(queue)
            if state in done:
                continue
            done.add(state)
            if space.is_goal(state):
                schedule = _path(state, reached_by)
                return self._found(problem, schedule, extra, len(done))
            if len(distance) > self.max_states or search.remaining_s < 0:
                return self._found(problem, None, extra, len(done))
            for node, cost, following in space.moves(state):
                if following not in distance or extra + cost < distance[following]:
                    distance[following] = extra + cost
                    reached_by[following] = (state, node)
                    heapq.heappush(queue, (extra + cost, -following[0].bit_count(), following))
        return Result(None, infeasible_in="stages" if self.stages else problem.order, stats={"states": len(done)})

    def _found(self, problem: Problem, schedule: Schedule | None, extra: int, states: int) -> Result:
        bound = problem.graph.baseline_cost + extra
        return Result(schedule, bound, "fixed" if self.stages else problem.order, stats={"states": states})


@dataclass(frozen=True)
class _Space:
    """The moves of a problem over bit masks. Bit i of a mask stands for node or value i."""

    graph: Graph
    budget_bytes: int
    fixed: bool
    stages: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    takeovers: tuple[tuple[int, ...], ...]
    wanted: int

    @staticmethod
    def of(problem: Problem, *, stages: bool) -> "_Space":
        graph = problem.graph
        return _Space(
            graph,
            problem.budget_bytes,
            fixed=stages or problem.order == "fixed",
            stages=stages,
            inputs=tuple(_mask(node.inputs) for node in graph.nodes),
            outputs=tuple(_mask(node.outputs) for node in graph.nodes),
            takeovers=tuple(_takeovers(graph, node) for node in range(len(graph.nodes))),
            wanted=_mask(graph.outputs),
        )

    def is_goal(self, state: State) -> bool:
        computed, _, held = state
        return computed.bit_count() == len(self.graph.nodes) and held & self.wanted == self.wanted

    def moves(self, state: State) -> Iterator[tuple[int, int, State]]:
        """Yields each move from a state, (node computed or _DROP, extra cost, next state)."""
        computed, last, held = state
        for value in range(len(self.graph.values)):
            if held >> value & 1:
                yield _DROP, 0, (computed, last, held & ~(1 << value))
        for node in self._candidates(computed, last):
            again = computed >> node & 1
            if self.inputs[node] & ~held or (again and not self.graph.nodes[node].recomputable):
                continue
            cost = self.graph.nodes[node].cost if again else 0
            now = computed | 1 << node
            latest = node if again and self.stages else -1
            after = held | self.outputs[node]
            needed = self._memory_bytes(node, after)
            if needed <= self.budget_bytes:
                yield node, cost, (now, latest, after)
            for value in self.takeovers[node]:
                if needed - self.graph.values[value].size_bytes <= self.budget_bytes:
                    yield node, cost, (now, latest, after & ~(1 << value))

    def _candidates(self, computed: int, last: int) -> range:
        num_nodes = len(self.graph.nodes)
        frontier = computed.bit_count()
        if not self.fixed:
            return range(num_nodes)
        if not self.stages:
            return range(min(frontier + 1, num_nodes))
        return range(last + 1, frontier + 1) if frontier < num_nodes else range(0)

    def _memory_bytes(self, node: int, held: int) -> int:
        sizes = sum(value.size_bytes for index, value in enumerate(self.graph.values) if held >> index & 1)
        return self.graph.resident_bytes + sizes + self.graph.nodes[node].workspace_bytes


def _takeovers(graph: Graph, index: int) -> tuple[int, ...]:
    """Returns the inputs whose storage the first output of an in-place node can take over if they end there."""
    node = graph.nodes[index]
    if not node.inplace or not node.outputs:
        return ()
    size_bytes = graph.values[node.outputs[0]].size_bytes
    return tuple(value for value in node.inputs if graph.values[value].size_bytes == size_bytes)


def _mask(indices: tuple[int, ...]) -> int:
    return sum(1 << index for index in indices)


def _path(state: State, reached_by: dict[State, tuple[State, int]]) -> Schedule:
    order = []
    while state in reached_by:
        state, node = reached_by[state]
        if node != _DROP:
            order.append(node)
    return Schedule.of(reversed(order))
