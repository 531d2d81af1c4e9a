"""Cuts nodes out of the training step as fragments, and gives each a signature. Equal nodes have equal signatures."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.constants import Constants
from checkmate_tf.tf_private import get_resource_handle_data
from checkmate_tf.tracing.layout import keep_layout, may_change_layout
from checkmate_tf.tracing.observed import Observed

# These attributes hold names or inferred shapes, which do not change the computation.
_IGNORED_ATTRIBUTES = frozenset({"_class", "_output_shapes", "_xla_inferred_shapes", "shared_name", "container"})
_ID_LENGTH = 32


@dataclass(frozen=True)
class FragmentInput:
    """A tensor that a fragment reads.

    `constant` is its value if that follows from the graph alone (shapes, axes, paddings), [shape]. Otherwise any value
    will do; an integer has to be below `limit`. A resource is a variable of this shape and dtype.
    """

    dtype: tf.DType
    shape: tuple[int, ...]
    constant: np.ndarray | None = None
    limit: int = 2
    is_resource: bool = False


@dataclass(frozen=True)
class Fragment:
    """The operations of one node, renamed: `n0`, `n1` ... are the operations, and `x0`, `x1` ... their inputs.

    `heads` read nothing of the fragment. Nothing else of the fragment reads `tails`, or something outside reads them,
    too. Both are positions in `node_defs`. `outputs` are the tensors of the tails, (position, output). `functions` are
    those that the operations call.
    """

    node_defs: tuple[node_def_pb2.NodeDef, ...]
    inputs: tuple[FragmentInput, ...]
    heads: tuple[int, ...]
    tails: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    functions: tuple[function_pb2.FunctionDef, ...]
    signature: str

    @property
    def op_types(self) -> str:
        """Returns the types of the fragment's operations."""
        return "+".join(node_def.op for node_def in self.node_defs)


def cut_fragments(
    graph: tf.Graph, groups: Sequence[Sequence[tf.Operation]], observed: Observed | None = None
) -> list[Fragment | ProfileError]:
    """Cuts each group of operations out of `graph`. Each group is in an order in which it can run.

    `observed` are the shapes, and the values computed from shapes, that the graph leaves open.

    If a group reads a tensor for which no value can be made up (a variant, a tensor of unknown shape), a ProfileError
    that says so takes the place of its fragment.
    """
    constants = Constants(graph, observed)
    constants.evaluate(tensor for group in groups for op in group for tensor in op.inputs)
    library = _Library(graph)
    return [_cut_or_error(group, constants, library) for group in groups]


def _cut_or_error(group: Sequence[tf.Operation], constants: Constants, library: "_Library") -> Fragment | ProfileError:
    try:
        return _cut(group, constants, library)
    except ProfileError as error:
        return error


def _cut(group: Sequence[tf.Operation], constants: Constants, library: "_Library") -> Fragment:
    position = {op.name: index for index, op in enumerate(group)}
    inputs: dict[str, int] = {}
    described: list[FragmentInput] = []
    node_defs: list[node_def_pb2.NodeDef] = []
    heads = []
    read_within: set[int] = set()
    for op in group:
        references = []
        for slot, tensor in enumerate(op.inputs):
            producer = position.get(tensor.op.name)
            if producer is not None:
                read_within.add(producer)
                references.append(f"n{producer}:{tensor.value_index}")
                continue
            if tensor.name not in inputs:
                inputs[tensor.name] = len(described)
                described.append(_describe(tensor, op, slot, constants))
            references.append(f"x{inputs[tensor.name]}")
        if all(reference.startswith("x") for reference in references):
            heads.append(position[op.name])
        before = [f"^n{position[control.name]}" for control in op.control_inputs if control.name in position]
        node_defs.append(_make_node_def(op, len(node_defs), references + before))
    tails = tuple(index for index, op in enumerate(group) if index not in read_within or _is_read_outside(op, position))
    outputs = tuple((tail, tensor.value_index) for tail in tails for tensor in group[tail].outputs if _is_plain(tensor))
    functions = library.find_reached(node_defs)
    signature = _hash_fragment(node_defs, described, tails, library)
    return Fragment(tuple(node_defs), tuple(described), tuple(heads), tails, outputs, functions, signature)


def _make_node_def(op: tf.Operation, index: int, inputs: list[str]) -> node_def_pb2.NodeDef:
    node_def = op.node_def
    for attribute in _IGNORED_ATTRIBUTES:
        node_def.attr.pop(attribute, None)
    node_def.name = f"n{index}"
    del node_def.input[:]
    node_def.input.extend(inputs)
    node_def.ClearField("experimental_debug_info")
    return node_def


def _is_read_outside(op: tf.Operation, position: dict[str, int]) -> bool:
    return any(consumer.name not in position for tensor in op.outputs for consumer in tensor.consumers())


def _is_plain(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)


def _describe(tensor: tf.Tensor, reader: tf.Operation, slot: int, constants: Constants) -> FragmentInput:
    constant = constants.get_value(tensor)
    if constant is not None:
        return FragmentInput(tensor.dtype, tuple(constant.shape), constant)
    if tensor.dtype == tf.resource:
        return _describe_resource(tensor)
    if tensor.dtype == tf.variant:
        raise ProfileError(f"{reader.name} ({reader.type}) reads {tensor.name}, a variant, which cannot be made up")
    shape = constants.observed.get_shape(tensor)
    if not shape.is_fully_defined():
        raise ProfileError(
            f"{reader.name} ({reader.type}) reads {tensor.name} of shape {tensor.shape}, whose size is only known "
            "while the step runs"
        )
    return FragmentInput(tensor.dtype, tuple(shape.as_list()), limit=_find_limit(reader, slot, constants))


def _describe_resource(tensor: tf.Tensor) -> FragmentInput:
    handle_data = get_resource_handle_data(tensor)
    if not handle_data.is_set or len(handle_data.shape_and_type) != 1:
        raise ProfileError(f"{tensor.name} is a resource of unknown contents, which cannot be made up")
    held = handle_data.shape_and_type[0]
    shape = tuple(dimension.size for dimension in held.shape.dim)
    if held.shape.unknown_rank or min(shape, default=0) < 0:
        raise ProfileError(f"{tensor.name} is a variable of unknown shape, which cannot be made up")
    return FragmentInput(tf.as_dtype(held.dtype), shape, is_resource=True)


def _find_limit(reader: tf.Operation, slot: int, constants: Constants) -> int:
    """Returns the limit below which integers are valid for input `slot` of `reader` (indices, labels)."""
    observed = constants.observed
    match reader.type, slot:
        case "GatherV2", 1:
            params, axis = reader.inputs[0], tf.get_static_value(reader.inputs[2])
            return int(observed.get_shape(params)[int(axis)] or 2) if axis is not None else 2
        case "ResourceGather", 1:
            return _describe_resource(reader.inputs[0]).shape[0]
        case "SparseSoftmaxCrossEntropyWithLogits", 1:
            return int(observed.get_shape(reader.inputs[0])[1] or 2)
        case ("OneHot", 0) | ("UnsortedSegmentSum", 1):
            tensor = reader.inputs[1 if reader.type == "OneHot" else 2]
            depth = observed.values.get(tensor.name, tf.get_static_value(tensor))
            return int(depth) if depth is not None else 2
        case _:
            return 2


class _Library:
    """The functions of a graph, and identities for them that do not depend on their generated names."""

    def __init__(self, graph: tf.Graph):
        self._functions = {f.signature.name: f for f in graph.as_graph_def(add_shapes=False).library.function}
        self._identities: dict[str, str] = {}

    def find_reached(self, node_defs: Iterable[node_def_pb2.NodeDef]) -> tuple[function_pb2.FunctionDef, ...]:
        """Returns the functions that the nodes call, and those that these call, in the order found."""
        found: dict[str, function_pb2.FunctionDef] = {}
        waiting = [name for node_def in node_defs for name in _list_called(node_def)]
        while waiting:
            name = waiting.pop(0)
            if name in found or name not in self._functions:
                continue
            found[name] = self._functions[name]
            waiting += [called for node_def in found[name].node_def for called in _list_called(node_def)]
        return tuple(found.values())

    def find_identity(self, name: str) -> str:
        """Returns a hash of the function's computation."""
        if name not in self._functions:
            return name
        if name not in self._identities:
            self._identities[name] = "recursive"
            function = self._functions[name]
            # Arguments and nodes keep their names, because TensorFlow numbers these equally in every trace.
            parts = [
                str(function.signature.input_arg),
                str(function.signature.output_arg),
                str(sorted(function.ret.items())),
            ]
            parts += [_write_node_text(node_def, self) + node_def.name for node_def in function.node_def]
            self._identities[name] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_ID_LENGTH]
        return self._identities[name]


def _list_called(node_def: node_def_pb2.NodeDef) -> list[str]:
    names = []
    for _, attribute in sorted(node_def.attr.items()):
        names += [attribute.func.name] if attribute.HasField("func") else []
        names += [function.name for function in attribute.list.func]
    return names


def _hash_fragment(
    node_defs: Sequence[node_def_pb2.NodeDef],
    inputs: Sequence[FragmentInput],
    tails: Sequence[int],
    library: _Library,
) -> str:
    digest = hashlib.sha256()
    for node_def in node_defs:
        digest.update(_write_node_text(node_def, library).encode())
    for described in inputs:
        digest.update(repr((described.dtype.name, described.shape, described.limit, described.is_resource)).encode())
        if described.constant is not None:
            is_text = described.constant.dtype.hasobject
            content = repr(described.constant.tolist()).encode() if is_text else described.constant.tobytes()
            digest.update(b"constant" + content)
    digest.update(repr(tails).encode())
    return digest.hexdigest()[:_ID_LENGTH]


def _write_node_text(node_def: node_def_pb2.NodeDef, library: _Library) -> str:
    attributes: list[tuple[str, Any]] = []
    for name, attribute in sorted(node_def.attr.items()):
        called = _list_called(node_def_pb2.NodeDef(attr={name: attribute}))
        content = [library.find_identity(c) for c in called] or attribute.SerializeToString(deterministic=True).hex()
        if name not in _IGNORED_ATTRIBUTES:
            attributes.append((name, content))
    device = tf.DeviceSpec.from_string(node_def.device).device_type if node_def.device else None
    return repr((node_def.op, list(node_def.input), attributes, device))


def build_graph_def(fragment: Fragment, copies: int) -> graph_pb2.GraphDef:
    """Builds a graph of `copies` of a fragment, one after the other.

    The heads of each copy wait until the tails of the one before have ended. Nodes of copy c are named `c{c}n0` ... A
    node that waits for the tails of a copy is named `done` for the last copy and `c{c}done` for the others, because a
    wait from each head to each tail would be too many for large fragments. The inputs `x0` ... are shared, and not in
    the graph. Operations keep their layout, as in a planned step.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph_def.library.function.extend(fragment.functions)
    heads, keeps_layout = frozenset(fragment.heads), may_change_layout()
    for copy in range(copies):
        for index, node_def in enumerate(fragment.node_defs):
            added = graph_def.node.add()
            added.CopyFrom(node_def)
            added.name = f"c{copy}n{index}"
            added.input[:] = [_name_in_copy(reference, copy) for reference in node_def.input]
            if keeps_layout:
                keep_layout(added)
            if copy and index in heads:
                added.input.append(f"^c{copy - 1}done")
        end = "done" if copy == copies - 1 else f"c{copy}done"
        graph_def.node.add(name=end, op="NoOp", input=[f"^c{copy}n{tail}" for tail in fragment.tails])
    return graph_def


def _name_in_copy(reference: str, copy: int) -> str:
    if reference.startswith("x"):
        return reference
    caret = "^" if reference.startswith("^") else ""
    return f"{caret}c{copy}{reference.removeprefix('^')}"
