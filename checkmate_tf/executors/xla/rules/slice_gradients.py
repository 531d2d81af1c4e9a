"""Concatenates the gradients of slices that make up a tensor.

TensorFlow pads each of them to the size of the whole, and adds them up. XLA holds one such tensor for each slice
(TensorFlow 2.21). Keras's `TimeDistributed` reads slices in this way.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.rules.known_shapes import read_known
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule

# The position of the gradient in a StridedSliceGrad's inputs, after the sizes of the whole and the slice's bounds.
_GRADIENT = 4


@dataclass(frozen=True)
class SliceGradients(LoweringRule):
    """Writes a sum of padded gradients as their concatenation."""

    op_type = "AddN"

    def lower(self, op: tf.Operation) -> Lowering | None:
        pads = [tensor.op for tensor in op.inputs]
        if any(pad.type != "StridedSliceGrad" or len(pad.outputs[0].consumers()) != 1 for pad in pads):
            return None
        parts = [_find_part(pad) for pad in pads]
        known = [part for part in parts if part is not None]
        sizes = op.outputs[0].shape
        if len(known) < len(parts) or not sizes.is_fully_defined():
            return None
        sliced = {
            axis for part in known for axis, (start, stop) in enumerate(part) if (start, stop) != (0, sizes[axis])
        }
        if len(sliced) != 1:
            return None
        (axis,) = sliced
        order = sorted(range(len(known)), key=lambda number: known[number][axis])
        ends = [0, *(known[number][axis][1] for number in order)]
        if [known[number][axis][0] for number in order] != ends[:-1] or ends[-1] != sizes[axis]:
            return None
        shapes = [[stop - start for start, stop in part] for part in known]

        def build(*gradients: tf.Tensor) -> tf.Tensor:
            return tf.concat([tf.reshape(gradients[number], shapes[number]) for number in order], axis)

        return Lowering((_GRADIENT,), build, within=tuple(pads))


def _find_part(pad: tf.Operation) -> list[tuple[int, int]] | None:
    """Returns the start and end of a gradient's slice on each axis; None if some of them are unknown."""
    sizes, begins, ends, strides = (read_known(tensor) for tensor in pad.inputs[:_GRADIENT])
    if sizes is None or begins is None or ends is None or strides is None or not (strides == 1).all():
        return None
    if pad.get_attr("ellipsis_mask") or pad.get_attr("new_axis_mask"):
        return None
    begin_mask, end_mask, shrink_mask = (pad.get_attr(f"{name}_mask") for name in ("begin", "end", "shrink_axis"))
    part = [(0, int(size)) for size in sizes]
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        size, bit = part[axis][1], 1 << axis
        start, stop, _ = slice(None if begin_mask & bit else begin, None if end_mask & bit else end).indices(size)
        if shrink_mask & bit:
            start, stop = begin % size, begin % size + 1
        part[axis] = int(start), int(stop)
    return part
