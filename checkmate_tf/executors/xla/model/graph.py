"""Makes the training graph as XLA runs it, in which fused nodes are never stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tensorflow as tf

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.hlo.kernels import Kernel
from checkmate_tf.executors.xla.model.buffers import Buffers, MemoryRule, place_buffers
from checkmate_tf.executors.xla.model.facts import find_facts
from checkmate_tf.executors.xla.model.fusion import Fusion, find_fusion
from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.rules.rule import Lowering, Rule
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.ops import TensorId


class OptionalLowering(Rule):
    """Writes operations in another form if the graph has room for it."""

    def lower(self, op: tf.Operation) -> Lowering | None:
        """Returns a lowering that may replace an operation that no other rule lowers; None to keep the operation."""
        return None

    def choose(self, xla_graph: "XlaGraph") -> "XlaGraph":
        """Returns the graph with the nodes whose operations are replaced in `apart`."""
        return xla_graph


@dataclass(frozen=True)
class XlaGraph:
    """The nodes of a training graph whose results XLA writes to buffers.

    Args:
        graph: node i computes `nodes[i]` of the training graph, and within it the nodes that it fuses.
        nodes: of the training graph, [num_nodes].
        values: of the training graph; None for the result of an early part, [num_values].
        early: nodes of `graph` that are the early part of a backward node `nodes[i]`, which XLA computes in the forward
            pass.
        fused: node of the training graph -> the nodes that its kernels compute within themselves.
        materialized: nodes of the training graph that must be written to buffers, because XLA would compute them within
            their readers, or within operations that only wait for them.
        constants: nodes of the training graph that XLA computes at compile time.
        transposed: pairs of a node of the training graph and a value that it reads, which XLA transposes for it alone.
        written: the kernels of the stock step that write each value of `graph`; none if its readers compute it within
            themselves, [num_values].
        apart: nodes of the training graph that compute an operand in a kernel of its own before they transpose it.
    """

    graph: Graph
    training_graph: TrainingGraph
    backend: Backend
    nodes: tuple[int, ...]
    values: tuple[int | None, ...]
    early: frozenset[int]
    fused: Mapping[int, frozenset[int]]
    materialized: frozenset[int]
    constants: frozenset[int]
    transposed: frozenset[tuple[int, int]]
    written: tuple[frozenset[int], ...]
    apart: frozenset[int] = frozenset()

    def lower(self, op: int) -> Lowering | None:
        """Returns the lowering that replaces an operation of the training graph; None to keep the operation."""
        operation = self.training_graph.ops.ops[op]
        lowering = self.backend.lower(operation)
        if lowering is not None or self.training_graph.grouping.group_of[op] not in self.apart:
            return lowering
        optional = (rule.lower(operation) for rule in self.backend.list_rules(OptionalLowering))
        return next((found for found in optional if found is not None), None)

    @cached_property
    def transposed_tensors(self) -> frozenset[TensorId]:
        """Returns the tensors of values that XLA transposes for one reader alone."""
        return frozenset(tensor for _, value in self.transposed for tensor in self.training_graph.tensors[value])

    @cached_property
    def stored_tensors(self) -> frozenset[TensorId]:
        """Returns the tensors of values that XLA writes to buffers."""
        return frozenset(tensor for value in range(len(self.values)) for tensor in self.tensors(value))

    def list_kernels(self, node: int) -> frozenset[int]:
        """Returns the kernels of the stock step that write results of a node of `graph`."""
        return frozenset().union(*(self.written[value] for value in self.graph.nodes[node].outputs))

    def is_split(self, index: int) -> bool:
        """Returns whether a node of `graph` is part of a node of the training graph that has an early part."""
        return self.nodes[index] in self._split

    @cached_property
    def _split(self) -> frozenset[int]:
        return frozenset(self.nodes[index] for index in self.early)

    def tensors(self, value: int) -> tuple[TensorId, ...]:
        """Returns the tensors of the step that a value of `graph` represents."""
        number = self.values[value]
        return () if number is None else self.training_graph.tensors[number]

    def list_summed(self, node: int) -> list[int]:
        """Lists the products that a node of the training graph sums. They are written as one product."""
        nodes = self.training_graph.graph.nodes
        return [product for product in sorted(self.fused[node]) if is_product(nodes[product].op_type)]

    def resize(self, training_graph: TrainingGraph) -> "XlaGraph":
        """Returns the graph for the same training graph at another size, such as another batch size.

        This assumes that the workspace of kernels grows like the inputs and results of their nodes.
        """
        whole, before = training_graph.graph, self.training_graph.graph
        then, now = before.sizes_bytes, whole.sizes_bytes
        growth = [_measure_growth(before, whole, node) for node in self.nodes]
        early = {self.graph.nodes[node].outputs[0]: growth[node] for node in self.early}
        values = tuple(
            replace(value, size_bytes=int(value.size_bytes * early[number]))
            if known is None
            else replace(
                value,
                size_bytes=value.size_bytes * int(now[known]) // int(then[known]) if then[known] else value.size_bytes,
            )
            for number, (value, known) in enumerate(zip(self.graph.values, self.values, strict=True))
        )
        costs = [sum(whole.nodes[n].cost for n in self.list_summed(known) or [known]) for known in self.nodes]
        nodes = tuple(
            replace(
                node,
                cost=0 if number in self.early else costs[number],
                workspace_bytes=int(node.workspace_bytes * growth[number]),
            )
            for number, node in enumerate(self.graph.nodes)
        )
        graph = replace(self.graph, nodes=nodes, values=values, cost_unit=whole.cost_unit)
        return replace(self, graph=graph, training_graph=training_graph)


@dataclass(frozen=True)
class _Unit:
    """A node of the new graph: a node of the training graph, or the early or the late part of one."""

    node: int
    is_early: bool
    reads: frozenset[int]
    after: int


@dataclass(frozen=True)
class _Numbering:
    """The values of the new graph.

    Args:
        values: of the training graph; None for the result of an early part, [num_values].
        sizes: the values with the bytes that XLA stores, [num_values].
        outputs: of each unit, [num_units].
        place_of: value of the training graph -> its index.
        early_of: node of the training graph -> the index of its early part's result.
    """

    values: tuple[int | None, ...]
    sizes: tuple[Value, ...]
    outputs: tuple[tuple[int, ...], ...]
    place_of: Mapping[int, int]
    early_of: Mapping[int, int]


def make_xla_graph(
    training_graph: TrainingGraph, stock: Sequence[Kernel], backend: Backend, given_bytes: int | None = None
) -> XlaGraph:
    """Makes the graph in which nodes that XLA computes within their readers are part of these readers.

    A node that only yields results of the step, such as gradients of weights, runs as soon as it can, so that its
    inputs are freed.

    The gradient of a pooling of overlapping windows compares with constants as large as its input. XLA:CPU computes
    them at the very start of the step, and holds them until the last comparison (TensorFlow 2.21). Such a node
    therefore becomes two: the comparisons stay in the forward pass, and only the places of the maxima are held after
    them.

    Args:
        stock: the kernels of the stock step.
        given_bytes: of the stock step's arguments and results, if it has more than the training graph. Results count as
            resident, because XLA holds their buffers from the start.
    """
    facts = find_facts(training_graph, stock, backend)
    buffers = place_buffers(facts, backend)
    fusion = find_fusion(buffers)
    units = sorted(_list_units(buffers, fusion), key=lambda unit: (unit.after, unit.node != unit.after, unit.is_early))
    numbering = _number_values(buffers, units)
    whole = training_graph.graph
    if given_bytes is None:
        given_bytes = whole.resident_bytes + int(whole.sizes_bytes[list(set(whole.outputs))].sum())
    held_bytes = sum(rule.count_constants_bytes(facts) for rule in backend.list_rules(MemoryRule))
    graph = Graph(
        tuple(_make_node(buffers, fusion, unit, numbering, i) for i, unit in enumerate(units)),
        numbering.sizes,
        tuple(sorted(numbering.place_of[value] for value in set(whole.outputs))),
        given_bytes + held_bytes,
        whole.cost_unit,
        whole.name,
        whole.source,
    )
    return XlaGraph(
        graph=graph,
        training_graph=training_graph,
        backend=backend,
        nodes=tuple(unit.node for unit in units),
        values=numbering.values,
        early=frozenset(number for number, unit in enumerate(units) if unit.is_early),
        fused=fusion.fused,
        materialized=(buffers.materialized | buffers.awaited).intersection(fusion.reads),
        constants=facts.constants,
        transposed=buffers.transposed,
        written=tuple(frozenset() if value is None else facts.index.written[value] for value in numbering.values),
    )


def choose_lowerings(xla_graph: XlaGraph) -> XlaGraph:
    """Returns the graph with the optional lowerings for which it has room."""
    for rule in xla_graph.backend.list_rules(OptionalLowering):
        xla_graph = rule.choose(xla_graph)
    return xla_graph


def _measure_growth(before: Graph, now: Graph, node: int) -> float:
    """Returns the ratio of the bytes that a node reads and yields now to those before."""
    values = [*before.nodes[node].inputs, *before.nodes[node].outputs]
    return float(now.sizes_bytes[values].sum() / max(before.sizes_bytes[values].sum(), 1))


def _list_units(buffers: Buffers, fusion: Fusion) -> Iterator[_Unit]:
    graph = buffers.facts.graph
    for node, read in fusion.reads.items():
        forward = frozenset(value for value in read if not graph.nodes[graph.producer[value]].is_backward)
        if not forward or not buffers.count_early_bytes(node):
            is_result = _only_returns(graph, node) and read
            yield _Unit(node, False, read, max(graph.producer[value] for value in read) if is_result else node)
            continue
        yield _Unit(node, True, forward, max(graph.producer[value] for value in forward))
        yield _Unit(node, False, read - forward, node)


def _only_returns(graph: Graph, node: int) -> bool:
    """Returns whether a backward node only yields results of the step, such as a filter's gradient."""
    described = graph.nodes[node]
    return described.is_backward and described.recomputable and set(described.outputs) <= set(graph.outputs)


def _number_values(buffers: Buffers, units: Sequence[_Unit]) -> _Numbering:
    graph = buffers.facts.graph
    values: list[int | None] = []
    sizes: list[Value] = []
    outputs: list[tuple[int, ...]] = []
    place_of: dict[int, int] = {}
    early_of: dict[int, int] = {}
    for unit in units:
        node, start = graph.nodes[unit.node], len(values)
        if unit.is_early:
            early_of[unit.node] = start
            values.append(None)
            sizes.append(Value(f"{node.name}/early", buffers.count_early_bytes(unit.node)))
        else:
            place_of |= {value: start + offset for offset, value in enumerate(node.outputs)}
            values += node.outputs
            sizes += [replace(graph.values[v], size_bytes=buffers.count_stored_bytes(v)) for v in node.outputs]
        outputs.append(tuple(range(start, len(values))))
    return _Numbering(tuple(values), tuple(sizes), tuple(outputs), place_of, early_of)


def _make_node(buffers: Buffers, fusion: Fusion, unit: _Unit, numbering: _Numbering, number: int) -> Node:
    nodes = buffers.facts.graph.nodes
    node = nodes[unit.node]
    inputs = {numbering.place_of[value] for value in unit.reads}
    products = [nodes[product] for product in buffers.facts.lowered.products.get(unit.node, ())]
    if unit.is_early:
        node = replace(node, name=f"{node.name}/early", cost=0, is_backward=False, recomputable=False)
    elif unit.node in numbering.early_of:
        inputs.add(numbering.early_of[unit.node])
    if products:
        node = replace(node, op_type=products[0].op_type, cost=sum(product.cost for product in products))
    taken_over = buffers.find_taken_over(unit.node, unit.reads)
    workspace_bytes = buffers.count_workspace_bytes(
        unit.node, fusion.fused[unit.node], is_early=unit.is_early, is_taken_over=bool(taken_over)
    )
    return replace(
        node,
        inputs=tuple(sorted(inputs)),
        outputs=numbering.outputs[number],
        inplace=not unit.is_early and (node.inplace if taken_over is None else taken_over),
        workspace_bytes=workspace_bytes,
    )
