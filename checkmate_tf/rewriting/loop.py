"""Writes a pass of a region as a TensorFlow loop. Each iteration computes one chunk of rows.

Results by rows are written to buffers of all rows, and sums over rows are added up from chunk to chunk. An iteration
therefore holds only one chunk of the wide values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.rewriting.regions import PRODUCT_TYPES, Pass, Region
from checkmate_tf.rewriting.rows import SHARED, SUM, Layout, Rows
from checkmate_tf.tf_private import FuncGraph
from checkmate_tf.tracing.ops import TensorId
from checkmate_tf.tracing.semantics import ALIAS_TYPES

_DROPPED_ATTRIBUTES = ("_class", "_output_shapes")
# Sums over chunks of these types are added up in 32 bits.
_SUMMED_IN_32_BITS = (tf.float16, tf.bfloat16)
# Masks of the rows of a chunk that no earlier chunk contains, of those in the window, and of those that are both.
_IS_NEW, _IN_WINDOW, _IS_COUNTED = "is_new:0", "in_window:0", "is_counted:0"


@dataclass(frozen=True)
class Loop:
    """A loop that computes a pass of a region, in a graph of its own.

    Args:
        graph: the loop, with placeholders for the tensors that the region reads.
        name: of the loop's operation.
        given: placeholder -> the tensor of the step that it represents.
        results: exit of the pass -> the name of the tensor that replaces it.
    """

    graph: FuncGraph
    name: str
    given: Mapping[str, TensorId]
    results: Mapping[TensorId, str]


def write_loop(region: Region, one: Pass, rows: Rows) -> Loop:
    """Writes the loop that computes a pass of a region in chunks."""
    ops, scope = region.ops, region.ops.ops[one.head].name
    graph = FuncGraph("chunks")
    chunk = _Chunk(region, one, rows)
    with graph.as_default():
        with tf.name_scope(f"{scope}/chunks/"):
            given = {key: _make_placeholder(ops.ops[key[0][0]].outputs[key[0][1]]) for key in chunk.given}
            whole = {
                name: _flatten_rows(given[key], key[1].before, rows) if key[1].is_rows else given[key]
                for key, name in chunk.given.items()
            }
            first = tf.constant(0)
            held = [_make_empty(chunk.get_tensor(tensor), layout, rows) for tensor, layout in one.exits.items()]

        def compute_chunk(number: tf.Tensor, *held: tf.Tensor) -> list[tf.Tensor]:
            start = tf.minimum(number * rows.chunk_rows, rows.num_rows - rows.chunk_rows)
            pieces = {}
            for (tensor, layout), name in chunk.given.items():
                if layout.is_rows:
                    shape = chunk.get_tensor(tensor).shape.as_list()
                    pieces[f"{name}:0"] = _cut(whole[name], start, rows.cut_shape(shape, layout.before), rows)
                else:
                    pieces[f"{name}:0"] = tf.identity(whole[name])
            for name in sorted(chunk.masks):
                pieces[name] = _make_mask(name, number, start, rows)
            computed = tf.graph_util.import_graph_def(
                chunk.graph_def, pieces, [chunk.name(tensor) for tensor in one.exits], name=""
            )
            results = zip(held, computed, one.exits.values(), strict=True)
            return [number + 1, *(_put(number, whole, part, layout) for whole, part, layout in results)]

        _, *held = tf.while_loop(
            lambda number, *_: number < rows.num_chunks,
            compute_chunk,
            [first, *held],
            parallel_iterations=1,
            maximum_iterations=rows.num_chunks,
            name=scope,
        )
        with tf.name_scope(f"{scope}/chunks/"):
            results = {
                tensor: _finish(value, chunk.get_tensor(tensor), layout, rows).name
                for (tensor, layout), value in zip(one.exits.items(), held, strict=True)
            }
    loop = next(op for op in graph.get_operations() if op.type in ("StatelessWhile", "While"))
    placeholders = {given[tensor, layout].op.name: tensor for tensor, layout in chunk.given}
    return Loop(graph, loop.name, placeholders, results)


def _make_placeholder(tensor: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name="given")


def _flatten_rows(tensor: tf.Tensor, before: int, rows: Rows) -> tf.Tensor:
    """Reshapes a tensor to [before, num_rows, width]. Rows outside of a window are zeros."""
    shape, window = tensor.shape.as_list(), rows.window
    if window is not None and before == 1 and rows.is_in_window(shape):
        after = window.length - window.begin - window.size
        tensor = tf.reshape(tensor, [window.num_entries, window.size, prod(shape) // window.num_rows])
        tensor = tf.pad(tensor, [[0, 0], [window.begin, after], [0, 0]])
    return tf.reshape(tensor, [before, rows.num_rows, -1])


def _make_mask(name: str, number: tf.Tensor, start: tf.Tensor, rows: Rows) -> tf.Tensor:
    """Makes a mask of the rows of a chunk, [chunk_rows]."""
    own = start + tf.range(rows.chunk_rows)
    is_new = own >= number * rows.chunk_rows
    if name == _IS_NEW:
        return is_new
    assert rows.window is not None
    place = own % rows.window.length - rows.window.begin
    in_window = tf.logical_and(place >= 0, place < rows.window.size)
    return in_window if name == _IN_WINDOW else tf.logical_and(is_new, in_window)


def _cut(whole: tf.Tensor, start: tf.Tensor, shape: list[int], rows: Rows) -> tf.Tensor:
    """Returns the chunk of rows that begins at row `start`, in the given shape."""
    before, _, width = whole.shape.as_list()
    return tf.reshape(tf.slice(whole, [0, start, 0], [before, rows.chunk_rows, width]), shape)


def _make_empty(tensor: tf.Tensor, layout: Layout, rows: Rows) -> tf.Tensor:
    """Makes the initial sum of an exit, or a buffer for its rows, [before, num_chunks, chunk_rows, width]."""
    shape, dtype = tensor.shape.as_list(), tensor.dtype
    if layout == SUM:
        dtype = tf.float32 if dtype in _SUMMED_IN_32_BITS else dtype
    else:
        width = prod(rows.cut_shape(shape, layout.before)) // (layout.before * rows.chunk_rows)
        shape = [layout.before, rows.num_chunks, rows.chunk_rows, width]
    # For a small shape, `tf.zeros` makes a constant, so the operations would depend on the size.
    return tf.fill(shape, tf.zeros([], dtype))


def _put(number: tf.Tensor, whole: tf.Tensor, part: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Adds the result of a chunk to the sum, or writes it to its place in the buffer."""
    if layout == SUM:
        return whole + tf.cast(part, whole.dtype)
    before, _, chunk_rows, width = whole.shape.as_list()
    places = tf.stack([tf.range(before), tf.fill([before], number)], axis=1)
    return tf.tensor_scatter_nd_update(whole, places, tf.reshape(part, [before, chunk_rows, width]))


def _finish(value: tf.Tensor, tensor: tf.Tensor, layout: Layout, rows: Rows) -> tf.Tensor:
    """Converts the loop's result to the type and shape of the exit. The operations are the same for any size."""
    if layout == SUM:
        return tf.cast(value, tensor.dtype)
    before, _, _, width = value.shape.as_list()
    num_first = (rows.num_chunks - 1) * rows.chunk_rows
    first = tf.reshape(value[:, :-1], [before, num_first, width])
    value = tf.concat([first, value[:, -1, num_first - rows.num_rows :]], axis=1)
    window = rows.window
    if window is not None and rows.is_in_window(tensor.shape.as_list()):
        value = tf.reshape(value, [window.num_entries, window.length, width])
        value = value[:, window.begin : window.begin + window.size]
    return tf.reshape(value, tensor.shape)


class _Chunk:
    """Writes the operations of a pass for one chunk of rows.

    Attributes:
        given: tensor from outside, with its layout -> the name by which the operations read it.
        graph_def: the operations.
        masks: the names of the masks that some operations read.
        waits: operation -> another one for which it waits.
    """

    def __init__(self, region: Region, one: Pass, rows: Rows):
        self.region = region
        self.members = {**one.copies, **one.members}
        self.rows = rows
        self.given: dict[tuple[TensorId, Layout], str] = {}
        self.graph_def = GraphDef()
        self.masks: set[str] = set()
        self.constants: dict[TensorId, str] = {}
        self.waits = self.find_waits()
        for index in sorted(self.members):
            self.write(index)

    def get_tensor(self, tensor: TensorId) -> tf.Tensor:
        """Returns a tensor of the step."""
        return self.region.ops.ops[tensor[0]].outputs[tensor[1]]

    def name(self, tensor: TensorId) -> str:
        """Returns the name of a member's output."""
        return f"{self.region.ops.ops[tensor[0]].name}:{tensor[1]}"

    def write(self, index: int) -> None:
        """Writes an operation of the pass."""
        ops, placement = self.region.ops, self.members[index]
        op = ops.ops[index]
        cut = [
            self.rows.cut_shape(tensor.shape.as_list(), layout.before)
            for tensor, layout in zip(op.outputs, placement.outputs, strict=True)
            if layout.is_rows
        ]
        names = [
            self.name_input(tensor, layout) for tensor, layout in zip(ops.inputs[index], placement.inputs, strict=True)
        ]
        if placement.cut_shape:
            self.write_reshape(op.name, names[0], cut[0], op.outputs[0].dtype)
            return
        if placement.windowed_input is not None:
            windowed = placement.windowed_input
            self.write_mask(op.name, names[windowed], ops.inputs[index][windowed], 1, _IN_WINDOW)
            return
        if placement.cut_input is not None:
            tensor = self.get_tensor(ops.inputs[index][placement.cut_input])
            names[placement.cut_input] = self.write_constant(f"{op.name}/cut_shape", cut[0], tensor.dtype)
        by_rows = {i: layout.before for i, layout in enumerate(placement.inputs) if layout.is_rows}
        adds_up = by_rows and not any(layout.is_rows for layout in placement.outputs)
        shapes = {i: self.get_tensor(ops.inputs[index][i]).shape for i in by_rows}
        in_window = any(by_rows[i] == 1 and self.rows.is_in_window(shape.as_list()) for i, shape in shapes.items())
        if adds_up and (self.rows.overlaps or in_window):
            least = min(by_rows, key=lambda i: shapes[i].num_elements())
            mask = _IS_COUNTED if in_window else _IS_NEW
            tensor = ops.inputs[index][least]
            names[least] = self.write_mask(f"{op.name}/new_rows", names[least], tensor, by_rows[least], mask)
        definition = NodeDef()
        definition.CopyFrom(op.node_def)
        del definition.input[:]
        definition.input.extend(names)
        if index in self.waits:
            definition.input.append(f"^{ops.ops[self.waits[index]].name}")
        for attribute in _DROPPED_ATTRIBUTES:
            definition.attr.pop(attribute, None)
        self.graph_def.node.append(definition)

    def find_waits(self) -> dict[int, int]:
        """Maps wide operations to the wide operation before each, if TensorFlow fuses neither with a bias.

        One of the two must be a product. TensorFlow would otherwise run all products as soon as their operands exist,
        and hold all their results at once.
        """
        ops = self.region.ops
        biases = {index for index in self.members if ops.ops[index].type == "BiasAdd"}
        fused = biases | {ops.inputs[index][0][0] for index in biases}
        fused |= {index for index in self.members if any(source in biases for source, _ in ops.inputs[index])}
        wide = [index for index in sorted(self.members) if self.touches_wide(index)]
        return {
            index: before
            for before, index in pairwise(wide)
            if fused.isdisjoint((before, index))
            and not PRODUCT_TYPES.isdisjoint((ops.ops[before].type, ops.ops[index].type))
            and all(source != before for source, _ in ops.inputs[index])
        }

    def touches_wide(self, index: int) -> bool:
        """Returns whether an operation other than a view reads or yields a value as large as the region's product."""
        ops = self.region.ops
        made = [(index, position) for position in range(len(ops.sizes_bytes[index]))]
        sizes = {ops.sizes_bytes[op][position] for op, position in (*ops.inputs[index], *made) if op in self.members}
        return ops.ops[index].type not in ALIAS_TYPES and ops.sizes_bytes[self.region.product][0] in sizes

    def name_input(self, tensor: TensorId, layout: Layout) -> str:
        """Returns the name by which a member reads a tensor. Writes the tensor if it is constant."""
        if tensor[0] in self.members:
            return self.name(tensor)
        value = self.region.constants.get_value(self.get_tensor(tensor)) if layout == SHARED else None
        if value is not None:
            name = self.region.ops.ops[tensor[0]].name
            return self.constants.get(tensor) or self.constants.setdefault(
                tensor, self.write_constant(f"{name}/constant_{tensor[1]}", value, self.get_tensor(tensor).dtype)
            )
        return f"{self.given.setdefault((tensor, layout), f'given_{len(self.given)}')}:0"

    def write_constant(self, name: str, value: Any, dtype: tf.DType) -> str:
        """Writes a constant, and returns its name."""
        definition = NodeDef(name=name, op="Const")
        definition.attr["value"].CopyFrom(AttrValue(tensor=tf.make_tensor_proto(value, dtype=dtype)))
        definition.attr["dtype"].type = dtype.as_datatype_enum
        self.graph_def.node.append(definition)
        return f"{name}:0"

    def write_reshape(self, name: str, source: str, shape: list[int], dtype: tf.DType) -> None:
        """Writes a view of a tensor in another shape."""
        wanted = self.write_constant(f"{name}/cut_shape", shape, tf.int32)
        definition = NodeDef(name=name, op="Reshape", input=[source, wanted])
        definition.attr["T"].type = dtype.as_datatype_enum
        definition.attr["Tshape"].type = tf.int32.as_datatype_enum
        self.graph_def.node.append(definition)

    def write_mask(self, name: str, source: str, tensor: TensorId, before: int, mask: str) -> str:
        """Replaces rows that are not in a mask by zeros, and returns the name of the result."""
        self.masks.add(mask)
        whole = self.get_tensor(tensor)
        shape = self.rows.cut_shape(whole.shape.as_list(), before)
        self.write_reshape(f"{name}/mask", mask, [1, self.rows.chunk_rows, 1], tf.bool)
        self.write_reshape(f"{name}/rows", source, [before, self.rows.chunk_rows, -1], whole.dtype)
        zero = self.write_constant(f"{name}/zero", 0, whole.dtype)
        definition = NodeDef(name=f"{name}/masked", op="SelectV2", input=[f"{name}/mask:0", f"{name}/rows:0", zero])
        definition.attr["T"].type = whole.dtype.as_datatype_enum
        self.graph_def.node.append(definition)
        self.write_reshape(name, f"{name}/masked:0", shape, whole.dtype)
        return f"{name}:0"
