"""A TrainingGraph and a schedule as a new static TensorFlow function for the graph executor.

Every node's first computation keeps the names of its operations; a repeat is a copy of them, named
`.../recompute_k` and made unique by an attribute, without which grappler would merge it with the
original again. Views are repeated with what they view; single operations run once, as before.

TensorFlow runs an operation as soon as its inputs exist, so a copy would run at the start of the step.
Control edges make it wait ("Ordering").
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, Literal

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.emission.function import function_of
from checkmate_tf.emission.waiting import StepOrder
from checkmate_tf.errors import EmissionError, ScheduleError
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import first_beside
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.ops import TensorId
from checkmate_tf.tracing.semantics import is_stateful_type
from checkmate_tf.tracing.state_updates import readers_of_old_values

# "chain": every step waits for all before it: memory is what the simulator says. "overlap": a step waits for those
# without which memory might pass the schedule's peak, whatever runs beside it.
Ordering = Literal["chain", "overlap"]

# The input that is data, not a shape, of ops that make large tensors of constants; the first of others.
_VALUE_INPUT = {"Fill": 1}
# Of the operations that no operation of the source stands behind.
_SCOPE = "checkmate"
_UNKNOWN = f"{_SCOPE}/unknown"
_COPY_ATTRIBUTE = "_checkmate_copy"
# The gradient that these read, which oneDNN fuses where both wait for the same.
_GRADIENT_INPUT = {"BiasAddGrad": 0, "Conv2DBackpropFilter": 2}
_ASSOCIATIVE = (frozenset({"Add", "AddV2", "Sub"}), frozenset({"Div", "Mul", "RealDiv"}))
_DROPPED_ATTRIBUTES = ("_class", "_output_shapes")


@dataclass(frozen=True)
class EmittedFunction:
    """A step that follows a schedule.

    Args:
        function: takes and returns what the source function does; that itself where nothing was rewritten.
        copied_ops_per_node: node index -> operations computed again, for the nodes that repeat.
        num_control_edges: control edges added to keep the order.
    """

    function: tf.types.experimental.ConcreteFunction
    copied_ops_per_node: dict[int, int] = field(default_factory=dict)
    num_control_edges: int = 0

    @property
    def graph_def(self) -> GraphDef:
        """Its operations; may be written to a file."""
        return self.function.graph.as_graph_def()

    @property
    def num_copied_ops(self) -> int:
        """Operations computed again."""
        return sum(self.copied_ops_per_node.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, with constants for results that the graph alone tells, such as shapes.

        XLA does not look into the functions that a step calls: it takes such a result for one that depends on all that
        the function reads. Where an operation needs the result to be compiled, as the size of an embedding's gradient,
        the step would be compiled again whenever a variable changes.
        """
        results = self.function(*args, **kwargs)
        if tf.executing_eagerly():
            return results
        flat = tf.nest.flatten(results, expand_composites=True)
        traced = tf.nest.flatten(self.function.structured_outputs, expand_composites=True)
        known = [None if tensor is None else tf.get_static_value(tensor) for tensor in traced]
        flat = [
            result if value is None else tf.constant(value, result.dtype)
            for result, value in zip(flat, known, strict=True)
        ]
        return tf.nest.pack_sequence_as(results, flat, expand_composites=True)


def emit(training_graph: TrainingGraph, schedule: Schedule, *, ordering: Ordering = "overlap") -> EmittedFunction:
    """The step of `training_graph`, its nodes computed and repeated as `schedule` says.

    Raises EmissionError when the schedule does not compute the graph or TensorFlow refuses the result.
    """
    try:
        check_schedule(training_graph.graph, schedule)
    except ScheduleError as error:
        raise EmissionError(f"the schedule does not compute graph {training_graph.graph.name!r}: {error}") from error
    if schedule.fetches:
        raise EmissionError(
            "the schedule fetches values from host memory, which is not emitted: solve without offloading"
        )
    writer = GraphWriter(training_graph)
    first: Iterable[int] = range(len(schedule))
    if ordering == "overlap":
        first = updates_after_reads(training_graph, schedule, first_beside(training_graph.graph, schedule).tolist())
    for node, begin in zip(schedule.order, first, strict=True):
        writer.compute(node, begin)
    outputs = writer.finish()
    graph_def = GraphDef(node=writer.written, versions=writer.source.versions, library=writer.source.library)
    _check_acyclic(graph_def)
    function = function_of(training_graph.function, graph_def, outputs, writer.control_outputs())
    return EmittedFunction(function, dict(sorted(writer.copied.items())), writer.num_control_edges)


def updates_after_reads(training_graph: TrainingGraph, schedule: Schedule, first: Sequence[int]) -> list[int]:
    """The first step that each step may run beside, no update beside a step that reads the variable's old value.

    Otherwise the new value would be written to memory of its own, in a chunk that may be larger.
    """
    readers = readers_of_old_values(training_graph.ops, training_graph.grouping.group_of)
    last: dict[int, int] = {}  # step of each node's newest copy
    begins = []
    for step, (node, begin) in enumerate(zip(schedule.order, first, strict=True)):
        begins.append(max([begin, *(last[reader] + 1 for reader in readers.get(node, ()) if reader in last)]))
        last[node] = step
    return begins


def _check_acyclic(graph_def: GraphDef) -> None:
    """Raises EmissionError where operations wait for each other in a circle, naming them."""
    order = TopologicalSorter({d.name: {i.lstrip("^").partition(":")[0] for i in d.input} for d in graph_def.node})
    try:
        order.prepare()
    except CycleError as error:
        raise EmissionError(
            f"operations of the rewritten step wait for each other: {' <- '.join(error.args[1])}"
        ) from error


class GraphWriter:
    """Writes operations in the order of a schedule; holds the newest copy of each."""

    def __init__(self, training_graph: TrainingGraph):
        self.graph = training_graph.graph
        self.ops = training_graph.ops
        self.grouping = training_graph.grouping
        self.source: GraphDef = training_graph.function.graph.as_graph_def()
        self.definitions = {definition.name: definition for definition in self.source.node}
        self.written: list[NodeDef] = []
        self.times = [0] * len(self.grouping.groups)
        self.name_of: dict[int, str] = {}  # the newest copy of each op in a group, the only one of each single op
        self.views: dict[tuple[int, tuple[str, ...]], str] = {}
        self.num_views: dict[int, int] = {}
        self.copied: dict[int, int] = {}
        self.num_control_edges = 0
        self.has_unknown = False
        self.order = StepOrder()
        self.tails: list[tuple[tuple[str, int], ...]] = []  # of each step, name and op of what waits for it
        self.step_of: dict[str, int] = {}  # by the names of its tails
        self.ended = 0  # the steps before this one are waited for by
        self.end = ""
        self.marked: set[str] = set()  # what is waited for by a view of its output
        self.takers: list[_Taker] = []
        self.singles = set(self.grouping.singles)
        self.readers = defaultdict(list, self.ops.consumers())
        self.known = self.known_ops()

    def compute(self, node: int, begin: int) -> None:
        """Writes the next copy of a node, which waits for every step before the step `begin`."""
        group = self.grouping.groups[node]
        repeat = self.times[node]
        fresh: dict[int, str] = {}
        ends = self.ends[node]
        waits = self.waits(node, begin)
        gates: dict[str, NodeDef] = {}  # tensor -> the view of it that waits
        for member in group.members:
            name = self.ops.ops[member].name
            new_name = f"{name}/recompute_{repeat}" if repeat else name
            inputs = [self.tensor(tensor, fresh) for tensor in self.ops.inputs[member]]
            if self.is_constant(member):
                position = _VALUE_INPUT.get(self.ops.ops[member].type, 0)
                inputs[position] = self.not_folded(f"{new_name}/value", inputs[position], member, position)
            inner = self.reordered_input(member) if group.is_backward else None
            if inner is not None:
                inputs[inner] = f"{self.hidden(f'{new_name}/inner', inputs[inner], member, inner).name}:0"
            controls = [f"^{self.control(op, fresh)}" for op in self.ops.controls[member]]
            mine = waits if member in ends.heads else []
            gate = None
            if mine or self.shares_gradient(member):
                gate = self.gated(new_name, member, inputs, gates)
                (controls if gate is None else gate.input).extend(mine)
            self.num_control_edges += len(mine)
            self.write(member, new_name, inputs + controls, unique=f"{name}#{repeat}" if repeat else "")
            fresh[member] = new_name
            if self.graph.nodes[node].inplace and member in ends.heads:
                read = {self.newest(tensor) for tensor in self.ops.inputs[member]}
                self.takers.append(_Taker(member, self.written[-1], gate, read))
        self.name_of.update(fresh)
        if repeat:
            self.copied[node] = self.copied.get(node, 0) + len(group.members)
        self.times[node] += 1
        step = len(self.tails)
        self.tails.append(tuple((fresh[member], member) for member in ends.tails))
        self.step_of.update((fresh[member], step) for member in ends.tails)

    def waits(self, node: int, begin: int) -> list[str]:
        """Control inputs that make a node's heads wait for the steps before `begin`.

        A copy waits even where its data do: grappler may simplify an op in between away, and with it what came before.
        """
        heads = self.ends[node].heads
        if not heads:
            self.order.free_step()
            return []
        read = set.intersection(*({self.newest(t) for t in self.ops.inputs[head]} for head in heads))
        ended = {self.step_of[name] for name in read if name in self.step_of}
        whole = [step for step in ended if read.issuperset(name for name, _ in self.tails[step])]
        must_wait = self.order.step(begin, whole)
        return self.end_of_steps(begin) if must_wait or self.times[node] else []

    def end_of_steps(self, end: int) -> list[str]:
        """What to wait for so that all steps before `end` have ended: one operation for all who wait for them."""
        if end > self.ended:
            waits = [f"^{self.done(*tail)}" for step in range(self.ended, end) for tail in self.tails[step]]
            if waits:
                before, self.end = self.end, f"{_SCOPE}/before_step_{end}"
                waits = [*([f"^{before}"] if before else []), *dict.fromkeys(waits)]
                self.written.append(NodeDef(name=self.end, op="NoOp", input=waits))
                self.num_control_edges += len(waits)
            self.ended = end
        return [f"^{self.end}"] if self.end else []

    def newest(self, tensor: TensorId) -> str:
        """The newest copy of the op that yields a tensor or what it is a view of; empty for single ops."""
        root = self.grouping.root(tensor)
        return "" if root is None else self.name_of.get(root[0], "")

    def done(self, name: str, member: int) -> str:
        """What to wait for instead of an op: a view of its output, because waiting for the op would break fusions."""
        outputs = self.ops.ops[member].outputs
        if not outputs or not outputs[0].dtype.is_floating:
            return name
        if name not in self.marked:
            self.marked.add(name)
            self.write_identity(f"{name}/done", f"{name}:0", outputs[0].dtype, member, [])
        return f"{name}/done"

    def gated(self, name: str, member: int, inputs: list[str], gates: dict[str, NodeDef]) -> NodeDef | None:
        """Has an op read one of its inputs through a view that can be made to wait; None where it has none to read so.

        Grappler fuses no op that itself waits, and breaks some others, such as cubes, when it rewrites them.

        Args:
            inputs: of the op; the one chosen is replaced.
            gates: views made before, by what they are of.
        """
        position = self.carrier(member)
        if position is None:
            return None
        source = inputs[position]
        if source not in gates:
            gates[source] = self.hidden(f"{name}/wait", source, member, position)
        inputs[position] = f"{gates[source].name}:0"
        return gates[source]

    def carrier(self, member: int) -> int | None:
        """The input whose view waits in the place of an op.

        The gradient that a bias and a filter have in common; what is resident, such as the weights of a product, which
        no fusion is about; else the smallest that is no constant.
        """
        kind, inputs = self.ops.ops[member].type, self.ops.inputs[member]
        if kind in _GRADIENT_INPUT:
            return _GRADIENT_INPUT[kind]
        tensors = [self.ops.ops[source].outputs[output] for source, output in inputs]
        sizes = [self.ops.sizes_bytes[source][output] for source, output in inputs]
        data = [
            position
            for position, (source, _) in enumerate(inputs)
            if tensors[position].dtype.is_floating
            and self.ops.ops[source].type != "Const"
            and source not in self.grouping.constants
        ]
        return min(data, key=lambda i: (inputs[i][0] not in self.singles, sizes[i] or 0, -i), default=None)

    def shares_gradient(self, member: int) -> bool:
        """Whether a bias or a filter has its gradient in common with those of another layer.

        oneDNN computes any bias's gradient with any filter's of the same tensor; if their nodes run at different times,
        whatever runs between would wait for itself. Each node has a view of its own of what it reads.
        """
        kind = self.ops.ops[member].type
        if kind not in _GRADIENT_INPUT:
            return False
        readers = self.readers[self.ops.inputs[member][_GRADIENT_INPUT[kind]]]
        return sum(self.ops.ops[reader].type in _GRADIENT_INPUT for reader in readers) > 2

    def reordered_input(self, member: int) -> int | None:
        """The input x * y of an op (x * y) * c of which grappler would make x * (y * c), or the like with sums.

        Constant folding does (ConstantPushDown) and so does the arithmetic optimizer (MinimizeBroadcasts), where c is
        a constant and nothing else reads x * y. Then y * c, an activation times a constant, waits for nothing of the
        backward pass: it is computed in the forward pass and held.
        """
        family = next((types for types in _ASSOCIATIVE if self.ops.ops[member].type in types), None)
        if family is None:
            return None
        constants = [self.ops.ops[source].type == "Const" for source, _ in self.ops.inputs[member]]
        if sum(constants) != 1:
            return None
        position = constants.index(False)
        inner, _ = self.ops.inputs[member][position]
        leaves = [self.ops.ops[source].type for source, _ in self.ops.inputs[inner]]
        if self.ops.ops[inner].type not in family or "Const" in leaves or len(self.readers[inner, 0]) > 1:
            return None
        return position

    def is_constant(self, member: int) -> bool:
        """Whether an op makes a large tensor of constants: grappler would compute it once and hold it for good."""
        return (
            self.makes_large(member)
            and bool(self.ops.inputs[member])
            and all(source in self.known for source, _ in self.ops.inputs[member])
        )

    def makes_large(self, member: int) -> bool:
        return any((size or 0) > self.grouping.small_bytes for size in self.ops.sizes_bytes[member])

    def known_ops(self) -> set[int]:
        """The constants, and what is small and computed from them alone: grappler computes it before any run."""
        known: set[int] = set()
        for index, op in enumerate(self.ops.ops):
            sources = [source for source, _ in self.ops.inputs[index]]
            is_computed = bool(sources) and known.issuperset(sources) and not is_stateful_type(op.type)
            is_computed &= not self.makes_large(index)
            if op.type == "Const" or index in self.grouping.constants or is_computed:
                known.add(index)
        return known

    def not_folded(self, name: str, source: str, member: int, position: int) -> str:
        """A constant that TensorFlow finds only when the step runs: it computes nothing from it before."""
        if not self.has_unknown:
            self.has_unknown = True
            self.write_unknown()
        dtype = self.ops.ops[member].inputs[position].dtype
        definition = NodeDef(name=name, op="SelectV2", input=[f"{_UNKNOWN}:0", source, source])
        definition.attr["T"].type = dtype.as_datatype_enum
        self.written.append(definition)
        return f"{name}:0"

    def write_unknown(self) -> None:
        """A truth value that TensorFlow takes for one that may differ from run to run."""
        with tf.Graph().as_default() as graph:
            zero = tf.raw_ops.Empty(shape=tf.constant([], tf.int32, name="shape"), dtype=tf.float32, init=True)
            tf.not_equal(zero, 0.0, name="unknown")
        for definition in graph.as_graph_def().node:
            definition.input[:] = [f"{_SCOPE}/{source}" for source in definition.input]
            definition.name = f"{_SCOPE}/{definition.name}"
            self.written.append(definition)

    def hidden(self, name: str, source: str, member: int, position: int) -> NodeDef:
        """A view of a tensor that grappler does not look behind."""
        tensor = self.ops.ops[member].inputs[position]
        definition = NodeDef(name=name, op="EnsureShape", device=self.ops.ops[member].device)
        definition.input.append(source)
        definition.attr["T"].type = tensor.dtype.as_datatype_enum
        definition.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        self.written.append(definition)
        return definition

    def write_identity(self, name: str, source: str, dtype: tf.DType, member: int, waits: list[str]) -> None:
        definition = NodeDef(name=name, op="Identity", device=self.ops.ops[member].device)
        definition.input.extend([source, *waits])
        definition.attr["T"].type = dtype.as_datatype_enum
        self.written.append(definition)

    def finish(self) -> list[str]:
        """Writes the single ops that only the caller or the runtime needs; gives the names of the outputs.

        Storage is taken over only where no view of it is left: those that are waited for come before.
        """
        for taker in self.takers:
            waits = [f"^{name}/done" for name in sorted(taker.reads & self.marked)]
            if not waits:
                continue
            gate = taker.gate
            if gate is None:
                inputs = list(taker.definition.input)
                gate = self.gated(taker.definition.name, taker.member, inputs, {})
                taker.definition.input[:] = inputs
            waiting = (taker.definition if gate is None else gate).input
            waiting.extend(wait for wait in waits if wait not in waiting)
        outputs = [self.tensor(tensor, {}) for tensor in self.ops.outputs]
        for op in self.ops.control_outputs:
            self.control(op)
        return outputs

    def control_outputs(self) -> list[str]:
        return [self.control(op) for op in self.ops.control_outputs]

    def tensor(self, tensor: TensorId, fresh: Mapping[int, str]) -> str:
        """The name of the newest copy of a tensor; `fresh` holds the copies of the node being written."""
        op, position = tensor
        if op in fresh:
            name = fresh[op]
        elif self.grouping.group_of[op] >= 0:
            name = self.name_of[op]
        elif op in self.singles:
            name = self.single(op, fresh)
            if op in self.grouping.constants and position:
                return f"{name}/output_{position}:0"
        else:
            name = self.view(op, fresh)
        return f"{name}:{position}"

    def single(self, op: int, fresh: Mapping[int, str] = MappingProxyType({})) -> str:
        """Writes a single op with all that it needs, the first time that it is asked for; `fresh` as for `tensor`."""
        waiting = [op]
        while waiting:
            current = waiting[-1]
            if current in self.name_of:
                waiting.pop()
                continue
            operation = self.ops.ops[current]
            if current in self.grouping.constants:
                self.name_of[current] = operation.name
                self.write_constants(operation)
                continue
            sources = [source for source, _ in self.ops.inputs[current]] + list(self.ops.controls[current])
            missing = [s for s in sources if s in self.singles and s not in self.name_of]
            if missing:
                waiting.extend(missing)
                continue
            inputs = [self.tensor(tensor, fresh) for tensor in self.ops.inputs[current]]
            controls = [f"^{self.control(source, fresh)}" for source in self.ops.controls[current]]
            self.name_of[current] = operation.name
            self.write(current, operation.name, inputs + controls)
        return self.name_of[op]

    def view(self, op: int, fresh: Mapping[int, str]) -> str:
        """The view of the newest copy of what it is a view of."""
        inputs = tuple(self.tensor(tensor, fresh) for tensor in self.ops.inputs[op])
        if (op, inputs) not in self.views:
            number = self.num_views.get(op, 0)
            self.num_views[op] = number + 1
            name = self.ops.ops[op].name
            new_name = f"{name}/recompute_{number}" if number else name
            controls = [f"^{self.control(source, fresh)}" for source in self.ops.controls[op]]
            self.views[op, inputs] = new_name
            self.write(op, new_name, [*inputs, *controls])
        return self.views[op, inputs]

    def control(self, op: int, fresh: Mapping[int, str] = MappingProxyType({})) -> str:
        """The first computation of an op, to wait for; `fresh` as for `tensor`."""
        if self.grouping.group_of[op] >= 0:
            return self.ops.ops[op].name
        if op in self.singles:
            return self.single(op, fresh)
        return self.view(op, fresh)

    def write(self, op: int, name: str, inputs: list[str], *, unique: str = "") -> None:
        definition = NodeDef()
        definition.CopyFrom(self.definitions[self.ops.ops[op].name])
        definition.name = name
        del definition.input[:]
        definition.input.extend(inputs)
        for attribute in _DROPPED_ATTRIBUTES:
            if attribute in definition.attr:
                del definition.attr[attribute]
        if "parallel_iterations" in definition.attr:
            # What a loop holds of iterations that have begun before others ended differs from run to run.
            definition.attr["parallel_iterations"].i = 1
        if unique:
            definition.attr[_COPY_ATTRIBUTE].s = unique.encode()
        self.written.append(definition)

    def write_constants(self, op: tf.Operation) -> None:
        """Constants in the place of an op that reads nothing but known shapes."""
        for position, output in enumerate(op.outputs):
            value = _shape_value(op, position)
            definition = NodeDef(
                name=f"{op.name}/output_{position}" if position else op.name, op="Const", device=op.device
            )
            tensor = tf.make_tensor_proto(value, dtype=output.dtype)
            definition.attr["value"].CopyFrom(AttrValue(tensor=tensor))
            definition.attr["dtype"].type = output.dtype.as_datatype_enum
            self.written.append(definition)

    @cached_property
    def ends(self) -> tuple["_Ends", ...]:
        return tuple(self._ends(group.members) for group in self.grouping.groups)

    def _ends(self, members: tuple[int, ...]) -> "_Ends":
        """The large ops of a group that no large op comes before, and after; the latter with what they fuse with."""
        large = [member for member in members if self._is_large(member)]
        inside = set(members)
        reach: dict[int, set[int]] = {}  # member -> large members that come before it
        followed: set[int] = set()
        heads = []
        for member in members:
            before: set[int] = set()
            for source in self._sources(member):
                if source in inside:
                    before |= {source} if source in large else reach[source]
            reach[member] = before
            if member in large:
                followed |= before
                if not before:
                    heads.append(member)
        tails = [self._last_alone(member, inside) for member in large if member not in followed]
        return _Ends(frozenset(heads), tuple(dict.fromkeys(tails)))

    def _last_alone(self, member: int, inside: set[int]) -> int:
        """The op at the end of a line of ops that each alone read the one before it: the line may be fused."""
        while True:
            readers = [reader for i in range(len(self.ops.sizes_bytes[member])) for reader in self.readers[member, i]]
            if len(readers) != 1 or readers[0] not in inside:
                return member
            member = readers[0]

    def _sources(self, member: int) -> Iterator[int]:
        for tensor in self.ops.inputs[member]:
            root = self.grouping.root(tensor)
            if root is not None:
                yield root[0]

    def _is_large(self, member: int) -> bool:
        touched = [(member, i) for i in range(len(self.ops.sizes_bytes[member]))]
        touched += [root for root in map(self.grouping.root, self.ops.inputs[member]) if root is not None]
        sizes = [self.ops.sizes_bytes[op][position] for op, position in touched]
        return any(size is None or size > self.grouping.small_bytes for size in sizes)


@dataclass(frozen=True, slots=True)
class _Taker:
    """An op that may take over the storage of what it reads, and its view that waits, where it has one."""

    member: int
    definition: NodeDef
    gate: NodeDef | None
    reads: set[str]


@dataclass(frozen=True, slots=True)
class _Ends:
    heads: frozenset[int]
    tails: tuple[int, ...]


def _shape_value(op: tf.Operation, position: int) -> int | list[int]:
    shape = op.inputs[position].shape
    if op.type == "Rank":
        return shape.rank
    return shape.num_elements() if op.type == "Size" else shape.as_list()
