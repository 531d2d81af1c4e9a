"""Writes the gradient of a maximum or minimum over axes as a comparison of values with their own extreme.

TensorFlow's gradient selects the entries that equal the extreme of the forward pass, and divides by their number.
Another kernel may compute the values again and round them differently (XLA:CPU of TensorFlow 2.21), so that none of
them equals its extreme, and the gradient is 0/0. The price is one more reduction for each such gradient.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.xla.rules.known_shapes import read_known
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule

_REDUCTIONS = {"Max": tf.reduce_max, "Min": tf.reduce_min}


@dataclass(frozen=True)
class ExtremesOfAxes(LoweringRule):
    """Makes a comparison of values with their extreme over axes read only the values."""

    op_type = "Equal"

    def lower(self, op: tf.Operation) -> Lowering | None:
        first, second = op.inputs
        return _lower(op, first, second, 1) or _lower(op, second, first, 0)


def _lower(op: tf.Operation, compared: tf.Tensor, values: tf.Tensor, position: int) -> Lowering | None:
    """Lowers a comparison with `values`, the input at `position`. Returns None if `compared` is not their extreme."""
    while compared.op.type == "Reshape":
        compared = compared.op.inputs[0]
    reduce = _REDUCTIONS.get(compared.op.type)
    if reduce is None or compared.op.inputs[0] is not values or not values.shape.is_fully_defined():
        return None
    axes = read_known(compared.op.inputs[1])
    if axes is None:
        return None
    kept = np.array(values.shape.as_list())
    kept[axes] = 1
    if op.inputs[1 - position].shape.as_list() != kept.tolist():
        return None  # The extremes were reshaped to be compared along another axis.

    def build(values: tf.Tensor) -> tf.Tensor:
        return tf.equal(reduce(values, axes, keepdims=True), values)

    return Lowering((position,), build)
