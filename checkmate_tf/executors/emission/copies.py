"""Names each copy of an operation in a rewritten step, and chooses the copy of a tensor that an operation reads.

Every node's first computation keeps the names of its operations. A repeat is a copy of them, named `.../recompute_k`.
An attribute makes it unique, because grappler would otherwise merge it with the original. Views are repeated with the
tensors that they view. Single operations run once, as in the source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.ops import TensorId

_COPY_ATTRIBUTE = "_checkmate_copy"
_DROPPED_ATTRIBUTES = ("_class", "_output_shapes")
_NOTHING_FRESH: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Reads:
    """The tensors that the node being written does not read from the newest copies; by default none.

    Args:
        given: tensor -> the name by which to read it.
        within: nodes that it computes within itself, so that it reads its own copies of their results.
        late: name of a tensor -> name of the same tensor behind a wait.
    """

    given: Mapping[TensorId, str] = field(default_factory=dict)
    within: frozenset[int] = frozenset()
    late: Mapping[str, str] = field(default_factory=dict)


class Copies:
    """Writes operations, and keeps the name of the newest copy of each.

    Attributes:
        written: the operations of the rewritten step so far, in order.
        name_of: op -> its newest copy, for ops in a group; the only copy of a single op.
        renamed: name of a tensor -> the name that later operations read instead.
        reads: the tensors that the node being written does not read from the newest copies.
        sum_shapes: name of an AddN -> the shape of its result.
        own_views: name of an opaque view's output -> the view, for views that only one operation reads.
    """

    def __init__(
        self,
        training_graph: TrainingGraph,
        *,
        lower: Callable[[int, str, list[str]], bool] | None = None,
        compute_within: Callable[[int], Mapping[int, str]] | None = None,
    ):
        """Begins an empty step.

        Args:
            lower: writes an op under a name, from named inputs, in another form than the source. Returns False if it
                writes nothing, so that the op is copied.
            compute_within: returns the names of a node's ops for a reader that computes the node within itself.
        """
        self.training_graph = training_graph
        self.ops = training_graph.ops
        self.grouping = training_graph.grouping
        self.singles = frozenset(self.grouping.singles)
        self.source: GraphDef = training_graph.function.graph.as_graph_def()
        self.written: list[NodeDef] = []
        self.name_of: dict[int, str] = {}
        self.renamed: dict[str, str] = {}
        self.reads = Reads()
        self.sum_shapes: dict[str, TensorShapeProto] = {}
        self.own_views: dict[str, NodeDef] = {}
        self._lower = lower
        self._compute_within = compute_within
        self._definitions = {definition.name: definition for definition in self.source.node}
        self._views: dict[tuple[int, tuple[str, ...]], str] = {}
        self._num_views: dict[int, int] = {}

    def graph_def(self) -> GraphDef:
        """Returns all operations that were written."""
        return GraphDef(node=self.written, versions=self.source.versions, library=self.source.library)

    def dtype(self, tensor: TensorId) -> tf.DType:
        """Returns the type of a tensor's elements."""
        return self.ops.ops[tensor[0]].outputs[tensor[1]].dtype

    def size_bytes(self, tensor: TensorId) -> int:
        """Returns the bytes of a tensor; 0 if they are unknown."""
        return self.ops.sizes_bytes[tensor[0]][tensor[1]] or 0

    def name_newest(self, tensor: TensorId) -> str:
        """Returns the newest copy of the op that yields a tensor, or that yields the tensor it views.

        Returns "" for single ops.
        """
        root = self.grouping.root(tensor)
        return "" if root is None else self.name_of.get(root[0], "")

    def tensor(self, tensor: TensorId, fresh: Mapping[int, str] = _NOTHING_FRESH) -> str:
        """Returns the name by which to read a tensor: that of its newest copy, unless `reads` or `renamed` differ.

        If the tensor comes from a single op or a view that is not written yet, this writes it.

        Args:
            fresh: op -> name, for the copy of the node that is being written.
        """
        given = self.reads.given.get(tensor)
        if given is not None:
            return given
        op, position = tensor
        node = self.grouping.group_of[op]
        is_within = node in self.reads.within or (node >= 0 and op not in self.name_of)
        if self._compute_within is not None and is_within and op not in fresh:
            return f"{self._compute_within(node)[op]}:{position}"
        name = self._name_newest_tensor(op, position, fresh)
        while name in self.renamed:
            name = self.renamed[name]
        return self.reads.late.get(name, name)

    def _name_newest_tensor(self, op: int, position: int, fresh: Mapping[int, str]) -> str:
        if op in fresh:
            return f"{fresh[op]}:{position}"
        if self.grouping.group_of[op] >= 0:
            return f"{self.name_of[op]}:{position}"
        if op not in self.singles:
            return f"{self._name_view(op, fresh)}:{position}"
        name = self._name_single(op, fresh)
        is_constant = op in self.grouping.constants
        return f"{name}/output_{position}:0" if is_constant and position else f"{name}:{position}"

    def name_control(self, op: int, fresh: Mapping[int, str] = _NOTHING_FRESH) -> str:
        """Returns the name of the first computation of an op, for control inputs; `fresh` as for `tensor`."""
        node = self.grouping.group_of[op]
        if node >= 0:
            if self._compute_within is None or op in self.name_of:
                return self.ops.ops[op].name
            return fresh[op] if op in fresh else self._compute_within(node)[op]
        return self._name_single(op, fresh) if op in self.singles else self._name_view(op, fresh)

    def write_outputs(self) -> list[str]:
        """Writes the single ops that only the caller or the runtime needs. Returns the names of the step's results."""
        outputs = [self.tensor(tensor) for tensor in self.ops.outputs]
        self.control_outputs()
        return outputs

    def control_outputs(self) -> list[str]:
        """Returns the names of the operations that must run although no result needs them."""
        return [self.name_control(op) for op in self.ops.control_outputs]

    def write(
        self,
        op: int,
        name: str,
        inputs: list[str],
        *,
        unique: str = "",
        hold: Callable[[int, NodeDef], None] | None = None,
    ) -> None:
        """Writes a copy of an op.

        Args:
            inputs: the names of its inputs; control inputs come last.
            unique: a text that differs for each copy; empty for the first.
            hold: changes the definition of the op so that it waits.
        """
        if self._lower is not None and self._lower(op, name, inputs):
            return
        definition = NodeDef()
        definition.CopyFrom(self._definitions[self.ops.ops[op].name])
        definition.name = name
        del definition.input[:]
        definition.input.extend(inputs)
        for attribute in _DROPPED_ATTRIBUTES:
            if attribute in definition.attr:
                del definition.attr[attribute]
        if "parallel_iterations" in definition.attr:
            # With parallel iterations, the memory of a loop would vary from run to run.
            definition.attr["parallel_iterations"].i = 1
        if unique:
            definition.attr[_COPY_ATTRIBUTE].s = unique.encode()
        if definition.op == "AddN":
            self.sum_shapes[name] = self.ops.ops[op].outputs[0].shape.as_proto()
        if hold is not None:
            hold(op, definition)
        self.written.append(definition)

    def write_identity(self, name: str, source: str, dtype: tf.DType, op: int, waits: list[str]) -> None:
        """Writes a view of the tensor `source` on the device of an op. The view also waits for `waits`."""
        definition = NodeDef(name=name, op="Identity", device=self.ops.ops[op].device)
        definition.input.extend([source, *waits])
        definition.attr["T"].type = dtype.as_datatype_enum
        self.written.append(definition)

    def write_opaque_view(self, name: str, source: str, op: int, position: int, *, shared: bool = False) -> NodeDef:
        """Writes a view, through which grappler does not look, of an op's input with the name `source`.

        With `shared`, other operations may read the view, too.
        """
        tensor = self.ops.ops[op].inputs[position]
        definition = NodeDef(name=name, op="EnsureShape", device=self.ops.ops[op].device)
        definition.input.append(source)
        definition.attr["T"].type = tensor.dtype.as_datatype_enum
        definition.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        self.written.append(definition)
        if not shared:
            self.own_views[f"{name}:0"] = definition
        return definition

    def _name_single(self, op: int, fresh: Mapping[int, str]) -> str:
        """Returns the name of a single op. The first call writes it and the single ops that it needs."""
        waiting = [op]
        while waiting:
            current = waiting[-1]
            if current in self.name_of:
                waiting.pop()
                continue
            operation = self.ops.ops[current]
            if current in self.grouping.constants:
                self.name_of[current] = operation.name
                self._write_constants(operation)
                continue
            sources = [source for source, _ in self.ops.inputs[current]] + list(self.ops.controls[current])
            missing = [s for s in sources if s in self.singles and s not in self.name_of]
            if missing:
                waiting.extend(missing)
                continue
            inputs = [self.tensor(tensor, fresh) for tensor in self.ops.inputs[current]]
            controls = [f"^{self.name_control(source, fresh)}" for source in self.ops.controls[current]]
            self.name_of[current] = operation.name
            self.write(current, operation.name, inputs + controls)
        return self.name_of[op]

    def _name_view(self, op: int, fresh: Mapping[int, str]) -> str:
        """Returns the name of a view of the newest copy of the viewed tensor. The first call for a copy writes it."""
        inputs = tuple(self.tensor(tensor, fresh) for tensor in self.ops.inputs[op])
        if (op, inputs) not in self._views:
            number = self._num_views.get(op, 0)
            self._num_views[op] = number + 1
            new_name = name_copy(self.ops.ops[op].name, number)
            controls = [f"^{self.name_control(source, fresh)}" for source in self.ops.controls[op]]
            self._views[op, inputs] = new_name
            self.write(op, new_name, [*inputs, *controls])
        return self._views[op, inputs]

    def _write_constants(self, op: tf.Operation) -> None:
        """Writes constants instead of an op that reads only known shapes."""
        for position, output in enumerate(op.outputs):
            value = _read_shape(op, position)
            definition = NodeDef(
                name=f"{op.name}/output_{position}" if position else op.name, op="Const", device=op.device
            )
            tensor = tf.make_tensor_proto(value, dtype=output.dtype)
            definition.attr["value"].CopyFrom(AttrValue(tensor=tensor))
            definition.attr["dtype"].type = output.dtype.as_datatype_enum
            self.written.append(definition)


def name_copy(name: str, repeat: int) -> str:
    """Returns the name of an operation's copy number `repeat`; the original is number 0."""
    return f"{name}/recompute_{repeat}" if repeat else name


def _read_shape(op: tf.Operation, position: int) -> int | list[int]:
    shape = op.inputs[position].shape
    if op.type == "Rank":
        return shape.rank
    return shape.num_elements() if op.type == "Size" else shape.as_list()
