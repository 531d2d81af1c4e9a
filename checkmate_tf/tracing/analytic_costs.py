"""Estimates the costs of operations on a nominal device by formulas, until measured costs replace them.

The nominal device computes 10 floating-point operations in the time in which it moves one byte, which is about right
for CPUs in float32. GPUs differ from that, but costs are only compared with each other. The time of an operation is the
longer of computing and moving its inputs and outputs, plus its dispatch.
"""

from math import prod

import tensorflow as tf

from checkmate_tf.tf_private import get_loop_body
from checkmate_tf.tracing.loops import WHILE_TYPES, count_iterations

FLOPS_PER_NS = 100.0
BYTES_PER_NS = 10.0
DISPATCH_NS = 1_000
COST_UNIT = "nominal ns"

# Operations that take about this many floating-point operations per output element, not one.
# fmt: off
_COSTLY_ELEMENTWISE = dict.fromkeys(
    [
        "Erf", "Erfc", "Exp", "Expm1", "Log", "Log1p", "Pow", "Sigmoid", "Tanh", "Softmax", "LogSoftmax",
        "Softplus", "Sin", "Cos", "Rsqrt", "Sqrt", "Elu", "Selu", "StatelessRandomUniformV2",
        "StatelessRandomNormalV2",
    ],
    20,
)
# fmt: on


def estimate_op_cost_ns(op: tf.Operation) -> int:
    """Returns the nominal nanoseconds of one operation. Shapes that are not static count as empty."""
    moved = sum(_count_bytes(t) for t in op.inputs) + sum(_count_bytes(t) for t in op.outputs)
    return int(max(count_op_flops(op) / FLOPS_PER_NS, moved / BYTES_PER_NS)) + DISPATCH_NS


def count_op_flops(op: tf.Operation) -> int:
    """Returns the floating-point operations of one op: exactly for convolutions and products, otherwise roughly.

    Other ops count one or more for each element. For a loop, it counts those of all iterations; for a loop with an
    unknown number of iterations, those of one.
    """
    if op.type in WHILE_TYPES:
        return (count_iterations(op) or 1) * sum(map(count_op_flops, get_loop_body(op).get_operations()))
    flops = _PRODUCT_FLOPS.get(op.type)
    if flops is not None:
        return flops(op)
    elements = max((_count_elements(t) for t in (*op.inputs, *op.outputs)), default=0)
    return elements * _COSTLY_ELEMENTWISE.get(op.type, 1)


def is_product(op: tf.Operation) -> bool:
    """Returns whether an op is a convolution or a product of matrices."""
    return op.type in _PRODUCT_FLOPS


def _count_conv(op: tf.Operation) -> int:
    """Returns 2 x output elements x the filter taps in each sum. The filter is [*window, in / groups, out]."""
    filters = _get_shape(op.inputs[1])
    return 2 * _count_elements(op.outputs[0]) * prod(filters[:-1])


def _count_conv_input_gradient(op: tf.Operation) -> int:
    return 2 * _count_elements(op.inputs[2]) * prod(_get_shape(op.inputs[1])[:-1])


def _count_conv_filter_gradient(op: tf.Operation) -> int:
    return 2 * _count_elements(op.inputs[2]) * prod(_get_shape(op.outputs[0])[:-1])


def _count_depthwise(op: tf.Operation) -> int:
    """Returns the count for a convolution whose outputs sum over the window alone.

    The filter is [height, width, in, multiplier].
    """
    return 2 * _count_elements(op.outputs[0]) * prod(_get_shape(op.inputs[1])[:2])


def _count_depthwise_input_gradient(op: tf.Operation) -> int:
    return 2 * _count_elements(op.inputs[2]) * prod(_get_shape(op.inputs[1])[:2])


def _count_depthwise_filter_gradient(op: tf.Operation) -> int:
    return 2 * _count_elements(op.inputs[2]) * prod(_get_shape(op.outputs[0])[:2])


def _count_matmul(op: tf.Operation) -> int:
    left = _get_shape(op.inputs[0])
    if len(left) < 2:
        return 0
    transposed = "transpose_a" if op.type == "MatMul" else "adj_x"
    inner = left[-2] if op.get_attr(transposed) else left[-1]
    return 2 * _count_elements(op.outputs[0]) * inner


def _count_einsum(op: tf.Operation) -> int:
    """Returns 2 x the product of the sizes of all labels of the equation; 2 an element if an ellipsis hides some."""
    equation = op.get_attr("equation").decode()
    if "." in equation:
        return 2 * max(_count_elements(t) for t in (*op.inputs, *op.outputs))
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.split("->")[0].split(","), op.inputs, strict=True):
        sizes.update(zip(labels, _get_shape(tensor), strict=False))
    return 2 * prod(sizes.values())


_PRODUCT_FLOPS = {
    "Conv2D": _count_conv,
    "Conv3D": _count_conv,
    "Conv2DBackpropInput": _count_conv_input_gradient,
    "Conv3DBackpropInputV2": _count_conv_input_gradient,
    "Conv2DBackpropFilter": _count_conv_filter_gradient,
    "Conv3DBackpropFilterV2": _count_conv_filter_gradient,
    "DepthwiseConv2dNative": _count_depthwise,
    "DepthwiseConv2dNativeBackpropInput": _count_depthwise_input_gradient,
    "DepthwiseConv2dNativeBackpropFilter": _count_depthwise_filter_gradient,
    "MatMul": _count_matmul,
    "BatchMatMul": _count_matmul,
    "BatchMatMulV2": _count_matmul,
    "BatchMatMulV3": _count_matmul,
    "Einsum": _count_einsum,
}


def _get_shape(tensor: tf.Tensor) -> list[int]:
    """Returns the static shape, with 0 for unknown dimensions."""
    if tensor.shape.rank is None:
        return []
    return [size or 0 for size in tensor.shape.as_list()]


def _count_elements(tensor: tf.Tensor) -> int:
    return prod(_get_shape(tensor)) if tensor.shape.rank is not None else 0


def _count_bytes(tensor: tf.Tensor) -> int:
    return _count_elements(tensor) * tensor.dtype.base_dtype.size if tensor.dtype.base_dtype.size else 0
