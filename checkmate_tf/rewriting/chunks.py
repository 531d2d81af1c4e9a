"""Rewrites a step so that loops over chunks of rows replace the operations around its wide products."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.profiling.constants import Constants
from checkmate_tf.rewriting.body import build_function
from checkmate_tf.rewriting.loop import Loop, write_loop
from checkmate_tf.rewriting.regions import Pass, Region, find_blocks, find_region
from checkmate_tf.rewriting.rows import Rows, choose_rows, find_widest
from checkmate_tf.rewriting.rules import NotByRows
from checkmate_tf.tf_private import ConcreteFunction, hold_functions
from checkmate_tf.tracing.ops import OpList, TensorId, list_ops
from checkmate_tf.tracing.semantics import has_static_shape_value


@dataclass(frozen=True)
class ChunkedStep:
    """A step that computes regions in chunks of rows.

    Args:
        function: has the arguments and results of the traced step.
        regions: the parts that it computes in chunks.
        rows: the number of rows of each region and of each of its chunks, [num_regions].
    """

    function: ConcreteFunction
    regions: tuple[Region, ...]
    rows: tuple[Rows, ...]


def find_loss_region(function: ConcreteFunction) -> Region:
    """Returns the part of the loss that a traced step could compute in chunks of rows.

    Raises UnsupportedModelError, with the reason, if there is none.
    """
    ops, constants = read_step(function)
    try:
        return find_region(ops, constants)
    except NotByRows as error:
        raise UnsupportedModelError(f"the loss cannot be computed in chunks of rows: {error}") from error


def find_block_regions(function: ConcreteFunction) -> tuple[Region, ...]:
    """Returns the blocks of a traced step, such as feed-forward ones and attention, that it could compute in chunks.

    Raises UnsupportedModelError, with the reason for the largest block, if there is none.
    """
    blocks = tuple(find_blocks(*read_step(function)))
    regions = tuple(block.region for block in blocks if block.region is not None)
    if not regions:
        reason = next((f": {block.reason}" for block in blocks), "")
        raise UnsupportedModelError(f"no block of the step can be computed in chunks of rows{reason}")
    return regions


def read_step(function: ConcreteFunction) -> tuple[OpList, Constants]:
    """Lists the operations of a traced step, and the values that are the same for all data."""
    ops = list_ops(function.graph)
    constants = Constants(function.graph)
    constants.evaluate(tensor for op in ops.ops for tensor in op.inputs)
    return ops, constants


def write_chunks(function: ConcreteFunction, regions: Sequence[Region], most_rows: int) -> ChunkedStep:
    """Writes a traced step that computes regions in chunks of at most `most_rows` rows, counted as tokens.

    The chunks of the region with the most tokens determine the most tokens in a chunk of the other regions. This one
    number is therefore enough to write the same chunks again.
    """
    widest = choose_rows(find_widest(one.rows for one in regions), most_rows)
    rows = [choose_rows(one.rows, widest.chunk_tokens) for one in regions]
    writer = _Writer(regions, rows)
    graph_def = writer.write(function.graph.as_graph_def())
    outputs = [writer.name(tensor) for tensor in writer.ops.outputs]
    controls = [writer.name_control(op) for op in writer.ops.control_outputs]
    chunked = build_function(function, graph_def, outputs, controls)
    for loop in writer.loops:
        hold_functions(chunked.graph, loop.graph)
    return ChunkedStep(chunked, tuple(regions), tuple(rows))


class _Writer:
    """Writes the operations of a step, and loops instead of its regions.

    Attributes:
        heads: operation that a loop replaces -> the pass, and its loop.
        loop_of: operation -> the name of the first loop that computes it.
        results: exit of a pass -> the name of the tensor that replaces it.
    """

    def __init__(self, regions: Sequence[Region], rows: Sequence[Rows]):
        self.ops = regions[0].ops
        self.heads: dict[int, tuple[Pass, Loop]] = {}
        self.loop_of: dict[int, str] = {}
        self.results: dict[TensorId, str] = {}
        for region, chosen in zip(regions, rows, strict=True):
            for one in region.passes:
                loop = write_loop(region, one, chosen)
                self.heads[one.head] = one, loop
                self.results.update(loop.results)
                for index in one.members:
                    self.loop_of.setdefault(index, loop.name)

    @property
    def loops(self) -> list[Loop]:
        return [loop for _, loop in self.heads.values()]

    def write(self, source: GraphDef) -> GraphDef:
        """Writes the whole step; `source` contains its functions."""
        graph_def = GraphDef(versions=source.versions, library=source.library)
        for index, op in enumerate(self.ops.ops):
            if index in self.heads:
                one, loop = self.heads[index]
                loop_def = loop.graph.as_graph_def()
                graph_def.library.MergeFrom(loop_def.library)
                graph_def.node.extend(self.write_loop(one, loop, loop_def))
            elif index in self.loop_of:
                continue
            elif self.is_shape_of_member(index):
                graph_def.node.extend(_write_shape(op))
            else:
                graph_def.node.append(self.copy(index))
        return graph_def

    def is_shape_of_member(self, op: int) -> bool:
        """Returns whether an operation reads the shape of a tensor that only loops compute."""
        reads_member = any(source in self.loop_of for source, _ in self.ops.inputs[op])
        return reads_member and has_static_shape_value(self.ops.ops[op])

    def copy(self, index: int) -> NodeDef:
        """Copies an operation outside of the regions."""
        definition = NodeDef()
        definition.CopyFrom(self.ops.ops[index].node_def)
        del definition.input[:]
        definition.input.extend(self.name(tensor) for tensor in self.ops.inputs[index])
        definition.input.extend(dict.fromkeys(f"^{self.name_control(op)}" for op in self.ops.controls[index]))
        definition.attr.pop("_class", None)
        return definition

    def write_loop(self, one: Pass, loop: Loop, loop_def: GraphDef) -> list[NodeDef]:
        """Writes a loop, which waits for all operations for which its operations waited."""
        awaited = {op for index in one.members for op in self.ops.controls[index] if op not in self.loop_of}
        written = []
        for original in loop_def.node:
            if original.name in loop.given:
                continue
            definition = NodeDef()
            definition.CopyFrom(original)
            definition.input[:] = [
                self.name(loop.given[name]) if name in loop.given else name for name in original.input
            ]
            if definition.name == loop.name:
                definition.input.extend(f"^{self.name_control(op)}" for op in sorted(awaited))
            written.append(definition)
        return written

    def name(self, tensor: TensorId) -> str:
        """Returns the name of a tensor of the step."""
        op, position = tensor
        if op in self.loop_of:
            return self.results[tensor]
        if position and self.is_shape_of_member(op):
            return f"{self.ops.ops[op].name}/output_{position}:0"
        return f"{self.ops.ops[op].name}:{position}"

    def name_control(self, op: int) -> str:
        """Returns the name under which others wait for an operation."""
        return self.loop_of.get(op, self.ops.ops[op].name)


def _write_shape(op: tf.Operation) -> list[NodeDef]:
    """Writes constants instead of an operation that reads known shapes."""
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
