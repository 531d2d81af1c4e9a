"""Defines the immutable training graph of nodes that compute values, and checks that it is well formed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from checkmate_tf.errors import GraphError, quote
from checkmate_tf.graph_arrays import GraphArrays, Rows, mark

_LARGEST = 10**14
_LARGEST_SUM = 10**17  # limit of the sum of all sizes, and of all costs: schedules with many repeats fit in 64 bits


@dataclass(frozen=True, slots=True)
class Value:
    """One stored tensor. Several views of a tensor are one value.

    Args:
        name: a name for people.
        size_bytes: its size.
        offload_cost: cost of the copy to host memory, paid once, in the graph's `cost_unit`.
        fetch_cost: cost of each copy back. Both are None if the value cannot be offloaded.

    Example:

    >>> Value("dense/Relu:0", size_bytes=4096).size_bytes
    4096
    """

    name: str
    size_bytes: int
    offload_cost: int | None = None
    fetch_cost: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One group of operations that runs as a unit.

    Args:
        inputs: indices of the values that it reads, each once.
        outputs: indices of the values that it yields. Each value has one producer.
        cost: in the graph's `cost_unit`.
        workspace_bytes: memory held only while the node runs.
        recomputable: False for stateful and random nodes, which must run exactly once.
        inplace: whether its first output may take over the storage of an equally large input that ends here.

    Example:

    >>> node = Node("relu", "Relu", inputs=(0,), outputs=(1,), cost=2, inplace=True)
    >>> node.inputs, node.outputs, node.recomputable
    ((0,), (1,), True)
    """

    name: str
    op_type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: int
    workspace_bytes: int = 0
    is_backward: bool = False
    recomputable: bool = True
    inplace: bool = False


@dataclass(frozen=True)
class Graph:
    """The forward and backward nodes of one training step, in the input topological order.

    Args:
        nodes: the nodes, each of which reads only values of earlier nodes.
        values: the values, to which nodes refer by index.
        outputs: values that must exist at the end of the step.
        resident_bytes: memory that is always held: parameters, optimizer state, batch.
        cost_unit: "ns" once profiled.
        copies_hide: whether nodes run as fast beside copies of offloaded values as without. If not, the cost of a
            schedule is the sum over its nodes and its copies. On a CPU, copies take memory bandwidth and a core.

    Raises:
        GraphError: unless every value has exactly one producer, every node reads only values produced before it, and
            all numbers are integers of at least zero, of at most 10**14 each and 10**17 together. The message names the
            place.

    Example:

    >>> forward = Node("relu", "Relu", inputs=(), outputs=(0,), cost=2)
    >>> backward = Node("relu_grad", "ReluGrad", inputs=(0,), outputs=(1,), cost=3, is_backward=True)
    >>> graph = Graph((forward, backward), (Value("y", 400), Value("dx", 400)), outputs=(1,))
    >>> graph.baseline_cost, graph.predecessors
    (5, ((), (0,)))
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    outputs: tuple[int, ...] = ()
    resident_bytes: int = 0
    cost_unit: str = "unit"
    name: str = "graph"
    source: str = ""
    copies_hide: bool = True

    def __post_init__(self) -> None:
        _check(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out cached properties, because one thread may pickle a graph while another adds one."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """Returns the node that computes each value, [num_values]."""
        producer = [0] * len(self.values)
        for index, node in enumerate(self.nodes):
            for value in node.outputs:
                producer[value] = index
        return tuple(producer)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Lists the nodes that read each value, ascending, [num_values]."""
        users: list[list[int]] = [[] for _ in self.values]
        for index, node in enumerate(self.nodes):
            for value in node.inputs:
                users[value].append(index)
        return tuple(map(tuple, users))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Lists the nodes whose values each node reads, ascending, each once, [num_nodes]."""
        return tuple(tuple(sorted({self.producer[v] for v in node.inputs})) for node in self.nodes)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Lists the nodes that read a value of each node, ascending, each once, [num_nodes]."""
        return tuple(tuple(sorted({u for v in node.outputs for u in self.users[v]})) for node in self.nodes)

    @cached_property
    def sizes_bytes(self) -> np.ndarray:
        """Returns the size of each value in bytes, int64 [num_values]."""
        return np.array([value.size_bytes for value in self.values], dtype=np.int64)

    @cached_property
    def costs(self) -> np.ndarray:
        """Returns the cost of each node in the graph's `cost_unit`, int64 [num_nodes]."""
        return np.array([node.cost for node in self.nodes], dtype=np.int64)

    @cached_property
    def arrays(self) -> GraphArrays:
        """Returns nodes and values as flat arrays."""
        num_values = len(self.values)
        inputs = Rows.of([node.inputs for node in self.nodes])
        outputs = Rows.of([node.outputs for node in self.nodes])
        users = inputs.transpose(num_values)
        is_output = mark(self.outputs, num_values)
        inplace = [node.outputs[0] if node.inplace and node.outputs else -1 for node in self.nodes]
        # For a value without users, this takes the entry before its row, which is then replaced.
        last_user = np.where(users.lengths, np.append(users.index, -1)[users.start[1:] - 1], -1)
        return GraphArrays(
            inputs=inputs,
            outputs=outputs,
            users=users,
            producer=outputs.transpose(num_values).index,
            last_use=np.where(is_output, len(self.nodes), last_user),
            is_output=is_output,
            workspace_bytes=np.array([node.workspace_bytes for node in self.nodes], dtype=np.int64),
            recomputable=np.array([node.recomputable for node in self.nodes]),
            inplace_output=np.array(inplace, dtype=np.int64),
            takes_over_bytes=np.append(self.sizes_bytes, -1)[inplace],
        )

    @cached_property
    def baseline_cost(self) -> int:
        """Returns the cost of computing every node once."""
        return int(self.costs.sum())


def _check(graph: Graph) -> None:
    for texts in ("name", "cost_unit", "source"):
        _check_text(getattr(graph, texts), f"{texts} of the graph")
    _check_items(graph.nodes, Node, "nodes")
    _check_items(graph.values, Value, "values")
    if not graph.nodes:
        raise GraphError(f"graph {graph.name!r} has no nodes")
    _check_number(graph.resident_bytes, f"resident_bytes of graph {graph.name!r}")
    if not isinstance(graph.copies_hide, bool):
        raise GraphError(f"copies_hide of graph {graph.name!r} is {quote(graph.copies_hide)}; it must be True or False")
    for index, stored in enumerate(graph.values):
        _check_text(stored.name, f"name of value {index}")
        place = f"value {index} ({stored.name})"
        _check_number(stored.size_bytes, f"size_bytes of {place}")
        for kind, cost in (("offload", stored.offload_cost), ("fetch", stored.fetch_cost)):
            if cost is not None:
                _check_number(cost, f"{kind}_cost of {place}")
        if (stored.offload_cost is None) != (stored.fetch_cost is None):
            raise GraphError(f"{place} has one of offload_cost and fetch_cost; give both, or neither")
    produced: set[int] = set()
    for index, node in enumerate(graph.nodes):
        _check_text(node.name, f"name of node {index}")
        place = f"node {index} ({node.name})"
        _check_text(node.op_type, f"op_type of {place}")
        _check_number(node.cost, f"cost of {place}")
        _check_number(node.workspace_bytes, f"workspace_bytes of {place}")
        _check_indices(node.inputs, len(graph.values), f"inputs of {place}")
        _check_indices(node.outputs, len(graph.values), f"outputs of {place}")
        for value in node.inputs:
            if value not in produced:
                raise GraphError(
                    f"{place} reads value {value} ({graph.values[value].name}), which no earlier node computes: "
                    "the nodes are not in topological order, or the graph has a cycle"
                )
        for value in node.outputs:
            if value in produced:
                raise GraphError(f"value {value} ({graph.values[value].name}) has two producers, one is {place}")
            produced.add(value)
    missing = set(range(len(graph.values))) - produced
    if missing:
        raise GraphError(f"no node computes value {min(missing)} ({graph.values[min(missing)].name})")
    _check_indices(graph.outputs, len(graph.values), f"outputs of graph {graph.name!r}")
    _check_sums(graph)


def _check_items(items: Any, kind: type, what: str) -> None:
    if not isinstance(items, (tuple, list)) or not all(isinstance(item, kind) for item in items):
        raise GraphError(f"{what} of the graph are {quote(items)}; they must be a tuple of {kind.__name__}")


def _check_text(text: Any, place: str) -> None:
    if not isinstance(text, str):
        raise GraphError(f"{place} is {quote(text)}; it must be text")


def _check_number(number: int, place: str) -> None:
    if type(number) is int and 0 <= number <= _LARGEST:  # the common case first, for speed
        return
    if isinstance(number, float) and not math.isfinite(number):
        raise GraphError(f"{place} is {number}; it must be a finite integer of at least 0")
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
        raise GraphError(f"{place} is {quote(number)}; it must be an integer of at least 0")
    if number > _LARGEST:
        raise GraphError(
            f"{place} is {quote(int(number))}; it must be at most {_LARGEST}, so that sums stay within 64 bits"
        )


def _check_sums(graph: Graph) -> None:
    size_bytes = graph.resident_bytes + sum(int(value.size_bytes) for value in graph.values)
    transfers = sum(int(value.offload_cost or 0) + int(value.fetch_cost or 0) for value in graph.values)
    cost = transfers + sum(int(node.cost) for node in graph.nodes)
    for number, what in ((size_bytes, "sizes"), (cost, "costs")):
        if number > _LARGEST_SUM:
            raise GraphError(
                f"the {what} of graph {graph.name!r} sum to {number}; they must come to at most {_LARGEST_SUM}, so "
                "that sums stay within 64 bits: give them in a larger unit"
            )


def _check_indices(indices: Sequence[int], limit: int, place: str) -> None:
    if not isinstance(indices, (tuple, list)):
        raise GraphError(f"{place} are {quote(indices)}; they must be a tuple of indices of values")
    for index in indices:
        if type(index) is int and 0 <= index < limit:
            continue
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < limit:
            raise GraphError(f"{place}: {quote(index)} is not the index of a value (0 to {limit - 1})")
    if len(set(indices)) != len(indices):
        raise GraphError(f"{place} name a value twice: {quote(list(indices))}")


def check_graph(graph: Any) -> None:
    """Raises GraphError unless the argument is a graph."""
    if not isinstance(graph, Graph):
        raise GraphError(f"graph is {quote(graph)}; it must be a Graph, such as load_graph returns")


def inplace_inputs(graph: Graph, node: Node) -> tuple[int, ...]:
    """Lists the inputs whose storage the node's first output can take over."""
    if not node.inplace or not node.outputs:
        return ()
    size_bytes = graph.values[node.outputs[0]].size_bytes
    return tuple(value for value in node.inputs if size_bytes and graph.values[value].size_bytes == size_bytes)
