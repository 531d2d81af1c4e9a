"""Describes the effects of TensorFlow's operations on memory and state: aliases, in-place outputs, shapes, state."""

from collections.abc import Iterator
from math import prod

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.tf_private import find_function_definition, find_op_definition, is_reference

# The output of these operations shares the buffer of their first input; output i of IdentityN shares that of input i.
ALIAS_TYPES = frozenset(
    {
        "Bitcast",
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
    }
)

# These operations read only the shape of their inputs.
SHAPE_TYPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})

# These are never part of a node, because they hold resident memory or give access to it.
SOURCE_TYPES = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "VarHandleOp"})

FUNCTION_CALL_TYPES = frozenset(
    {"Case", "If", "PartitionedCall", "StatefulCase", "StatefulIf", "StatefulPartitionedCall"}
    | {"StatefulWhile", "StatelessCase", "StatelessIf", "StatelessWhile", "While"}
)

# These kernels write to the buffer of an equally large input that ends there (forward_input_or_allocate_output).
# fmt: off
_INPLACE_UNARY = frozenset(
    [
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BiasAdd", "Ceil", "Cos", "Cosh", "Digamma", "Elu",
        "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "Inv", "Invert", "LeakyRelu", "Lgamma", "Log",
        "Log1p", "LogSoftmax", "LogicalNot", "Neg", "OnesLike", "Reciprocal", "Relu", "Relu6", "Rint", "Round",
        "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Square",
        "Tan", "Tanh", "ZerosLike",
    ]
)
_INPLACE_BINARY = frozenset(
    [
        "Add", "AddN", "AddV2", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "DivNoNan",
        "EluGrad", "FloorDiv", "FloorMod", "InvGrad", "LeakyReluGrad", "LogicalAnd", "LogicalOr", "Maximum",
        "Minimum", "Mod", "Mul", "MulNoNan", "Pow", "RealDiv", "ReciprocalGrad", "Relu6Grad", "ReluGrad",
        "RsqrtGrad", "SeluGrad", "SigmoidGrad", "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "SquaredDifference",
        "Sub", "TanhGrad", "TruncateDiv", "Xdivy", "Xlogy", "Xlog1py", "SelectV2", "ClipByValue",
    ]
)
# fmt: on


# These kernels write the gradient over the logits.
_INPLACE_LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})


def find_inplace_output(op_type: str) -> int:
    """Returns the index of the output that may take over the buffer of one of `find_inplace_inputs`."""
    return 1 if op_type in _INPLACE_LOSSES else 0


def find_inplace_inputs(op_type: str, num_inputs: int) -> tuple[int, ...]:
    """Returns the indices of inputs whose buffer the output may take over if they have its size and end there."""
    if op_type in _INPLACE_UNARY or op_type in _INPLACE_LOSSES:
        return (0,)
    return tuple(range(num_inputs)) if op_type in _INPLACE_BINARY else ()


def count_static_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes of a tensor with a static shape; None if the shape or the type is open."""
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.variant, tf.string):
        return None
    shape = tensor.shape
    if not shape.is_fully_defined():
        return None
    return prod(shape.as_list()) * dtype.size


def has_static_shape_value(op: tf.Operation) -> bool:
    """Returns whether the op reads only shapes that are known, so that a constant can stand for it."""
    return op.type in SHAPE_TYPES and all(
        tensor.shape.rank is not None if op.type == "Rank" else tensor.shape.is_fully_defined() for tensor in op.inputs
    )


def is_stateful(op: tf.Operation, graph: tf.Graph) -> bool:
    """Returns whether running the op twice may differ from running it once.

    A call counts as stateful only if an op of the called function, at any depth, is.
    """
    if op.type == "ReadVariableOp":
        return False
    if op.type in FUNCTION_CALL_TYPES:
        return _calls_stateful(op.node_def, graph, set())
    return op.op_def is None or op.op_def.is_stateful


def is_handle(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is a variant, a resource or a reference."""
    return tensor.dtype in (tf.variant, tf.resource) or is_reference(tensor.dtype)


def list_called_functions(node_def: NodeDef) -> Iterator[str]:
    """Lists the names of the functions that an op calls."""
    for attribute in node_def.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        yield from (function.name for function in attribute.list.func)


def _calls_stateful(node_def: NodeDef, graph: tf.Graph, seen: set[str]) -> bool:
    for name in list_called_functions(node_def):
        if name in seen:
            continue
        seen.add(name)
        definition = find_function_definition(graph, name)
        if definition is None:
            return True
        for inner in definition.node_def:
            if inner.op == "ReadVariableOp":
                continue
            if inner.op in FUNCTION_CALL_TYPES:
                if _calls_stateful(inner, graph, seen):
                    return True
            elif is_stateful_type(inner.op):
                return True
    return False


def list_reached_op_types(graph: tf.Graph) -> set[str]:
    """Lists the types of all operations of a graph and of the functions that it calls."""
    graph_def = graph.as_graph_def()
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def is_stateful_type(op_type: str) -> bool:
    """Returns whether ops of a type may differ from run to run, or have side effects. Unknown types count."""
    definition = find_op_definition(op_type)
    return definition is None or definition.is_stateful
