"""Writes the gradient of a max pooling of disjoint windows as comparisons within a window, which fuse.

XLA:CPU compares positions, in five constants of the size of the pooling's input, and XLA:GPU scatters (TensorFlow
2.21). The result is the same: of equal maxima in a window, the first gets the gradient. The maximum is not read from
the forward pass, because another kernel may compute the input again and round it differently, so that no value equals
its maximum.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class PoolingGradients(LoweringRule):
    """Makes the gradient of a pooling of disjoint windows compare the elements of each window."""

    op_type = "MaxPoolGrad"

    def lower(self, op: tf.Operation) -> Lowering | None:
        sizes = op.inputs[0].shape
        _, height, width, _ = window = op.get_attr("ksize")
        if op.get_attr("data_format") != b"NHWC" or window != op.get_attr("strides") or not sizes.is_fully_defined():
            return None
        if sizes[1] % height or sizes[2] % width or window[0] * window[3] != 1:
            return None
        images, rows, columns, channels = sizes[0], sizes[1] // height, sizes[2] // width, sizes[3]

        def build(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
            windows = tf.reshape(x, (images, rows, height, columns, width, channels))
            gradient = tf.reshape(gradient, (images, rows, 1, columns, 1, channels))
            most, first = windows[:, :, :1, :, :1], tf.zeros((), tf.int32)  # the first maximum, and its place
            for place in range(1, height * width):
                i, j = divmod(place, width)
                here = windows[:, :, i : i + 1, :, j : j + 1]
                is_more = here > most
                most, first = tf.where(is_more, here, most), tf.where(is_more, place, first)
            places = tf.reshape(tf.range(height * width), (1, 1, height, 1, width, 1))
            return tf.reshape(tf.where(tf.equal(places, first), gradient, tf.zeros_like(gradient)), sizes)

        return Lowering((0, 2), build)
