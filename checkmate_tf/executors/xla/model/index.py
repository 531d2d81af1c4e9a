"""Finds the kernels of the stock step that compute each node and each value of the training graph."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from checkmate_tf.executors.xla.hlo.kernels import Kernel
from checkmate_tf.graph import Node
from checkmate_tf.tracing.extraction import TrainingGraph

_PRODUCTS = re.compile("Conv|MatMul|Einsum")


def is_product(op_type: str) -> bool:
    """Returns whether a node or an operation of this type multiplies matrices, or convolves."""
    return bool(_PRODUCTS.search(op_type))


@dataclass(frozen=True)
class KernelIndex:
    """The kernels of the stock step, by the nodes and values that they compute.

    Args:
        stock: all kernels, in the order in which they run. Other fields contain their positions.
        writers: name of an operation -> the kernels that write its result.
        names: of the operations of each node, and of views of its results, which XLA may copy, [num_nodes].
        kernels: those that write each node's results, and those without a name whose results these read, [num_nodes].
    """

    training_graph: TrainingGraph
    stock: tuple[Kernel, ...]
    writers: Mapping[str, tuple[int, ...]]
    names: tuple[frozenset[str], ...]
    kernels: tuple[frozenset[int], ...]

    @cached_property
    def inside(self) -> tuple[frozenset[str], ...]:
        """Returns the names of all operations that the kernels of each node compute, [num_nodes]."""
        return tuple(frozenset(n for k in numbers for n in self.stock[k].inside) for numbers in self.kernels)

    @cached_property
    def read(self) -> tuple[frozenset[int], ...]:
        """Returns the kernels whose results the kernels of each node read, [num_nodes]."""
        return tuple(frozenset(n for k in numbers for n in self.stock[k].reads) for numbers in self.kernels)

    @cached_property
    def readers(self) -> tuple[frozenset[int], ...]:
        """Returns the kernels that read the result of each kernel, [num_kernels]."""
        readers: list[set[int]] = [set() for _ in self.stock]
        for number, kernel in enumerate(self.stock):
            for read in kernel.reads:
                readers[read].add(number)
        return tuple(map(frozenset, readers))

    @cached_property
    def written(self) -> tuple[frozenset[int], ...]:
        """Returns the kernels that write each value, [num_values]."""
        return tuple(self._find_written(value) for value in range(len(self.training_graph.graph.values)))

    @cached_property
    def forward(self) -> frozenset[int]:
        """Returns the kernels that depend on no gradient."""
        described = zip(self.names, self.training_graph.graph.nodes, strict=True)
        backward = {name for names, node in described if node.is_backward for name in names}
        found: set[int] = set()
        for number, kernel in enumerate(self.stock):
            if not kernel.names & backward and found.issuperset(kernel.reads):
                found.add(number)
        return frozenset(found)

    @cached_property
    def in_nodes(self) -> frozenset[int]:
        """Returns the kernels of all nodes. The others are the caller's."""
        return frozenset().union(*self.kernels)

    @cached_property
    def in_products(self) -> frozenset[int]:
        """Returns the kernels of nodes that are products."""
        described = zip(self.training_graph.graph.nodes, self.kernels, strict=True)
        return frozenset().union(*(own for node, own in described if is_product(node.op_type)))

    def _find_written(self, value: int) -> frozenset[int]:
        """Returns the kernels with a value's name; without one, the node's kernels of its size that others read."""
        graph = self.training_graph.graph
        names = {t.op.name for t in self.training_graph.get_value_tensors(value) if len(t.op.outputs) == 1}
        written = frozenset(number for name in names for number in self.writers.get(name, ()))
        own, size_bytes = self.kernels[graph.producer[value]], int(graph.sizes_bytes[value])
        if written or len(graph.nodes[graph.producer[value]].outputs) > 1:
            return written
        return frozenset(k for k in own if self.stock[k].size_bytes == size_bytes and not self.readers[k] <= own)


def index_kernels(training_graph: TrainingGraph, stock: Sequence[Kernel]) -> KernelIndex:
    """Returns the kernels of the stock step by the nodes and values of a training graph that they compute."""
    writers: dict[str, tuple[int, ...]] = {}
    for number, kernel in enumerate(stock):
        for name in kernel.names:
            writers[name] = (*writers.get(name, ()), number)
    names = _list_names(training_graph)
    own = ({number for name in each for number in writers.get(name, ())} for each in names)
    kernels = [_add_unnamed(stock, numbers) for numbers in own]
    for node, found in _find_unnamed_products(training_graph, stock, kernels):
        kernels[node] |= found
    return KernelIndex(training_graph, tuple(stock), writers, names, tuple(kernels))


def _list_names(training_graph: TrainingGraph) -> tuple[frozenset[str], ...]:
    grouping, ops = training_graph.grouping, training_graph.ops.ops
    names = [{ops[member].name for member in group.members} for group in grouping.groups]
    for (view, _), root in grouping.roots.items():
        if root is not None:
            names[grouping.group_of[root[0]]].add(ops[view].name)
    return tuple(map(frozenset, names))


def _add_unnamed(stock: Sequence[Kernel], found: set[int]) -> frozenset[int]:
    """Returns kernels, together with those without a name whose results they read."""
    waiting, found = list(found), set(found)
    while waiting:
        for number in stock[waiting.pop()].reads:
            if number not in found and not stock[number].names:
                found.add(number)
                waiting.append(number)
    return frozenset(found)


def _find_unnamed_products(
    training_graph: TrainingGraph, stock: Sequence[Kernel], kernels: Sequence[frozenset[int]]
) -> list[tuple[int, frozenset[int]]]:
    """Returns the kernels of products that XLA rewrote and left without a name, and the node of each.

    XLA:CPU rewrites the filter gradient of a convolution of one pixel in this way (TensorFlow 2.21). The kernel writes
    as many bytes as the product, and reads all inputs of the product, in some cases through other kernels without a
    name. It may compute a ReLU among these inputs itself, so that no schedule has to hold the ReLU's result.
    """
    graph, ops = training_graph.graph, training_graph.ops
    read: list[frozenset[str]] = []  # names of the last named kernels from which data flow into each kernel
    for kernel in stock:
        sources = [(stock[number], read[number]) for number in kernel.reads]
        read.append(frozenset().union(*(k.names or k.inside | flows for k, flows in sources)))
    named = {name for kernel in stock for name in kernel.names}
    taken = frozenset().union(*kernels)
    unnamed = [number for number, kernel in enumerate(stock) if not kernel.names and number not in taken]

    def is_kernel_of(number: int, described: Node, size_bytes: int | None) -> bool:
        inputs = (training_graph.get_value_tensors(value) for value in described.inputs)
        names = ({tensor.op.name for tensor in tensors} for tensors in inputs)
        return stock[number].size_bytes == size_bytes and all(each & read[number] for each in names)

    found = []
    for node, described in enumerate(graph.nodes):
        members = training_graph.grouping.groups[node].members
        products = [member for member in members if is_product(ops.ops[member].type)]
        if len(products) != 1 or ops.ops[products[0]].name in named:
            continue
        size_bytes = ops.sizes_bytes[products[0]][0]
        own = next((number for number in unnamed if is_kernel_of(number, described, size_bytes)), None)
        if own is not None:
            found.append((node, _add_unnamed(stock, {own})))
    return found
