"""Finds which Keras layer, and which line of the user's code, made each node of a training graph."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from checkmate_tf.keras_private import is_layer_call
from checkmate_tf.origins import NodeOrigin, Origins, ValueType, read_scope
from checkmate_tf.tf_private import list_traced_frames
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.ops import is_in_gradient

_LIBRARIES = tuple(f"{Path(file).parent}{os.sep}" for file in (keras.__file__, tf.__file__, Path(__file__).parent))


def find_origins(training_graph: TrainingGraph) -> Origins:
    """Returns the origin of every node, and the shape and type of every value that is one tensor.

    A gradient has the origin of the operation of which it is the gradient. Nodes that follow from gradients, such as
    their sums and the optimizer's updates, have the origin of the last gradient that they read.
    """
    finder = _Finder(training_graph)
    origins: list[NodeOrigin] = []
    for number, node in enumerate(training_graph.graph.nodes):
        found = finder.find(node.name)
        before = training_graph.graph.predecessors[number]
        if not found.layer and node.is_backward and before:
            found = NodeOrigin(origins[before[-1]].layer, found.source or origins[before[-1]].source)
        origins.append(found)
    named = zip(_drop_common_root(origins), training_graph.graph.nodes, strict=True)
    return Origins(
        tuple(NodeOrigin(origin.layer or read_scope(node.name), origin.source) for origin, node in named),
        tuple(_describe(training_graph, value) for value in range(len(training_graph.tensors))),
    )


class _Finder:
    """Finds origins by the names of operations."""

    def __init__(self, training_graph: TrainingGraph):
        traced = training_graph.traced or training_graph.function
        self.ops = {op.name: op for op in traced.graph.get_operations()}
        self.first_in_scope: dict[str, tf.Operation] = {}
        for op in self.ops.values():
            for scope in () if is_in_gradient(op) else _list_scopes(op.name):
                self.first_in_scope.setdefault(scope, op)

    def find(self, name: str) -> NodeOrigin:
        """Returns the origin of an operation; an empty one if it belongs to no layer."""
        op = self.ops.get(name)
        if op is None:
            return NodeOrigin()
        if not is_in_gradient(op):
            return _read_origin(op, name)
        _, _, inner = name.partition("/")
        for scope in (inner, *_list_scopes(inner)):
            if scope in self.ops:
                return _read_origin(self.ops[scope], scope)
            if scope in self.first_in_scope:
                return _read_origin(_find_read(op, f"{scope}/") or self.first_in_scope[scope], f"{scope}/")
        read = _find_read(op, "")
        return NodeOrigin() if read is None else _read_origin(read, "")


def _find_read(op: tf.Operation, scope: str) -> tf.Operation | None:
    """Returns an operation of the forward pass, in a name scope, that a gradient reads."""
    read = (tensor.op for tensor in op.inputs if tensor.op.name.startswith(scope))
    return next((one for one in read if not is_in_gradient(one)), None)


def _list_scopes(name: str) -> Iterator[str]:
    """Lists the name scopes around an operation, the innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _read_origin(op: tf.Operation, name: str) -> NodeOrigin:
    """Returns the origin of an operation with a name in a layer's scopes."""
    frames = list_traced_frames(op)
    num_layers = sum(map(is_layer_call, frames))
    # Keras enters a layer's name scope once to build it and once more to call it, so TensorFlow appends a count to the
    # latter. A scope without a count is the user's.
    counted = [scope for scope in name.split("/")[:-1] if scope.rpartition("_")[2].isdigit()]
    layer = "/".join(scope.rpartition("_")[0] for scope in counted[:num_layers])
    own = next((frame for frame in reversed(frames) if not frame.filename.startswith(_LIBRARIES)), None)
    return NodeOrigin(layer, "" if own is None else f"{_shorten(own.filename)}:{own.lineno}")


def _shorten(filename: str) -> str:
    """Returns a file's path relative to the current folder or to the folder in which Python found it."""
    path = Path(filename)
    for folder in (os.getcwd(), *sys.path):
        if folder and path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return filename


def _drop_common_root(origins: Sequence[NodeOrigin]) -> Iterator[NodeOrigin]:
    """Removes the model's own name from the paths of layers, if all are layers of one model."""
    roots = {origin.layer.partition("/")[0] for origin in origins if origin.layer}
    for origin in origins:
        _, _, rest = origin.layer.partition("/")
        yield NodeOrigin(rest, origin.source) if len(roots) == 1 and rest else origin


def _describe(training_graph: TrainingGraph, value: int) -> ValueType:
    tensors = training_graph.get_value_tensors(value)
    if len(tensors) != 1 or not tensors[0].shape.is_fully_defined():
        return ValueType()
    return ValueType(tuple(tensors[0].shape), tensors[0].dtype.name)
