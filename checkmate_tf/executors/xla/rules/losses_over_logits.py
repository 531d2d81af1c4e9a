"""Makes the gradient of a loss of logits and classes overwrite the logits.

XLA:CPU computes the loss in three tensors of the logits' size: the logits, their exponentials, and the loss of each
class, of which all but one are zero (TensorFlow 2.21). With this rule, the logit of the expected class is read first,
and the exponentials overwrite the logits. A comparison of that logit with the largest one, which changes nothing, keeps
XLA from reading it last. If a bias is added to the logits, one kernel adds it and divides the sum by a 1 for each row
that XLA does not know. With a single 1, XLA would put a reshape between the logits and their exponentials, and could
not overwrite the logits.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.xla.order.ties import divide, hold_each
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class LossesOverLogits(LoweringRule):
    """Writes the exponentials of logits over the logits."""

    op_type = "SparseSoftmaxCrossEntropyWithLogits"

    def lower(self, op: tf.Operation) -> Lowering | None:
        num_classes = op.inputs[0].shape[1]
        if num_classes is None:
            return None
        source = op.inputs[0].op
        while source.type == "Reshape":
            source = source.inputs[0].op
        is_stored = source.type == "MatMul"

        def build(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            labels = labels[:, tf.newaxis]
            inside = tf.clip_by_value(labels, 0, num_classes - 1)
            if not is_stored:  # Otherwise, each reader would add the bias to the product.
                logits = logits / tf.where(hold_each(labels), tf.ones([], logits.dtype), tf.zeros([], logits.dtype))
            at_label = divide(tf.gather(logits, inside, batch_dims=1), logits)
            # `at_label` is never the larger one. XLA does not know that, so it reads `at_label` first.
            largest = tf.maximum(tf.reduce_max(logits, 1, keepdims=True), at_label)
            exponentials = tf.exp(logits - largest)
            total = tf.reduce_sum(exponentials, 1, keepdims=True)
            invalid = tf.where(tf.equal(labels, inside), tf.zeros([], logits.dtype), tf.constant(np.nan, logits.dtype))
            loss = tf.math.log(total) - (at_label - largest) + invalid
            expected = tf.one_hot(labels[:, 0], num_classes, dtype=logits.dtype) + invalid
            return loss[:, 0], exponentials / total - expected

        return Lowering((0, 1), build, takes_over=True)
