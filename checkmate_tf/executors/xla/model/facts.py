"""Collects the facts about a training graph's nodes from which the results in buffers are chosen."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.hlo.kernels import Kernel
from checkmate_tf.executors.xla.model.index import KernelIndex, index_kernels
from checkmate_tf.executors.xla.rules.rule import Lowering
from checkmate_tf.graph import Graph
from checkmate_tf.tracing.extraction import TrainingGraph


@dataclass(frozen=True)
class LoweredNodes:
    """The nodes with an operation that a rule lowers.

    Args:
        late: nodes with the stock step's kernels, none of which runs before the node's inputs exist.
        otherwise: nodes with other kernels.
        written_over: nodes whose result is written over an input.
        products: node -> the products that it sums, which are written as one product with it.
        parts: node -> the padded gradients that it sums, which are concatenated instead.
    """

    late: frozenset[int]
    otherwise: frozenset[int]
    written_over: frozenset[int]
    products: Mapping[int, tuple[int, ...]]
    parts: Mapping[int, tuple[int, ...]]

    def list_within(self, node: int) -> tuple[int, ...]:
        """Returns the nodes that are written as one with a node, their only reader."""
        return self.products.get(node, self.parts.get(node, ()))


@dataclass(frozen=True)
class Facts:
    """Facts about nodes, from the stock step's kernels and the rules for operations.

    Args:
        constants: nodes that read only constants, and that XLA computes at compile time.
    """

    index: KernelIndex
    lowered: LoweredNodes
    constants: frozenset[int]

    @property
    def training_graph(self) -> TrainingGraph:
        return self.index.training_graph

    @property
    def graph(self) -> Graph:
        return self.index.training_graph.graph

    @property
    def small_bytes(self) -> int:
        """Returns the size up to which a tensor does not matter."""
        return self.training_graph.grouping.small_bytes

    @cached_property
    def large(self) -> frozenset[int]:
        """Returns the nodes with only large results that may be computed within their readers."""
        graph = self.graph
        return frozenset(
            node
            for node, described in enumerate(graph.nodes)
            if self.may_fuse(node)
            and node not in self.constants
            and (graph.sizes_bytes[list(described.outputs)] > self.small_bytes).all()
        )

    @cached_property
    def for_sums(self) -> frozenset[int]:
        """Returns the kernels that only summed products read. Written as one product, they read other kernels."""
        nodes = {number for node, products in self.lowered.products.items() for number in (node, *products)}
        kernels = frozenset().union(*(self.index.kernels[node] for node in nodes))
        return frozenset(k for k, readers in enumerate(self.index.readers) if readers and readers <= kernels)

    def may_fuse(self, node: int) -> bool:
        """Returns whether a node may be left out if nothing reads it."""
        described = self.graph.nodes[node]
        return described.recomputable and bool(described.outputs) and self._returned.isdisjoint(described.outputs)

    @cached_property
    def _returned(self) -> frozenset[int]:
        return frozenset(self.graph.outputs)

    def sums_gradients(self, node: int) -> bool:
        """Returns whether a node adds up the gradients that several readers of a value yield.

        If readers computed the sum within themselves, each would hold all its terms, and the terms of inner sums.
        """
        return self.graph.nodes[node].op_type == "AddN" or node in self.lowered.parts

    def get_ops(self, node: int) -> Sequence[tf.Operation]:
        """Returns the operations of a node."""
        return self.training_graph.get_node_ops(node)


def find_facts(training_graph: TrainingGraph, stock: Sequence[Kernel], backend: Backend) -> Facts:
    """Returns the facts about a training graph's nodes, from the kernels of its stock step."""
    index = index_kernels(training_graph, stock)
    lowered = _find_lowered(training_graph, backend)
    return Facts(index, lowered, _find_constants(index))


def _find_lowered(training_graph: TrainingGraph, backend: Backend) -> LoweredNodes:
    nodes = range(len(training_graph.graph.nodes))
    found = {node: tuple(_list_lowerings(training_graph, node, backend)) for node in nodes}
    late = frozenset(node for node, each in found.items() if any(lowering.is_late for lowering in each))
    otherwise = frozenset(node for node, each in found.items() if any(not lowering.is_late for lowering in each))
    written_over = frozenset(node for node, each in found.items() if any(lowering.takes_over for lowering in each))
    products, parts = (_find_within(training_graph, found, are_products=which) for which in (True, False))
    return LoweredNodes(late, otherwise, written_over, products, parts)


def _list_lowerings(training_graph: TrainingGraph, node: int, backend: Backend) -> Iterator[Lowering]:
    for op in training_graph.get_node_ops(node):
        lowering = backend.lower(op)
        if lowering is not None:
            yield lowering


def _find_within(
    training_graph: TrainingGraph, lowered: Mapping[int, Sequence[Lowering]], *, are_products: bool
) -> dict[int, tuple[int, ...]]:
    group_of = training_graph.grouping.group_of
    numbers = {op.name: number for number, op in enumerate(training_graph.ops.ops)}
    within = {}
    for node, each in lowered.items():
        ops = (op for lowering in each if lowering.is_product == are_products for op in lowering.within)
        others = {group_of[numbers[op.name]] for op in ops} - {node}
        if others:
            within[node] = tuple(sorted(others))
    return within


def _find_constants(index: KernelIndex) -> frozenset[int]:
    """Returns the nodes that read only constants and that no kernel computes.

    An example is the indices of relative positions (seen in TensorFlow 2.21).
    """
    training_graph = index.training_graph
    graph, grouping, ops = training_graph.graph, training_graph.grouping, training_graph.ops
    computed = frozenset().union(*(kernel.inside for kernel in index.stock))
    found: set[int] = set()

    def is_known(op: int) -> bool:
        operation, node = ops.ops[op], grouping.group_of[op]
        if node >= 0 or operation.type == "Const" or op in grouping.constants:
            return node < 0 or node in found
        sources = ops.inputs[op]
        is_pure = bool(sources) and not operation.op_def.is_stateful
        return is_pure and all(is_known(source) for source, _ in sources)

    for node, described in enumerate(graph.nodes):
        members = grouping.groups[node].members
        sources = {source for member in members for source, _ in ops.inputs[member]} - set(members)
        if described.recomputable and computed.isdisjoint(index.names[node]) and all(map(is_known, sources)):
            found.add(node)
    return frozenset(found)
