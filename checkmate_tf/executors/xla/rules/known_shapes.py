"""Reads sizes and axes that are known before a step runs, for rules."""

import numpy as np
import tensorflow as tf

# These operations compute the axes over which a gradient is summed, from known shapes.
_OF_SHAPES = ("BroadcastGradientArgs", "StridedSlice")


def read_known(tensor: tf.Tensor) -> np.ndarray | None:
    """Returns the value of a tensor of sizes or axes if it is known before a step runs; otherwise None."""
    op = tensor.op
    known = tf.get_static_value(tensor)
    if known is not None or op.type not in _OF_SHAPES:
        return known
    inputs = [read_known(given) for given in op.inputs]
    if any(value is None for value in inputs):
        return None
    names = [argument.name for argument in op.op_def.input_arg]
    attributes = {a.name: op.get_attr(a.name) for a in op.op_def.attr if a.type != "type"}
    with tf.init_scope():
        found = getattr(tf.raw_ops, op.type)(**dict(zip(names, inputs, strict=True)), **attributes)
    return (found[tensor.value_index] if len(op.outputs) > 1 else found).numpy()
