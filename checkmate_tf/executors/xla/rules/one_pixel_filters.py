"""Writes the filter gradient of a convolution of one pixel as a product of matrices.

XLA:CPU transposes both operands of a filter gradient (TensorFlow 2.21). A product needs no transposes. On an H100,
XLA:GPU took more time with the product.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class OnePixelFilters(LoweringRule):
    """Writes the gradient of a filter of one pixel as a product of matrices."""

    op_type = "Conv2DBackpropFilter"

    def lower(self, op: tf.Operation) -> Lowering | None:
        sizes = op.outputs[0].shape
        if op.get_attr("data_format") != b"NHWC" or set(op.get_attr("strides")) != {1} or not sizes.is_fully_defined():
            return None
        in_groups = op.inputs[0].shape[3] != sizes[2]
        if tuple(sizes[:2]) != (1, 1) or in_groups or b"EXPLICIT" in op.get_attr("padding"):
            return None

        def build(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
            x, gradient = (tf.reshape(t, (-1, channels)) for t, channels in ((x, sizes[2]), (gradient, sizes[3])))
            return tf.reshape(tf.matmul(x, gradient, transpose_a=True), sizes)

        return Lowering((0, 2), build, is_product=True)
