"""Builds a function with the arguments and captured tensors of an existing one, and a GraphDef as its body."""

from collections.abc import Mapping
from types import MappingProxyType

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.tf_private import ConcreteFunction, FuncGraph, copy_handle_data, hold_functions

# TensorFlow sets these attributes on functions of tf.function(jit_compile=True).
_JIT_COMPILED = "_XlaMustCompile"
_NOT_INLINED = "_noinline"
_AS_SOURCE: Mapping[str, tf.Tensor] = MappingProxyType({})


def build_function(
    source: ConcreteFunction,
    graph_def: GraphDef,
    outputs: list[str],
    controls: list[str],
    captured: Mapping[str, tf.Tensor] = _AS_SOURCE,
) -> ConcreteFunction:
    """Builds a function with the arguments, captured tensors and structured outputs of `source` and another body.

    XLA compiles it if it compiles `source`.

    Args:
        graph_def: the body. The placeholders of `source` represent its arguments and captured tensors.
        outputs: names of the tensors to return, in the order of `source.outputs`.
        controls: operations that must run although nothing reads them.
        captured: name of a placeholder -> the tensor to capture for it, for those that differ from `source`.

    Raises EmissionError if TensorFlow refuses the body.
    """
    graph = FuncGraph(f"{source.graph.name}_rematerialized")
    body = GraphDef(versions=graph_def.versions, library=graph_def.library)
    names = {tensor.op.name for tensor in source.inputs}
    body.node.extend(definition for definition in graph_def.node if definition.name not in names)
    read = {name.lstrip("^").partition(":")[0] for definition in body.node for name in definition.input}
    read |= {name.partition(":")[0] for name in outputs}
    with graph.as_default():
        inputs = [_add_placeholder(tensor) for tensor in source.inputs]
        mapped = {
            f"{old.op.name}:0": new for old, new in zip(source.inputs, inputs, strict=True) if old.op.name in read
        }
        try:
            imported = tf.graph_util.import_graph_def(
                body, input_map=mapped, return_elements=[*outputs, *controls], name=""
            )
        except (ValueError, tf.errors.OpError) as error:
            raise EmissionError(f"TensorFlow refuses the rewritten step: {error}") from error
    all_captured = source.captured_inputs
    num_arguments = len(inputs) - len(all_captured)
    graph.inputs = inputs[:num_arguments]
    for tensor, placeholder, old in zip(
        all_captured, inputs[num_arguments:], source.inputs[num_arguments:], strict=True
    ):
        graph.add_capture(captured.get(old.op.name, tensor), placeholder)
    graph.outputs = list(imported[: len(outputs)])
    graph.control_outputs = list(imported[len(outputs) :])
    graph.structured_input_signature = source.structured_input_signature
    graph.structured_outputs = source.graph.structured_outputs
    graph.variables = source.graph.variables
    hold_functions(graph, source.graph)
    attributes = _make_jit_attributes(source)
    return ConcreteFunction.from_func_graph(graph, source.function_type, attributes)


def copy_function(source: ConcreteFunction) -> ConcreteFunction:
    """Makes a copy of a function, which can be deleted before its source.

    TensorFlow computes some values before a function's first run, such as products of constants. It holds them as long
    as that function lives. If the copy runs, they are freed with the copy.
    """
    attributes = _make_jit_attributes(source)
    return ConcreteFunction.from_func_graph(source.graph, source.function_type, attributes)


def is_jit_compiled(function: ConcreteFunction) -> bool:
    """Returns whether a function was traced from a `tf.function(jit_compile=True)`."""
    attributes = function.function_def.attr
    return _JIT_COMPILED in attributes and attributes[_JIT_COMPILED].b


def _make_jit_attributes(source: ConcreteFunction) -> dict[str, bool]:
    return {_JIT_COMPILED: True, _NOT_INLINED: True} if is_jit_compiled(source) else {}


def _add_placeholder(tensor: tf.Tensor) -> tf.Tensor:
    placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=tensor.op.name.split("/")[-1])
    copy_handle_data(tensor, placeholder)
    return placeholder
