"""Makes a sum by segments, such as the gradient of a gather, begin with zeros that depend on its terms.

XLA:CPU writes constant zeros at the start of the step, and holds them until the sum is computed (TensorFlow 2.21).
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.order.ties import hold_always
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class SegmentSums(LoweringRule):
    """Makes XLA compute the zeros of a sum by segments when they are needed."""

    op_type = "UnsortedSegmentSum"

    def lower(self, op: tf.Operation) -> Lowering | None:
        sizes = op.outputs[0].shape
        if not sizes.is_fully_defined() or not op.outputs[0].dtype.is_floating:
            return None

        def build(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
            zero = tf.where(hold_always(x), tf.zeros([], x.dtype), tf.ones([], x.dtype))
            return tf.tensor_scatter_nd_add(tf.broadcast_to(zero, sizes), places[..., tf.newaxis], x)

        return Lowering((0, 1), build, is_late=True)
