"""Constrains which nodes of a graph a schedule computes again, by a graph that can express nothing else.

A node that is kept may not be computed twice. Where a node is to be recomputed, the backward pass reads a twin of it,
which cannot run before the forward pass has ended: to retain its results from forward to backward can then not be
written down. Every solver honours constraints so, and its bounds and proofs hold for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkmate_tf.errors import GraphError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule


@dataclass(frozen=True)
class Constraints:
    """Constraints are on the nodes of one graph.

    Args:
        keep: nodes that are computed once.
        recompute: forward nodes whose results are not retained from the forward to the backward pass.
    """

    keep: frozenset[int] = frozenset()
    recompute: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Tells whether there are any."""
        return bool(self.keep or self.recompute)


@dataclass(frozen=True)
class ConstrainedGraph:
    """A constrained graph has the nodes of another one, and twins of those that the backward pass recomputes.

    Args:
        nodes: the node of the original graph that each node is, or is a twin of, [num_nodes].
        twins: node of the original graph -> its twin.
        first: node of the original graph -> the node that is not its twin; the twin where the forward pass has no use
            for the node.
        end: the node after which the forward pass has ended; -1 without twins.
    """

    graph: Graph
    nodes: tuple[int, ...]
    twins: Mapping[int, int]
    first: Mapping[int, int]
    end: int

    def take_back(self, schedule: Schedule) -> Schedule:
        """Returns a schedule of this graph as one of the original graph."""
        return Schedule(tuple(self.nodes[node] for node in schedule.order), schedule.fetches)

    def hand_over(self, schedule: Schedule) -> Schedule:
        """Returns a schedule of the original graph that meets the constraints as one of this graph."""
        ended = False
        order = []
        for node in schedule.order:
            order.append(self.twins[node] if ended and node in self.twins else self.first[node])
            ended = ended or order[-1] == self.end
        return Schedule(tuple(order), schedule.fetches)


def constrain(graph: Graph, constraints: Constraints) -> ConstrainedGraph:
    """Returns a graph whose schedules are those of another one that meet constraints.

    A twin comes right before the first node that reads it, and reads a value without bytes of the last forward node
    that the backward pass reads.

    Raises GraphError where a node cannot be recomputed: it must run exactly once, or is not of the forward pass.

    >>> forward = Node("relu", "Relu", inputs=(), outputs=(0,), cost=2)
    >>> loss = Node("loss", "Mean", inputs=(0,), outputs=(1,), cost=1)
    >>> backward = Node("relu_grad", "ReluGrad", inputs=(0, 1), outputs=(2,), cost=3, is_backward=True)
    >>> values = (Value("y", 400), Value("l", 4), Value("dx", 400))
    >>> found = constrain(Graph((forward, loss, backward), values, outputs=(2,)), Constraints(recompute=frozenset({0})))
    >>> [node.name for node in found.graph.nodes], found.nodes
    (['relu', 'loss', 'relu/again', 'relu_grad'], (0, 1, 0, 2))
    """
    for number in sorted(constraints.recompute):
        node = graph.nodes[number]
        if node.is_backward or not node.recomputable or number in constraints.keep:
            why = "of the backward pass" if node.is_backward else "one that must run exactly once"
            why = "one to keep" if number in constraints.keep else why
            raise GraphError(f"node {node.name} of {graph.name!r} cannot be recomputed: it is {why}")
    return _Constrainer(graph, constraints).run()


def list_broken(graph: Graph, schedule: Schedule, constraints: Constraints) -> list[str]:
    """Says which nodes a schedule computes twice, or retains from forward to backward, against constraints."""
    counts: dict[int, int] = {}
    newest: dict[int, int] = {}
    end = _find_end(graph)
    ended_at: int | None = None
    broken: dict[str, None] = {}
    for step, number in enumerate(schedule.order):
        node = graph.nodes[number]
        counts[number] = counts.get(number, 0) + 1
        if number in constraints.keep and counts[number] > 1:
            broken[f"{node.name} is computed twice"] = None
        for value in node.inputs if node.is_backward or ended_at is not None else ():
            source = graph.producer[value]
            if source in constraints.recompute and (ended_at is None or newest[source] <= ended_at):
                broken[f"{graph.nodes[source].name} is retained for {node.name}"] = None
        newest[number] = step
        if number == end and ended_at is None:
            ended_at = step
    return list(broken)


class _Constrainer:
    """Builds a constrained graph: nodes in their order, each twin where the backward pass first needs it."""

    def __init__(self, graph: Graph, constraints: Constraints):
        self.graph = graph
        self.constraints = constraints
        self.end = _find_end(graph) if constraints.recompute else -1
        self.values = list(graph.values)
        self.nodes: list[Node] = []
        self.of: list[int] = []
        self.first: dict[int, int] = {}
        self.twins: dict[int, int] = {}
        self.again: dict[int, int] = {}  # value -> the one that a twin yields
        self.late = self.find_late()
        self.ended = len(self.values)  # the value without bytes
        if self.end >= 0:
            self.values.append(Value("end of the forward pass", 0))

    def run(self) -> ConstrainedGraph:
        for number, node in enumerate(self.graph.nodes):
            if number in self.late:
                continue
            inputs = self.read(node.inputs) if node.is_backward else node.inputs
            outputs = (*node.outputs, self.ended) if number == self.end else node.outputs
            recomputable = node.recomputable and number not in self.constraints.keep
            self.first[number] = len(self.nodes)
            self.add(number, replace(node, inputs=inputs, outputs=outputs, recomputable=recomputable))
        graph = replace(self.graph, nodes=tuple(self.nodes), values=tuple(self.values))
        end = self.first[self.end] if self.end >= 0 else -1
        return ConstrainedGraph(graph, tuple(self.of), self.twins, self.first, end)

    def find_late(self) -> frozenset[int]:
        """Finds nodes to be recomputed whose results only the backward pass needs, so that it computes them first."""
        late: set[int] = set()
        results = set(self.graph.outputs)
        for number in sorted(self.constraints.recompute - {self.end}, reverse=True):
            users = self.graph.successors[number]
            needed_late = all(self.graph.nodes[user].is_backward or user in late for user in users)
            if users and needed_late and results.isdisjoint(self.graph.nodes[number].outputs):
                late.add(number)
        return frozenset(late)

    def read(self, values: Sequence[int]) -> tuple[int, ...]:
        """Returns what a node of the backward pass reads in the place of values, after adding the twins that yield
        them.
        """
        for value in values:
            source = self.graph.producer[value]
            if source in self.constraints.recompute and source not in self.twins:
                self.add_twin(source)
        return tuple(self.again.get(value, value) for value in values)

    def add_twin(self, number: int) -> None:
        """Adds the twin of a node, after those of nodes that it reads."""
        waiting = [number]
        while waiting:
            current = waiting[-1]
            sources = {self.graph.producer[value] for value in self.graph.nodes[current].inputs}
            missing = [s for s in sorted(sources) if s in self.constraints.recompute and s not in self.twins]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if current not in self.twins:
                self.add_one_twin(current)

    def add_one_twin(self, number: int) -> None:
        node = self.graph.nodes[number]
        inputs = tuple(self.again.get(value, value) for value in node.inputs)
        for value in () if number in self.late else node.outputs:
            self.again[value] = len(self.values)
            self.values.append(replace(self.graph.values[value], name=f"{self.graph.values[value].name}/again"))
        outputs = tuple(self.again.get(value, value) for value in node.outputs)
        self.twins[number] = len(self.nodes)
        self.first.setdefault(number, len(self.nodes))
        twin = replace(node, name=f"{node.name}/again", inputs=(*inputs, self.ended), outputs=outputs, is_backward=True)
        self.add(number, twin)

    def add(self, number: int, node: Node) -> None:
        self.of.append(number)
        self.nodes.append(node)


def _find_end(graph: Graph) -> int:
    """Finds the last forward node that the backward pass reads; -1 without any."""
    readers = (
        number
        for number, node in enumerate(graph.nodes)
        if not node.is_backward and any(graph.nodes[user].is_backward for user in graph.successors[number])
    )
    return max(readers, default=-1)
