"""Writes a step anew, with a loop over chunks of rows in the place of all that is as wide as its logits."""

from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.profiling.constants import Constants
from checkmate_tf.rewriting.body import build_function
from checkmate_tf.rewriting.loop import Loop, write_loop
from checkmate_tf.rewriting.regions import Region, find_region
from checkmate_tf.rewriting.rows import Rows, choose_rows
from checkmate_tf.rewriting.rules import NotByRows
from checkmate_tf.tf_private import ConcreteFunction, hold_functions
from checkmate_tf.tracing.ops import TensorId, list_ops
from checkmate_tf.tracing.semantics import has_static_shape_value


@dataclass(frozen=True)
class ChunkedStep:
    """A chunked step computes its loss in chunks of rows.

    Args:
        function: takes and returns what the traced step does.
        region: what it computes in chunks.
        rows: how many rows there are, and in a chunk.
    """

    function: ConcreteFunction
    region: Region
    rows: Rows


def find_loss_region(function: ConcreteFunction) -> Region:
    """Finds what a traced step could compute in chunks of rows.

    Raises UnsupportedModelError, with the reason, where nothing can be.
    """
    ops = list_ops(function.graph)
    constants = Constants(function.graph)
    constants.evaluate(tensor for op in ops.ops for tensor in op.inputs)
    try:
        return find_region(ops, constants)
    except NotByRows as error:
        raise UnsupportedModelError(f"the loss cannot be computed in chunks of rows: {error}") from error


def chunk_loss(function: ConcreteFunction, region: Region, most_rows: int) -> ChunkedStep:
    """Writes a traced step that computes a region in chunks of at most so many rows."""
    rows = choose_rows(region.num_rows, most_rows)
    writer = _Writer(region, write_loop(region, rows))
    graph_def = writer.write(function.graph.as_graph_def())
    outputs = [writer.name(tensor) for tensor in region.ops.outputs]
    controls = [writer.name_control(op) for op in region.ops.control_outputs]
    chunked = build_function(function, graph_def, outputs, controls)
    hold_functions(chunked.graph, writer.loop.graph)
    return ChunkedStep(chunked, region, rows)


class _Writer:
    """Writes the operations of a step, and a loop in the place of a region."""

    def __init__(self, region: Region, loop: Loop):
        self.region = region
        self.ops = region.ops
        self.loop = loop
        self.loop_def = loop.graph.as_graph_def()

    def write(self, source: GraphDef) -> GraphDef:
        """Writes the whole step; `source` has its functions."""
        graph_def = GraphDef(versions=source.versions, library=source.library)
        graph_def.library.MergeFrom(self.loop_def.library)
        for index, op in enumerate(self.ops.ops):
            if index == self.region.product:
                graph_def.node.extend(self.write_loop())
            elif index in self.region.members:
                continue
            elif self.is_shape_of_member(index):
                graph_def.node.extend(_write_shape(op))
            else:
                graph_def.node.append(self.copy(index))
        return graph_def

    def is_shape_of_member(self, op: int) -> bool:
        """Returns whether an operation reads the shape of what only the loop computes."""
        reads_member = any(source in self.region.members for source, _ in self.ops.inputs[op])
        return reads_member and has_static_shape_value(self.ops.ops[op])

    def copy(self, index: int) -> NodeDef:
        """Copies an operation outside of the region."""
        definition = NodeDef()
        definition.CopyFrom(self.ops.ops[index].node_def)
        del definition.input[:]
        definition.input.extend(self.name(tensor) for tensor in self.ops.inputs[index])
        definition.input.extend(dict.fromkeys(f"^{self.name_control(op)}" for op in self.ops.controls[index]))
        definition.attr.pop("_class", None)
        return definition

    def write_loop(self) -> list[NodeDef]:
        """Writes the loop, which waits for all that one of its operations waited for."""
        members = self.region.members
        awaited = {op for index in members for op in self.ops.controls[index] if op not in members}
        written = []
        for original in self.loop_def.node:
            if original.name in self.loop.given:
                continue
            definition = NodeDef()
            definition.CopyFrom(original)
            definition.input[:] = [self.name_given(name) for name in original.input]
            if definition.name == self.loop.name:
                definition.input.extend(f"^{self.name_control(op)}" for op in sorted(awaited))
            written.append(definition)
        return written

    def name_given(self, name: str) -> str:
        """Names what an operation of the loop's graph reads."""
        tensor = self.loop.given.get(name)
        return name if tensor is None else self.name(tensor)

    def name(self, tensor: TensorId) -> str:
        """Names a tensor of the step."""
        op, position = tensor
        if op in self.region.members:
            return self.loop.results[tensor]
        if position and self.is_shape_of_member(op):
            return f"{self.ops.ops[op].name}/output_{position}:0"
        return f"{self.ops.ops[op].name}:{position}"

    def name_control(self, op: int) -> str:
        """Names an operation to wait for."""
        return self.loop.name if op in self.region.members else self.ops.ops[op].name


def _write_shape(op: tf.Operation) -> list[NodeDef]:
    """Writes constants in the place of an operation that reads known shapes."""
    written = []
    for position, output in enumerate(op.outputs):
        shape = op.inputs[position].shape
        value = {"Rank": shape.rank, "Size": shape.num_elements()}.get(op.type, shape.as_list())
        definition = NodeDef(name=f"{op.name}/output_{position}" if position else op.name, op="Const")
        tensor = tf.make_tensor_proto(value, dtype=output.dtype)
        definition.attr["value"].CopyFrom(AttrValue(tensor=tensor))
        definition.attr["dtype"].type = output.dtype.as_datatype_enum
        written.append(definition)
    return written
