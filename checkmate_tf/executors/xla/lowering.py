"""Writes some operations otherwise than TensorFlow lowers them, where XLA would hold or compute far more.

All give what the operations give, the second and fourth up to rounding. The first three are for all backends, the
others for XLA:CPU:

- the gradient of a pooling by the maxima of disjoint windows: a comparison with the maximum that fuses with its
  readers. XLA:CPU compares positions, in five constants of the size of what was pooled, and XLA:GPU scatters;
- the sum of a batch of products of matrices, which is how TensorFlow computes the gradient of weights that are applied
  to a sequence: one product of larger matrices. XLA may hold a product for each member of the batch;
- the sum of the gradients of slices that make up a tensor, each padded to its size: their concatenation;
- the filter gradient of a convolution of one pixel: a product of matrices. XLA:CPU transposes both operands;
- the loss of logits and classes: what it reads of the logits is read before their exponentials are computed, which are
  then written over them. XLA:CPU would hold two tensors more of that size: the exponentials, and a mask of the classes;
- sums by segments: the zeros that are added to are computed when they are needed. XLA:CPU would hold them, a constant,
  from the start of the step;
- other filter gradients: what they read of the forward pass is computed before it is transposed, and not before the
  gradient is there. XLA:CPU would compute it as it transposes, which takes several times as long as both apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.ties import divide, hold_always, hold_each, select

# From shapes that are known, these compute the axes that a gradient is summed over.
_OF_SHAPES = ("BroadcastGradientArgs", "StridedSlice")
# The input of a StridedSliceGrad behind the sizes of the whole and the places of the slice.
_GRADIENT = 4


@dataclass(frozen=True)
class Lowering:
    """A lowering tells how to compute an operation's outputs from the inputs at some positions.

    Args:
        build: makes the only output, or a tuple of all.
        is_product: what is written multiplies matrices.
        within: operations that yield the first inputs, and are computed within what is written, from their inputs at
            these positions.
        is_late: it is compiled to what the operation would be, but that nothing of it is computed before its inputs.
        takes_over: its largest output is written over its first input, where nothing reads that later.
    """

    inputs: tuple[int, ...]
    build: Callable[..., Any]
    is_product: bool = False
    is_late: bool = False
    takes_over: bool = False
    within: tuple[tf.Operation, ...] = ()


def find_lowering(op: tf.Operation, backend: Backend) -> Lowering | None:
    """Finds what to write in the place of an operation; None to leave it."""
    lower = _FOR_ALL.get(op.type) or (_FOR_CPU.get(op.type) if backend == "cpu" else None)
    return lower(op) if lower else None


def _lower_pooling(op: tf.Operation) -> Lowering | None:
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


def _lower_sum(op: tf.Operation) -> Lowering | None:
    product = op.inputs[0].op
    if product.type != "BatchMatMulV2" or len(op.inputs[0].consumers()) != 1 or op.get_attr("keep_dims"):
        return None
    x, y = product.inputs
    is_known = x.shape.is_fully_defined() and y.shape.is_fully_defined()
    if not is_known or not product.get_attr("adj_x") or product.get_attr("adj_y") or x.shape[:-2] != y.shape[:-2]:
        return None
    axes = _read_known(op.inputs[1])
    if axes is None or sorted(axes.flat) != list(range(x.shape.rank - 2)):
        return None
    rows, columns = x.shape[-1], y.shape[-1]

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.reshape(x, (-1, rows)), tf.reshape(y, (-1, columns)), transpose_a=True)

    return Lowering((0, 1), build, is_product=True, within=(product,))


def _lower_slices(op: tf.Operation) -> Lowering | None:
    pads = [tensor.op for tensor in op.inputs]
    if any(pad.type != "StridedSliceGrad" or len(pad.outputs[0].consumers()) != 1 for pad in pads):
        return None
    parts = [_find_part(pad) for pad in pads]
    known = [part for part in parts if part is not None]
    sizes = op.outputs[0].shape
    if len(known) < len(parts) or not sizes.is_fully_defined():
        return None
    sliced = {axis for part in known for axis, (start, stop) in enumerate(part) if (start, stop) != (0, sizes[axis])}
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
    """Finds the start and end on each axis of the slice that a gradient is of; None where that is not all known."""
    sizes, begins, ends, strides = (_read_known(tensor) for tensor in pad.inputs[:_GRADIENT])
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


def _read_known(tensor: tf.Tensor) -> np.ndarray | None:
    """Reads what TensorFlow knows of a tensor of sizes or axes before a step runs; None where that is nothing."""
    op = tensor.op
    known = tf.get_static_value(tensor)
    if known is not None or op.type not in _OF_SHAPES:
        return known
    inputs = [_read_known(given) for given in op.inputs]
    if any(value is None for value in inputs):
        return None
    names = [argument.name for argument in op.op_def.input_arg]
    attributes = {a.name: op.get_attr(a.name) for a in op.op_def.attr if a.type != "type"}
    with tf.init_scope():
        found = getattr(tf.raw_ops, op.type)(**dict(zip(names, inputs, strict=True)), **attributes)
    return (found[tensor.value_index] if len(op.outputs) > 1 else found).numpy()


def _lower_one_pixel(op: tf.Operation) -> Lowering | None:
    sizes = op.outputs[0].shape
    if op.get_attr("data_format") != b"NHWC" or set(op.get_attr("strides")) != {1} or not sizes.is_fully_defined():
        return None
    in_groups = op.inputs[0].shape[3] != sizes[2]
    if tuple(sizes[:2]) != (1, 1) or in_groups or b"EXPLICIT" in op.get_attr("padding"):
        return None

    def build(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        x, gradient = (tf.reshape(t, (-1, channels)) for t, channels in ((x, sizes[2]), (gradient, sizes[3])))
        return tf.reshape(tf.matmul(x, gradient, transpose_a=True), sizes)

    return Lowering((0, 2), build, is_product=True)


def _lower_segments(op: tf.Operation) -> Lowering | None:
    sizes = op.outputs[0].shape
    if not sizes.is_fully_defined() or not op.outputs[0].dtype.is_floating:
        return None

    def build(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        zero = tf.where(hold_always(x), tf.zeros([], x.dtype), tf.ones([], x.dtype))
        return tf.tensor_scatter_nd_add(tf.broadcast_to(zero, sizes), places[..., tf.newaxis], x)

    return Lowering((0, 1), build, is_late=True)


def _lower_cross_entropy(op: tf.Operation) -> Lowering | None:
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


_FOR_ALL: dict[str, Callable[[tf.Operation], Lowering | None]] = {
    "AddN": _lower_slices,
    "MaxPoolGrad": _lower_pooling,
    "Sum": _lower_sum,
}
_FOR_CPU: dict[str, Callable[[tf.Operation], Lowering | None]] = {
    "Conv2DBackpropFilter": _lower_one_pixel,
    "SparseSoftmaxCrossEntropyWithLogits": _lower_cross_entropy,
    "UnsortedSegmentSum": _lower_segments,
}


def find_apart(op: tf.Operation) -> Lowering | None:
    """Finds how to write a filter gradient whose operands XLA:CPU transposes; None for all else."""
    if (
        op.type != "Conv2DBackpropFilter"
        or _lower_one_pixel(op) is not None
        or not op.outputs[0].shape.is_fully_defined()
    ):
        return None
    sizes = op.outputs[0].shape.as_list()
    names = ("strides", "padding", "explicit_paddings", "data_format", "dilations")
    attributes = {name: op.get_attr(name) for name in names}

    def build(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        # XLA would make one quotient of two, if x is one.
        apart = divide(select(hold_always(gradient), x), gradient)
        result = tf.raw_ops.Conv2DBackpropFilter(input=apart, filter_sizes=sizes, out_backprop=gradient, **attributes)
        return select(hold_always(apart), result)  # With two readers the quotient is written to a buffer.

    return Lowering((0, 2), build, is_product=True)
