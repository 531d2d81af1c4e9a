"""Writes the gradient of a pooling by the maxima of disjoint windows as a comparison with the maximum, which fuses.

XLA:CPU compares positions, in five constants of the size of what was pooled, and XLA:GPU scatters (TensorFlow 2.21).
The comparison gives the same: of equal maxima of a window, the first has the gradient.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule


@dataclass(frozen=True)
class PoolingGradients(LoweringRule):
    """The gradient of a pooling of disjoint windows is a comparison."""

    op_type = "MaxPoolGrad"

    def lower(self, op: tf.Operation) -> Lowering | None:
        sizes = op.inputs[0].shape
        _, height, width, _ = window = op.get_attr("ksize")
        if op.get_attr("data_format") != b"NHWC" or window != op.get_attr("strides") or not sizes.is_fully_defined():
            return None
        if sizes[1] % height or sizes[2] % width or window[0] * window[3] != 1:
            return None
        images, rows, columns, channels = sizes[0], sizes[1] // height, sizes[2] // width, sizes[3]

        def build(x: tf.Tensor, most: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
            windows = tf.reshape(x, (images, rows, height, columns, width, channels))
            most, gradient = (tf.reshape(t, (images, rows, 1, columns, 1, channels)) for t in (most, gradient))
            first = tf.zeros((), tf.int32)  # the place in its window of the first maximum
            for place in reversed(range(height * width)):
                i, j = divmod(place, width)
                first = tf.where(tf.equal(windows[:, :, i : i + 1, :, j : j + 1], most), place, first)
            places = tf.reshape(tf.range(height * width), (1, 1, height, 1, width, 1))
            return tf.reshape(tf.where(tf.equal(places, first), gradient, tf.zeros_like(gradient)), sizes)

        return Lowering((0, 1, 2), build)
