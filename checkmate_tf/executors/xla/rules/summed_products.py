"""Writes the sum of a batch of products of matrices as one product of larger matrices.

TensorFlow computes the gradient of weights that are applied to each element of a sequence as one product for each entry
of the batch, and sums these products. XLA merges some of them. It keeps others, in a buffer as large as the gradient
times the batch size (TensorFlow 2.21). The result is the same up to rounding.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.rules.known_shapes import read_known
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class SummedProducts(LoweringRule):
    """Writes a sum of products as one product."""

    op_type = "Sum"

    def lower(self, op: tf.Operation) -> Lowering | None:
        product = op.inputs[0].op
        if product.type != "BatchMatMulV2" or len(op.inputs[0].consumers()) != 1 or op.get_attr("keep_dims"):
            return None
        x, y = product.inputs
        is_known = x.shape.is_fully_defined() and y.shape.is_fully_defined()
        if not is_known or not product.get_attr("adj_x") or product.get_attr("adj_y") or x.shape[:-2] != y.shape[:-2]:
            return None
        axes = read_known(op.inputs[1])
        if axes is None or sorted(axes.flat) != list(range(x.shape.rank - 2)):
            return None
        rows, columns = x.shape[-1], y.shape[-1]

        def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return tf.matmul(tf.reshape(x, (-1, rows)), tf.reshape(y, (-1, columns)), transpose_a=True)

        return Lowering((0, 1), build, is_product=True, within=(product,))
