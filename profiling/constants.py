"""Finds the tensors whose values follow from the graph alone: shapes, axes, paddings and numbers computed from them."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from checkmate_tf.tracing.observed import Observed

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})
# Tensors with more elements count as data.
_MAX_ELEMENTS = 4096


class Constants:
    """The values that `evaluate` found, by tensor, and the values observed in a run."""

    def __init__(self, graph: tf.Graph, observed: Observed | None = None):
        self.observed = observed or Observed()
        self._known = _find_derivable(graph)
        self._values: dict[str, np.ndarray] = {}

    def get_value(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Returns the value of a tensor, [its shape]; None if it depends on data or was not evaluated."""
        value = self._values.get(tensor.name)
        return self.observed.values.get(tensor.name) if value is None else value

    def evaluate(self, tensors: Iterable[tf.Tensor]) -> None:
        """Finds the values of those of `tensors` that do not depend on data, all in one run."""
        wanted = {tensor.name: tensor for tensor in tensors if tensor.op.name in self._known}
        wanted = {name: tensor for name, tensor in wanted.items() if name not in self._values}
        if not wanted:
            return
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(self._cut_graph_def(wanted.values()), name="")
        # Optimizing the graph would take longer than the single run.
        rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
        options = config_pb2.GraphOptions(rewrite_options=rewrites)
        config = config_pb2.ConfigProto(graph_options=options, device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            found = session.run({name: name for name in wanted})
        # A session returns one string as bytes.
        texts = {name: np.array(value, object) for name, value in found.items() if isinstance(value, bytes)}
        self._values.update(found | texts)

    def _cut_graph_def(self, tensors: Iterable[tf.Tensor]) -> graph_pb2.GraphDef:
        graph_def = graph_pb2.GraphDef()
        done: set[str] = set()
        waiting = [tensor.op for tensor in tensors]
        while waiting:
            op = waiting.pop()
            if op.name in done:
                continue
            done.add(op.name)
            if op.type in _SHAPE_OPS:
                graph_def.node.extend(_make_shape_nodes(op))
                continue
            node_def = op.node_def
            node_def.device = ""
            node_def.attr.pop("_class", None)
            node_def.input[:] = [reference for reference in node_def.input if not reference.startswith("^")]
            graph_def.node.append(node_def)
            waiting += [tensor.op for tensor in op.inputs]
        return graph_def


def _find_derivable(graph: tf.Graph) -> set[str]:
    """Returns the names of the operations that compute small tensors from constants and known shapes alone."""
    names: set[str] = set()
    for op in graph.get_operations():
        if op.type == "Const" or (op.type in _SHAPE_OPS and all(t.shape.is_fully_defined() for t in op.inputs)):
            names.add(op.name)
            continue
        computed = op.inputs and not op.op_def.is_stateful and all(t.op.name in names for t in op.inputs)
        if computed and all(_is_small(tensor) for tensor in op.outputs):
            names.add(op.name)
    return names


def _is_small(tensor: tf.Tensor) -> bool:
    if tensor.dtype in (tf.resource, tf.variant):
        return False
    size = tensor.shape.num_elements()
    return tensor.shape.rank == 1 if size is None else size <= _MAX_ELEMENTS


def _make_shape_nodes(op: tf.Operation) -> list[tf.compat.v1.NodeDef]:
    """Returns the operation as a constant. A ShapeN with several outputs becomes an IdentityN of constants."""
    dtype = op.outputs[0].dtype
    values = [_find_shape_value(op.type, tensor, dtype) for tensor in op.inputs]
    if len(values) == 1:
        return [_make_const(op.name, values[0], dtype)]
    parts = [_make_const(f"{op.name}/checkmate_{i}", value, dtype) for i, value in enumerate(values)]
    joined = tf.compat.v1.NodeDef(name=op.name, op="IdentityN", input=[part.name for part in parts])
    joined.attr["T"].list.type.extend([dtype.as_datatype_enum] * len(parts))
    return [*parts, joined]


def _find_shape_value(op_type: str, tensor: tf.Tensor, dtype: tf.DType) -> np.ndarray:
    shape = tensor.shape.as_list()
    value = {"Shape": shape, "ShapeN": shape, "Size": int(np.prod(shape)), "Rank": len(shape)}[op_type]
    return np.array(value, dtype=dtype.as_numpy_dtype)


def _make_const(name: str, value: np.ndarray, dtype: tf.DType) -> tf.compat.v1.NodeDef:
    node_def = tf.compat.v1.NodeDef(name=name, op="Const")
    node_def.attr["dtype"].type = dtype.as_datatype_enum
    node_def.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=dtype, shape=value.shape))
    return node_def
