"""Writes the gradient of the loss of logits and classes over the logits.

XLA:CPU computes the loss in three tensors of the logits' size: the logits, their exponentials, and the loss of each
class, of which all but one are zero (TensorFlow 2.21). Here the logit of the expected class is read first, and the
exponentials overwrite the logits. A comparison with the largest logit, which changes nothing, keeps XLA from reading it
last. A bias is added in one kernel, divided by a one for each row that XLA does not know to be one: with a single one,
XLA would put a reshape between the logits and their exponentials, and could not overwrite the logits.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.xla.order.ties import divide, hold_each
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class LossesOverLogits(LoweringRule):
    """The exponentials of logits are written over these."""

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
            if not is_stored:  # Each reader would add a bias to what the product is.
                logits = logits / tf.where(hold_each(labels), tf.ones([], logits.dtype), tf.zeros([], logits.dtype))
            at_label = divide(tf.gather(logits, inside, batch_dims=1), logits)
            # That is no larger than the largest, but XLA does not know it, and so comes to it first.
            largest = tf.maximum(tf.reduce_max(logits, 1, keepdims=True), at_label)
            exponentials = tf.exp(logits - largest)
            total = tf.reduce_sum(exponentials, 1, keepdims=True)
            invalid = tf.where(tf.equal(labels, inside), tf.zeros([], logits.dtype), tf.constant(np.nan, logits.dtype))
            loss = tf.math.log(total) - (at_label - largest) + invalid
            expected = tf.one_hot(labels[:, 0], num_classes, dtype=logits.dtype) + invalid
            return loss[:, 0], exponentials / total - expected

        return Lowering((0, 1), build, takes_over=True)
