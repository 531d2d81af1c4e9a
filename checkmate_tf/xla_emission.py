"""A training graph and a schedule as a new static TensorFlow function for XLA.

XLA orders operations by their data alone and merges equal ones, so a copy must differ from its original, and must
not be computable before the backward pass comes to it. Each contiguous run of recomputation is therefore
tied by data to the gradient that its first reader reads: every copy in the run that reads nothing
computed in the run reads one of its inputs through a tie, the smallest, which is a weight or a
scalar wherever there is one. All else in the run follows by its own data.

Two forms of the tie:

- "barrier": one `XlaOptimizationBarrier` a run over the tied inputs and the gradient; what reads the gradient
  later reads the barrier's. Costs nothing once compiled. XLA:CPU (TensorFlow 2.21) strips barriers before it merges
  equal operations, and so undoes them.
- "select": the tied input is selected by a condition on the bits of one element of the gradient, which always
  holds and which no compiler pass evaluates. Works on every backend; the select is a copy of the tied input.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # noqa: F401  registers XlaOptimizationBarrier
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.emission import EmittedFunction, _Writer
from checkmate_tf.emitted_function import function_of
from checkmate_tf.errors import EmissionError
from checkmate_tf.op_list import TensorId
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.xla_graph import XlaGraph

Tie = Literal["barrier", "select"]

_BITS = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
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
# No integer has more bits set, which XLA does not know.
_MORE_THAN_ALL_BITS = 100


def tie_for(device: str) -> Tie:
    """The form of the tie that the XLA backend of a device keeps."""
    return "select" if device.startswith("CPU") else "barrier"


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
    writer.write_schedule(schedule)
    outputs = writer.finish()
    graph_def = GraphDef(node=writer.written, versions=writer.source.versions, library=writer.source.library)
    function = function_of(xla_graph.training_graph.function, graph_def, outputs, writer.control_outputs())
    return EmittedFunction(function, graph_def, sum(writer.copied.values()), dict(sorted(writer.copied.items())), 0)


class _XlaWriter(_Writer):
    """Writes operations in the order of a schedule, the copies of each run tied to a gradient."""

    def __init__(self, xla_graph: XlaGraph, tie: Tie):
        super().__init__(xla_graph.training_graph, "ties")
        self.xla_graph = xla_graph
        self.tie = tie
        self.inlined: dict[tuple[int, int, tuple[str, ...]], dict[int, str]] = {}
        self.num_inlined: dict[int, int] = {}
        self.renamed: dict[str, str] = {}  # tensors to be read from a barrier from now on
        self.run = 0
        self.run_ties: _Ties | None = None  # of the run being written
        self.in_run: set[str] = set()

    def write_schedule(self, schedule: Schedule) -> None:
        seen: set[int] = set()
        repeats = []
        for node in schedule.order:
            repeats.append(node in seen)
            seen.add(node)
        step = 0
        for is_run, members in groupby(repeats):
            length = sum(1 for _ in members)
            nodes = schedule.order[step : step + length]
            if is_run:
                self.start_run(self.gradient(schedule.order, step, step + length))
            for node in nodes:
                self.compute(self.xla_graph.nodes[node])
            if is_run:
                self.end_run()
            step += length

    def start_run(self, gradient: TensorId | None) -> None:
        self.run += 1
        self.in_run = set()
        if gradient is not None:
            dtype = self.ops.ops[gradient[0]].outputs[gradient[1]].dtype
            kind = _Barrier if self.tie == "barrier" else _Select
            self.run_ties = kind(f"checkmate_run_{self.run}", self.tensor(gradient, {}), dtype, self.written)

    def end_run(self) -> None:
        if self.run_ties is not None:
            self.renamed.update(self.run_ties.finish())
        self.run_ties = None

    def gradient(self, order: Sequence[int], start: int, end: int) -> TensorId | None:
        """What the first node after the run that reads a tensor of before the run reads, the newest such tensor."""
        graph = self.xla_graph.graph
        computed_at = {value: step for step in range(end) for value in graph.nodes[order[step]].outputs}
        for node in order[end:]:
            known = [value for value in graph.nodes[node].inputs if computed_at.get(value, end) < start]
            for value in sorted(known, key=lambda value: -computed_at[value]):
                for tensor in self.xla_graph.training_graph.tensors[self.xla_graph.values[value]]:
                    if self.ops.ops[tensor[0]].outputs[tensor[1]].dtype.is_floating and self.size(tensor):
                        return tensor
        return None

    def compute(self, node: int) -> None:
        repeat = self.times[node]
        self.times[node] += 1
        self.name_of.update(self.write_group(node, repeat))

    def write_group(self, node: int, repeat: int) -> dict[int, str]:
        """Writes a copy of a node's operations; the name of each."""
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
        if repeat:
            self.copied[node] = self.copied.get(node, 0) + len(fresh)
        return fresh

    def tied(self, member: int, inputs: list[str]) -> list[str]:
        """The inputs of an operation, one of them tied unless one is computed in this run already."""
        assert self.run_ties is not None
        if any(name.partition(":")[0] in self.in_run for name in inputs):
            return inputs
        candidates = [i for i, tensor in enumerate(self.ops.inputs[member]) if self.may_tie(member, i, tensor)]
        if not candidates:
            return inputs
        chosen = min(candidates, key=lambda i: (self.size(self.ops.inputs[member][i]), i))
        op, position = self.ops.inputs[member][chosen]
        tied = self.run_ties.tie(inputs[chosen], self.ops.ops[op].outputs[position].dtype)
        return [*inputs[:chosen], tied, *inputs[chosen + 1 :]]

    def may_tie(self, member: int, index: int, tensor: TensorId) -> bool:
        """Whether an input may depend on the gradient: not where XLA needs its value to compile."""
        dtype = self.ops.ops[tensor[0]].outputs[tensor[1]].dtype
        return dtype.is_floating or _INTEGER_DATA.get(self.ops.ops[member].type) == index

    def size(self, tensor: TensorId) -> int:
        return self.ops.sizes_bytes[tensor[0]][tensor[1]] or 0

    def tensor(self, tensor: TensorId, fresh: Mapping[int, str]) -> str:
        op, position = tensor
        node = self.grouping.group_of[op]
        if op not in fresh and node in self.xla_graph.inline:
            return f"{self.inline(node)[op]}:{position}"
        name = super().tensor(tensor, fresh)
        return self.renamed.get(name, name)

    def inline(self, node: int) -> dict[int, str]:
        """The operations of an inline node computed from the newest copies of what they read."""
        members = self.grouping.groups[node].members
        own = {t for member in members for t in self.ops.inputs[member] if self.reads_itself(node, t)}
        reads = {t for member in members for t in self.ops.inputs[member]} - own
        key = (node, self.run if self.run_ties is not None else 0, tuple(self.tensor(t, {}) for t in sorted(reads)))
        if key not in self.inlined:
            number = self.num_inlined.get(node, 0)
            self.num_inlined[node] = number + 1
            self.inlined[key] = self.write_group(node, number)
        return self.inlined[key]

    def reads_itself(self, node: int, tensor: TensorId) -> bool:
        root = self.grouping.root(tensor)
        return root is not None and self.grouping.group_of[root[0]] == node


class _Ties(ABC):
    """The tied tensors of one run of recomputation."""

    def __init__(self, name: str, gradient: str, dtype: tf.DType, written: list[NodeDef]):
        self.name = name
        self.gradient = gradient
        self.dtype = dtype
        self.written = written
        self.tied: dict[str, str] = {}

    def tie(self, tensor: str, dtype: tf.DType) -> str:
        """The tensor, not computable before the gradient."""
        if tensor not in self.tied:
            self.tied[tensor] = self.add(tensor, dtype)
        return self.tied[tensor]

    @abstractmethod
    def add(self, tensor: str, dtype: tf.DType) -> str:
        """Writes the tie of one tensor; what to read in its place."""

    def finish(self) -> dict[str, str]:
        """What to read from now on in the place of other tensors."""
        return {}


class _Select(_Ties):
    def add(self, tensor: str, dtype: tf.DType) -> str:
        if not self.tied:
            self.write(_always, "holds", [(self.gradient, self.dtype)])
        return self.write(
            lambda holds, x: tf.raw_ops.SelectV2(condition=holds, t=x, e=tf.zeros_like(x)),
            f"tie_{len(self.tied)}",
            [(f"{self.name}/holds/result:0", tf.bool), (tensor, dtype)],
        )

    def write(self, build: Callable[..., tf.Tensor], name: str, inputs: Sequence[tuple[str, tf.DType]]) -> str:
        """Writes the operations that `build` makes of the inputs; the name of its result."""
        scope = f"{self.name}/{name}"
        with tf.Graph().as_default() as graph:
            arguments = [tf.compat.v1.placeholder(dtype, name=f"argument_{i}") for i, (_, dtype) in enumerate(inputs)]
            tf.identity(build(*arguments), name="result")
        given = {f"argument_{i}": tensor for i, (tensor, _) in enumerate(inputs)}
        for definition in graph.as_graph_def().node:
            if definition.name in given:
                continue
            definition.name = f"{scope}/{definition.name}"
            sources = [given.get(source, f"{scope}/{source}") for source in definition.input]
            del definition.input[:]
            definition.input.extend(sources)
            self.written.append(definition)
        return f"{scope}/result:0"


class _Barrier(_Ties):
    def __init__(self, name: str, gradient: str, dtype: tf.DType, written: list[NodeDef]):
        super().__init__(name, gradient, dtype, written)
        self.barrier = NodeDef(name=name, op="XlaOptimizationBarrier")
        self.written.append(self.barrier)
        self.add(gradient, dtype)

    def add(self, tensor: str, dtype: tf.DType) -> str:
        self.barrier.input.append(tensor)
        self.barrier.attr["T"].list.type.append(dtype.as_datatype_enum)
        return f"{self.name}:{len(self.barrier.input) - 1}"

    def finish(self) -> dict[str, str]:
        return {self.gradient: f"{self.name}:0"}


def _always(gradient: tf.Tensor) -> tf.Tensor:
    """True, whatever the bits of the gradient's first element."""
    element = tf.reshape(tf.slice(tf.reshape(gradient, [-1]), [0], [1]), [])
    bits = tf.raw_ops.PopulationCount(x=tf.bitcast(element, _BITS[gradient.dtype.size]))
    return bits < _MORE_THAN_ALL_BITS
