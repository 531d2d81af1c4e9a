"""Makes the gradient of a ReLU of a product read the result of the ReLU.

XLA replaces the comparison of a ReLU's result with zero by one of the ReLU's input (seen in XLA:GPU of JAX 0.10.2, for
an H100). A step then holds two tensors for each such ReLU: the product, for this comparison, and the ReLU's result, for
the gradient of the next product. A barrier in front of the comparison leaves the product with a single reader, so that
it is not held, and cuDNN can compute the ReLU with the convolution.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule
from checkmate_tf.tf_private import make_barrier


@dataclass(frozen=True)
class ReluGradients(LoweringRule):
    """Keeps the gradient of a ReLU of a product from reading the product."""

    op_type = "ReluGrad"

    def lower(self, op: tf.Operation) -> Lowering | None:
        if not follows_product(op.inputs[1].op):
            return None

        def build(gradient: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
            return tf.where(make_barrier(result) > 0, gradient, tf.zeros([], gradient.dtype))

        return Lowering((0, 1), build, is_late=True)


def follows_product(op: tf.Operation) -> bool:
    """Returns whether an operation is the ReLU of a product, perhaps with a bias."""
    if op.type != "Relu":
        return False
    source = op.inputs[0].op
    return is_product(source.inputs[0].op.type if source.type == "BiasAdd" else source.type)
