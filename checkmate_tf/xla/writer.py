"""A training graph and a schedule as a new static TensorFlow function for XLA.

XLA orders operations by their data alone and merges equal ones, so a copy must differ from its original, and must
not be computable before the backward pass comes to it. Each contiguous run of recomputation is therefore
tied by data to the gradient that its first reader reads: every copy in the run that reads nothing
computed in the run reads one of its inputs through a tie, the smallest, which is a weight or a
scalar wherever there is one. All else in the run follows by its own data.

What backward nodes read of the forward pass is tied too, each node's to the newest gradient that it reads: XLA:CPU
runs whatever it can as soon as its operands exist, and would hold transposed activations, for filter gradients, from
the forward pass on.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.emission.function import function_of
from checkmate_tf.emission.writer import EmittedFunction, GraphWriter
from checkmate_tf.errors import EmissionError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.tracing.ops import TensorId
from checkmate_tf.xla.graph import XlaGraph
from checkmate_tf.xla.lowering import lowering
from checkmate_tf.xla.ties import Tie, Ties, materialize, ties, write_operations

# Inputs of integers that are data, not sizes or axes, which XLA must know to compile.
_INTEGER_DATA = {
    "GatherV2": 1,
    "OneHot": 0,
    "ResourceGather": 1,
    "SparseSoftmaxCrossEntropyWithLogits": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormal": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormal": 1,
    "StatelessTruncatedNormalV2": 1,
}
# What reads its operands as they are: a select before it would copy them.
_PRODUCTS = re.compile("MatMul|Einsum")
_ALL_PRODUCTS = re.compile("Conv|MatMul|Einsum")


def emit_for_xla(xla_graph: XlaGraph, schedule: Schedule, *, tie: Tie) -> EmittedFunction:
    """The step of a training graph for XLA, its nodes computed and repeated as a schedule of `xla_graph.graph` says.

    Raises ScheduleError when the schedule does not compute the graph, and EmissionError when TensorFlow refuses
    the result.
    """
    check_schedule(xla_graph.graph, schedule)
    if schedule.fetches:
        raise EmissionError(
            "the schedule fetches values from host memory, which is not emitted: solve without offloading"
        )
    writer = _XlaWriter(xla_graph, tie)
    writer.write_order(read_steps(xla_graph.graph, schedule))
    outputs = writer.finish()
    graph_def = GraphDef(node=writer.written, versions=writer.source.versions, library=writer.source.library)
    function = function_of(xla_graph.training_graph.function, graph_def, outputs, writer.control_outputs())
    return EmittedFunction(function, dict(sorted(writer.copied.items())))


def read_steps(graph: Graph, schedule: Schedule) -> tuple[int, ...]:
    """The nodes of a schedule less the computations that nothing reads before the next: XLA would drop them."""
    wanted = set(graph.outputs)
    order = []
    for index in reversed(schedule.order):
        node = graph.nodes[index]
        if node.recomputable and node.outputs and wanted.isdisjoint(node.outputs):
            continue
        wanted.difference_update(node.outputs)
        wanted.update(node.inputs)
        order.append(index)
    return tuple(reversed(order))


class _XlaWriter(GraphWriter):
    """Writes operations in the order of a schedule, copies and late reads tied to gradients."""

    def __init__(self, xla_graph: XlaGraph, tie: Tie):
        super().__init__(xla_graph.training_graph)
        self.xla_graph = xla_graph
        self.tie = tie
        self.versions: dict[tuple[int, int, tuple[str, ...]], dict[int, str]] = {}  # of nodes, by what they read
        self.renamed: dict[str, str] = {}  # tensors to be read from a barrier from now on
        self.computed_at: dict[int, int] = {}  # value of the graph -> step
        self.num_ties = 0
        self.fusing: frozenset[int] = frozenset()  # the nodes fused into the one being written
        self.run_ties: Ties | None = None  # of the run being written
        self.in_run: set[str] = set()
        self.early: dict[int, dict[TensorId, str]] = {}  # what nodes with an early part read of the forward pass
        self.given: dict[TensorId, str] = {}  # the same, of the node being written
        self.late: dict[str, str] = {}  # tensor -> what the node being written reads in its place
        self.result: TensorId | None = None  # the newest gradient that nothing but the caller reads

    def write_order(self, order: Sequence[int]) -> None:
        seen: set[int] = set()
        repeats = []
        for node in order:
            repeats.append(node in seen)
            seen.add(node)
        step = 0
        for is_run, members in groupby(repeats):
            end = step + sum(1 for _ in members)
            if is_run:
                self.start_run(self.gradient(order, step, end))
            for position in range(step, end):
                node = order[position]
                self.late = {} if is_run else self.late_reads(node) | self.after_result(node)
                self.write_node(node, is_copy=is_run)
                self.late = {}
                self.computed_at |= dict.fromkeys(self.xla_graph.graph.nodes[node].outputs, position)
                self.note_result(node)
            if is_run:
                self.end_run()
            step = end

    def start_run(self, gradient: TensorId | None) -> None:
        self.in_run = set()
        self.run_ties = None if gradient is None else self.ties_to(self.tensor(gradient, {}), gradient)

    def end_run(self) -> None:
        if self.run_ties is not None:
            self.renamed.update(self.run_ties.finish())
        self.run_ties = None

    def ties_to(self, name: str, gradient: TensorId) -> Ties:
        self.num_ties += 1
        return ties(self.tie, f"checkmate_tie_{self.num_ties}", name, self.dtype(gradient), self.written)

    def gradient(self, order: Sequence[int], start: int, end: int) -> TensorId | None:
        """What the first node after the run that reads a tensor of before the run reads, the newest such tensor."""
        graph = self.xla_graph.graph
        in_run = {value for step in range(start, end) for value in graph.nodes[order[step]].outputs}
        for node in order[end:]:
            known = [value for value in graph.nodes[node].inputs if value in self.computed_at and value not in in_run]
            found = self.newest_float(known)
            if found is not None:
                return found
        return None

    def newest_float(self, values: Iterable[int]) -> TensorId | None:
        """A tensor of floats of the value computed last."""
        for value in sorted(values, key=lambda value: -self.computed_at[value]):
            for tensor in self.xla_graph.tensors(value):
                if self.dtype(tensor).is_floating and self.size(tensor):
                    return tensor
        return None

    def late_reads(self, index: int) -> dict[str, str]:
        """How a backward node reads the large results of forward nodes: not before the newest gradient that it reads.

        Without, XLA computes what the node needs of them alone, such as transposes, as soon as they exist, and holds
        that too.
        """
        graph = self.xla_graph.graph
        node = graph.nodes[index]
        if not node.is_backward or self.xla_graph.nodes[index] in self.early:
            return {}
        if self.tie == "select" and self.is_product(index):
            return {}
        gradients = [value for value in node.inputs if graph.nodes[graph.producer[value]].is_backward]
        gradient = self.newest_float(gradients)
        newest = max((self.computed_at[value] for value in gradients), default=0)
        small_bytes = self.grouping.small_bytes
        old = [
            tensor
            for value in node.inputs
            if value not in gradients and self.computed_at[value] < newest
            for tensor in self.xla_graph.tensors(value)
            if self.dtype(tensor).is_floating and self.size(tensor) > small_bytes
        ]
        if gradient is None or not old:
            return {}
        name = self.tensor(gradient, {})
        own = self.ties_to(name, gradient)
        late = {self.tensor(t, {}): own.tie(self.tensor(t, {}), self.dtype(t)) for t in old}
        return late | own.finish()

    def is_product(self, index: int) -> bool:
        """Whether a node multiplies matrices."""
        ops = self.xla_graph.training_graph.node_ops(self.xla_graph.nodes[index])
        lowered = [lowering(op) for op in ops]
        return bool(_PRODUCTS.search(self.xla_graph.graph.nodes[index].op_type)) or any(
            found is not None and found.is_product for found in lowered
        )

    def after_result(self, index: int) -> dict[str, str]:
        """How a backward product reads its weights: not before the newest gradient of weights is computed.

        Without, XLA may compute it first, while all that the other reads is held.
        """
        node = self.xla_graph.graph.nodes[index]
        if self.result is None or not node.is_backward or not _ALL_PRODUCTS.search(node.op_type):
            return {}
        members = self.grouping.groups[self.xla_graph.nodes[index]].members
        weights = [
            tensor
            for member in members
            for tensor in self.ops.inputs[member]
            if self.dtype(tensor).is_floating and 0 < self.size(tensor) <= self.grouping.small_bytes
        ]
        if not weights:
            return {}
        name = self.tensor(min(weights, key=self.size), {})
        own = self.ties_to(self.tensor(self.result, {}), self.result)
        tied = {name: own.tie(name, self.dtype(min(weights, key=self.size)))}
        self.renamed.update(own.finish())
        self.result = None
        return tied

    def note_result(self, index: int) -> None:
        """Remembers a gradient of weights, which nothing else waits for."""
        graph = self.xla_graph.graph
        node = graph.nodes[index]
        if node.is_backward and _ALL_PRODUCTS.search(node.op_type) and set(node.outputs) <= set(graph.outputs):
            self.result = self.newest_float(node.outputs)

    def write_node(self, index: int, *, is_copy: bool) -> None:
        """Writes the next copy of a node of the graph."""
        node = self.xla_graph.nodes[index]
        self.fusing = self.xla_graph.fused[node]
        if index in self.xla_graph.early:
            self.early[node] = self.forward_reads(node)
            self.fusing = frozenset()
            return
        self.given = self.early.get(node, {})
        key = self.key(node)
        written = self.write_group(node)
        self.given = {}
        self.fusing = frozenset()
        self.versions[key] = written
        self.name_of.update(written)
        if node in self.xla_graph.materialized:
            self.materialize(written)
        if is_copy:
            self.copied[node] = self.copied.get(node, 0) + len(written)

    def materialize(self, written: Mapping[int, str]) -> None:
        """Has all readers read the results of operations from buffers."""
        for member, name in written.items():
            for position, output in enumerate(self.ops.ops[member].outputs):
                tensor = f"{name}:{position}"
                scope = f"{name}/buffer_{position}"
                self.renamed[tensor] = materialize(
                    self.tie, scope, tensor, output.dtype, self.written, self.source.library
                )

    def forward_reads(self, node: int) -> dict[TensorId, str]:
        """The newest copies of what a node reads of the forward pass."""
        members = self.grouping.groups[node].members
        nodes = self.xla_graph.training_graph.graph.nodes
        reads = {t: self.grouping.root(t) for member in members for t in self.ops.inputs[member]}
        return {
            tensor: self.tensor(tensor, {})
            for tensor, root in reads.items()
            if root is not None and not nodes[self.grouping.group_of[root[0]]].is_backward
        }

    def write_group(self, node: int) -> dict[int, str]:
        """Writes one more copy of a node's operations; the name of each."""
        repeat = self.times[node]
        self.times[node] += 1
        fresh: dict[int, str] = {}
        for member in self.grouping.groups[node].members:
            name = self.ops.ops[member].name
            new_name = f"{name}/recompute_{repeat}" if repeat else name
            inputs = [self.tensor(tensor, fresh) for tensor in self.ops.inputs[member]]
            if self.run_ties is not None:
                inputs = self.tied(member, inputs)
                self.in_run.add(new_name)
            controls = [f"^{self.control(op, fresh)}" for op in self.ops.controls[member]]
            self.write(member, new_name, inputs + controls, unique=f"{name}#{repeat}" if repeat else "")
            fresh[member] = new_name
        return fresh

    def write(self, op: int, name: str, inputs: list[str], *, unique: str = "") -> None:
        lowered = lowering(self.ops.ops[op])
        if lowered is None:
            super().write(op, name, inputs, unique=unique)
            return
        given = [(inputs[i], self.dtype(self.ops.inputs[op][i])) for i in lowered.inputs]
        written = write_operations(lowered.build, f"{name}/lowered", given, self.written)
        controls = [source for source in inputs if source.startswith("^")]
        self.write_identity(name, written.result, self.dtype((op, 0)), op, controls)

    def tied(self, member: int, inputs: list[str]) -> list[str]:
        """The inputs of an operation, one of them tied unless one is computed in this run already."""
        assert self.run_ties is not None
        if any(name.partition(":")[0] in self.in_run for name in inputs):
            return inputs
        candidates = [i for i, tensor in enumerate(self.ops.inputs[member]) if self.may_tie(member, i, tensor)]
        if not candidates:
            return inputs
        chosen = min(candidates, key=lambda i: (self.size(self.ops.inputs[member][i]), i))
        tied = self.run_ties.tie(inputs[chosen], self.dtype(self.ops.inputs[member][chosen]))
        return [*inputs[:chosen], tied, *inputs[chosen + 1 :]]

    def may_tie(self, member: int, index: int, tensor: TensorId) -> bool:
        """Whether an input may depend on the gradient: not where XLA needs its value to compile."""
        return self.dtype(tensor).is_floating or _INTEGER_DATA.get(self.ops.ops[member].type) == index

    def size(self, tensor: TensorId) -> int:
        return self.ops.sizes_bytes[tensor[0]][tensor[1]] or 0

    def dtype(self, tensor: TensorId) -> tf.DType:
        return self.ops.ops[tensor[0]].outputs[tensor[1]].dtype

    def tensor(self, tensor: TensorId, fresh: Mapping[int, str]) -> str:
        if tensor in self.given:
            return self.given[tensor]
        op, position = tensor
        node = self.grouping.group_of[op]
        if op not in fresh and (node in self.fusing or (node >= 0 and op not in self.name_of)):
            return f"{self.fused(node)[op]}:{position}"
        name = super().tensor(tensor, fresh)
        name = self.renamed.get(name, name)
        return self.late.get(name, name)

    def control(self, op: int, fresh: Mapping[int, str] = MappingProxyType({})) -> str:
        node = self.grouping.group_of[op]
        if node < 0 or op in self.name_of:
            return super().control(op, fresh)
        return fresh[op] if op in fresh else self.fused(node)[op]

    def fused(self, node: int) -> dict[int, str]:
        """The operations of a fused node computed from what its reader would read in its place."""
        key = self.key(node)
        if key not in self.versions:
            self.versions[key] = self.write_group(node)
        return self.versions[key]

    def key(self, node: int) -> tuple[int, int, tuple[str, ...]]:
        """A node, the run of recomputation being written, and the names of what the node reads."""
        members = self.grouping.groups[node].members
        reads = {t for member in members for t in self.ops.inputs[member] if not self.reads_itself(node, t)}
        run = self.num_ties if self.run_ties is not None else 0
        return node, run, tuple(self.tensor(t, {}) for t in sorted(reads))

    def reads_itself(self, node: int, tensor: TensorId) -> bool:
        root = self.grouping.root(tensor)
        return root is not None and self.grouping.group_of[root[0]] == node
