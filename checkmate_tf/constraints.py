"""Constrains which nodes a schedule computes again, by a graph in which only such schedules can be written.

A node to keep may not be computed twice. For a node to recompute, the backward pass reads a twin of it, which cannot
run before the forward pass has ended. No schedule can then retain its results from the forward to the backward pass.
Every solver respects such constraints, and its bounds and proofs hold for them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkmate_tf.errors import GraphError, ScheduleError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule, find_retention

_END = "end of the forward pass"


@dataclass(frozen=True)
class Constraints:
    """Constraints on the nodes of one graph. The forward pass is all nodes before the first backward one.

    Args:
        keep: nodes that are computed once.
        recompute: nodes of the forward pass, which computes them once and does not retain their results at its end. The
            backward pass computes those that it reads again. Other nodes of the forward pass that read such a result
            are computed once, because they could not be computed again without it.
    """

    keep: frozenset[int] = frozenset()
    recompute: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Returns whether there are any constraints."""
        return bool(self.keep or self.recompute)


@dataclass(frozen=True)
class ConstrainedGraph:
    """A graph with the nodes of another one, and twins of those that the backward pass recomputes.

    A schedule costs the same in both graphs, and takes no more memory in the original one. Values of the original graph
    keep their indices.

    Args:
        original: the other graph.
        nodes: for each node, the node of `original` that it is, or whose twin it is, [num_nodes]; None for the end of
            the forward pass, a node without bytes and cost.
        twins: node of `original` -> its twin.
        first: node of `original` -> the node that is not its twin, or the twin if the forward pass does not use the
            node.
    """

    graph: Graph
    original: Graph
    nodes: tuple[int | None, ...]
    twins: Mapping[int, int]
    first: Mapping[int, int]

    def take_back(self, schedule: Schedule) -> Schedule:
        """Returns a schedule of this graph as one of the original graph."""
        nodes = [self.nodes[node] for node in schedule.order]
        left_out = [position for position, node in enumerate(nodes) if node is None]
        fetches, offloads = (
            tuple((position - sum(one < position for one in left_out), value) for position, value in pairs)
            for pairs in (schedule.fetches, schedule.offloads)
        )
        return Schedule(tuple(node for node in nodes if node is not None), fetches, offloads)

    def hand_over(self, schedule: Schedule) -> Schedule | None:
        """Returns a schedule of the original graph as one of this graph; None if it breaks the constraints."""
        late = {number for number, twin in self.twins.items() if self.first[number] == twin}
        passing = set(find_forward(self.original)) - late
        end = [self.nodes.index(None)] if self.twins else []
        order = [] if passing else end[:]
        seen: set[int] = set()
        moved: list[int] = []  # the new position of each old one
        for node in schedule.order:
            moved.append(len(order))
            order.append(self.twins.get(node, self.first[node]) if node in seen else self.first[node])
            seen.add(node)
            if node in passing:
                passing.remove(node)
                order += [] if passing else end
        fetches, offloads = (
            tuple((moved[position], value) for position, value in pairs)
            for pairs in (schedule.fetches, schedule.offloads)
        )
        handed = Schedule(tuple(order), fetches, offloads)
        try:
            check_schedule(self.graph, handed)
        except ScheduleError:
            return None
        return handed


def constrain(graph: Graph, constraints: Constraints) -> ConstrainedGraph:
    """Returns a graph whose schedules are those of another graph that satisfy constraints.

    A twin comes right before the first node that reads it.

    Raises GraphError if a node is both to be kept and to be recomputed, or cannot be recomputed (see `explain_fixed`).

    >>> forward = Node("relu", "Relu", inputs=(), outputs=(0,), cost=2)
    >>> loss = Node("loss", "Mean", inputs=(0,), outputs=(1,), cost=1)
    >>> backward = Node("relu_grad", "ReluGrad", inputs=(0, 1), outputs=(2,), cost=3, is_backward=True)
    >>> values = (Value("y", 400), Value("l", 4), Value("dx", 400))
    >>> found = constrain(Graph((forward, loss, backward), values, outputs=(2,)), Constraints(recompute=frozenset({0})))
    >>> [node.name for node in found.graph.nodes], found.nodes
    (['relu', 'loss', 'end of the forward pass', 'relu/again', 'relu_grad'], (0, 1, None, 0, 2))
    """
    for number in sorted(constraints.recompute):
        why = "it is one to keep" if number in constraints.keep else explain_fixed(graph, number)
        if why is not None:
            raise GraphError(f"node {graph.nodes[number].name} of {graph.name!r} cannot be recomputed: {why}")
    return _Constrainer(graph, constraints).run()


def explain_fixed(graph: Graph, number: int) -> str | None:
    """Returns the reason why the backward pass cannot recompute a node instead of retaining it; None if it can."""
    node = graph.nodes[number]
    if number not in find_forward(graph):
        return "it is not of the forward pass"
    if not node.recomputable:
        return "it must run exactly once"
    if not set(graph.outputs).isdisjoint(node.outputs):
        return "the step returns its result"
    return None


def list_broken(graph: Graph, schedule: Schedule, constraints: Constraints) -> list[str]:
    """Lists the constraints that a schedule breaks, in words: nodes computed twice or retained for backward."""
    first: dict[int, int] = {}
    for position, number in enumerate(schedule.order):
        first.setdefault(number, position)
    passing = set(find_forward(graph)) - _find_late(graph, constraints.recompute)
    end = max((first[number] for number in passing), default=-1)
    once = constraints.keep | _find_readers(graph, constraints.recompute)
    counts = Counter(schedule.order)
    broken = [f"{graph.nodes[n].name} is computed twice" for n in sorted(once - constraints.recompute) if counts[n] > 1]
    early = Counter(schedule.order[: end + 1])
    broken += [f"{graph.nodes[n].name} is computed early again" for n in sorted(constraints.recompute) if early[n] > 1]
    intervals = find_retention(graph, schedule)
    retained = {
        graph.producer[value]: None
        for value, start, last in zip(intervals.value, intervals.start, intervals.end, strict=True)
        if start <= end < last
    }
    again = (number for number in retained if number in constraints.recompute)
    return broken + [f"{graph.nodes[number].name} is retained for the backward pass" for number in again]


def find_forward(graph: Graph) -> range:
    """Returns the nodes of the forward pass: those before the first backward one."""
    return range(next((number for number, node in enumerate(graph.nodes) if node.is_backward), len(graph.nodes)))


def _find_readers(graph: Graph, recompute: frozenset[int]) -> frozenset[int]:
    """Returns the nodes of the forward pass that read the results of nodes to recompute."""
    forward = find_forward(graph)
    return frozenset(user for number in recompute for user in graph.successors[number] if user in forward)


def _find_late(graph: Graph, recompute: frozenset[int]) -> frozenset[int]:
    """Returns the nodes to recompute whose results only the backward pass needs, so that it computes them first."""
    forward, late = find_forward(graph), set[int]()
    for number in sorted(recompute, reverse=True):
        users = graph.successors[number]
        if users and all(user not in forward or user in late for user in users):
            late.add(number)
    return frozenset(late)


class _Constrainer:
    """Builds a constrained graph: nodes in their order, and each twin where the backward pass first needs it."""

    def __init__(self, graph: Graph, constraints: Constraints):
        self.graph = graph
        self.constraints = constraints
        self.forward = find_forward(graph)
        self.late = _find_late(graph, constraints.recompute)
        self.values = list(graph.values)
        self.nodes: list[Node] = []
        self.of: list[int | None] = []
        self.first: dict[int, int] = {}
        self.twins: dict[int, int] = {}
        self.again: dict[int, int] = {}  # value -> the twin's value
        self.ended = -1  # the value without bytes that the end of the forward pass yields

    def run(self) -> ConstrainedGraph:
        """Adds all nodes, with the twins that the constraints require."""
        again, tokens = self.constraints.recompute, self.make_tokens()
        once = self.constraints.keep | again | _find_readers(self.graph, again)
        for number, node in enumerate(self.graph.nodes):
            if number in self.late:
                continue
            if number == self.forward.stop and self.constraints.recompute:
                self.add_end(tuple(tokens.values()))
            inputs = node.inputs if number in self.forward else self.read(node.inputs)
            outputs = (*node.outputs, tokens[number]) if number in tokens else node.outputs
            self.first[number] = len(self.nodes)
            recomputable = node.recomputable and number not in once
            self.add(number, replace(node, inputs=inputs, outputs=outputs, recomputable=recomputable))
        graph = replace(self.graph, nodes=tuple(self.nodes), values=tuple(self.values))
        return ConstrainedGraph(graph, self.graph, tuple(self.of), self.twins, self.first)

    def make_tokens(self) -> dict[int, int]:
        """Makes values without bytes for the nodes that end the forward pass. They make twins wait for these nodes."""
        if not self.constraints.recompute:
            return {}
        passing = [number for number in self.forward if number not in self.late]
        inner = {before for number in passing for before in self.graph.predecessors[number]}
        return {n: self.add_value(Value(f"{self.graph.nodes[n].name}/ran", 0)) for n in passing if n not in inner}

    def add_end(self, tokens: tuple[int, ...]) -> None:
        """Adds the node at the end of the forward pass."""
        self.ended = self.add_value(Value(_END, 0))
        self.add(None, Node(_END, "End", tokens, (self.ended,), cost=0, recomputable=False))

    def read(self, values: Sequence[int]) -> tuple[int, ...]:
        """Returns the values that the backward pass reads instead, after adding the twins that yield them."""
        missing: set[int] = set()
        waiting = list(values)
        while waiting:
            source = self.graph.producer[waiting.pop()]
            if source in self.constraints.recompute and source not in self.twins and source not in missing:
                missing.add(source)
                waiting += self.graph.nodes[source].inputs
        for number in sorted(missing):
            self.add_twin(number)
        return tuple(self.again.get(value, value) for value in values)

    def add_twin(self, number: int) -> None:
        """Adds the twin of a node, after those of nodes that it reads."""
        node = self.graph.nodes[number]
        inputs = tuple(self.again.get(value, value) for value in node.inputs)
        for value in () if number in self.late else node.outputs:
            known = self.graph.values[value]  # Fetching a value from host memory does not compute it again.
            fresh = Value(f"{known.name}/again", known.size_bytes)
            self.again[value] = self.add_value(fresh)
        outputs = tuple(self.again.get(value, value) for value in node.outputs)
        self.twins[number] = len(self.nodes)
        self.first.setdefault(number, len(self.nodes))
        twin = replace(node, name=f"{node.name}/again", inputs=(*inputs, self.ended), outputs=outputs, is_backward=True)
        self.add(number, twin)

    def add_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def add(self, number: int | None, node: Node) -> None:
        self.of.append(number)
        self.nodes.append(node)
