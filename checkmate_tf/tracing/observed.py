"""Observes sizes that shapes leave open in a run, such as the size of a mask's selection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.semantics import SHAPE_TYPES, has_static_shape_value

_NO_BYTES = frozenset({tf.resource, tf.variant, tf.string})
# A tensor of whole numbers with more elements is not a shape or a count.
_MOST_SIZES = 16
_NOTHING: Mapping = MappingProxyType({})


@dataclass(frozen=True)
class Observed:
    """The tensors of one run whose shapes or values the graph leaves open, by name.

    Args:
        shapes: shapes of tensors.
        values: values of shapes and counts, such as the number of segments by which rows are summed.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NOTHING)
    values: Mapping[str, np.ndarray] = field(default_factory=lambda: _NOTHING)

    def get_shape(self, tensor: tf.Tensor) -> tf.TensorShape:
        """Returns the shape of a tensor, static or observed."""
        return tf.TensorShape(self.shapes.get(tensor.name, tensor.shape))

    def fill_sizes(self, ops: OpList) -> tuple[tuple[int | None, ...], ...]:
        """Returns the bytes of each output of each operation, with observed sizes in place of unknown ones."""

        def count(tensor: tf.Tensor, size: int | None) -> int | None:
            shape = self.shapes.get(tensor.name) if size is None else None
            return size if shape is None else prod(shape) * tensor.dtype.size

        return tuple(tuple(map(count, op.outputs, sizes)) for op, sizes in zip(ops.ops, ops.sizes_bytes, strict=True))


def list_open_tensors(ops: OpList) -> list[tf.Tensor]:
    """Lists the tensors of a step whose bytes depend on data, because neither shapes nor constants determine them."""
    known: set[int] = set()
    found = []
    for number, op in enumerate(ops.ops):
        sources = {source for source, _ in ops.inputs[number]}
        if op.type == "Const" or has_static_shape_value(op) or (sources and sources <= known):
            known.add(number)
            continue
        found += [t for t in op.outputs if t.dtype not in _NO_BYTES and not t.shape.is_fully_defined()]
    return found


def observe(function: tf.types.experimental.ConcreteFunction, ops: OpList, arguments: Sequence[tf.Tensor]) -> Observed:
    """Runs the part of a step that determines all open shapes. The caller has to restore the state of variables."""
    open_tensors, sizes = list_open_tensors(ops), _list_sizes(ops)
    if not open_tensors:
        return Observed()
    source: GraphDef = function.graph.as_graph_def()
    given = {tensor.op.name for tensor in function.inputs}
    body = GraphDef(versions=source.versions, library=source.library)
    body.node.extend(definition for definition in source.node if definition.name not in given)
    read = {name.lstrip("^").partition(":")[0] for definition in body.node for name in definition.input}
    wanted = [tensor for tensor in (*open_tensors, *sizes) if tensor.op.name not in given]

    @tf.function(autograph=False)
    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        inputs = [*tensors, *map(graph.capture, function.captured_inputs)]
        mapped = {
            placeholder.name: tensor
            for placeholder, tensor in zip(function.inputs, inputs, strict=True)
            if placeholder.op.name in read
        }
        imported = tf.graph_util.import_graph_def(
            body, input_map=mapped, return_elements=[tensor.name for tensor in wanted], name=""
        )
        number = len(imported) - len(sizes)
        return [*map(tf.shape, imported[:number]), *imported[number:]]

    found = [tensor.numpy() for tensor in run(*arguments)]
    number = len(found) - len(sizes)
    shapes = {tensor.name: tuple(map(int, shape)) for tensor, shape in zip(wanted, found[:number], strict=False)}
    return Observed(shapes, {tensor.name: value for tensor, value in zip(sizes, found[number:], strict=True)})


def _list_sizes(ops: OpList) -> list[tf.Tensor]:
    """Lists the small tensors of whole numbers that follow from open shapes, or that determine one."""
    from_shapes: set[int] = set()
    constants: set[int] = set()
    found: dict[str, tf.Tensor] = {}
    for number, op in enumerate(ops.ops):
        sources = {source for source, _ in ops.inputs[number]}
        is_open = op.type in SHAPE_TYPES and not all(tensor.shape.is_fully_defined() for tensor in op.inputs)
        if op.type == "Const":
            constants.add(number)
        elif is_open or (
            all(map(_is_small, op.outputs)) and sources & from_shapes and sources <= from_shapes | constants
        ):
            from_shapes.add(number)
            found |= {tensor.name: tensor for tensor in op.outputs}
        if op.type not in SHAPE_TYPES and not all(tensor.shape.is_fully_defined() for tensor in op.outputs):
            found |= {tensor.name: tensor for tensor in op.inputs if tensor.op.type != "Const" and _is_small(tensor)}
    return [tensor for tensor in found.values() if tensor.dtype.is_integer]


def _is_small(tensor: tf.Tensor) -> bool:
    size = tensor.shape.num_elements()
    return size is not None and size <= _MOST_SIZES
