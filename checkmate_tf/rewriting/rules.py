"""Says of each kind of operation whether it treats the rows of its inputs independently, or sums over them.

A rule reads an operation and the layouts of those of its inputs that are known, and returns the layouts of all of its
inputs and outputs. An operation without a rule, or of other layouts, stays whole: the rule raises NotByRows, with the
reason in words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from checkmate_tf.rewriting.rows import Layout, Rows, Window

_ROWS, _SHARED, _SUM, _PARTS = Layout.ROWS, Layout.SHARED, Layout.SUM, Layout.PARTS

# fmt: off
_ELEMENTWISE = frozenset(
    [
        "Abs", "Add", "AddN", "AddV2", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Cast", "Ceil",
        "CheckNumerics", "ClipByValue", "Cos", "Cosh", "Div", "DivNoNan", "Elu", "EluGrad", "Equal", "Erf", "Erfc",
        "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Identity", "Inv", "IsFinite",
        "IsInf", "IsNan", "LeakyRelu", "LeakyReluGrad", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot",
        "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "PreventGradient",
        "RealDiv", "Reciprocal", "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Round", "Rsqrt",
        "RsqrtGrad", "Selu", "SeluGrad", "Select", "SelectV2", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Sinh",
        "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference",
        "StopGradient", "Sub", "Tan", "Tanh", "TanhGrad", "Xdivy", "Xlog1py", "Xlogy", "ZerosLike",
    ]
)
# fmt: on
_LAST_AXIS = frozenset({"LogSoftmax", "Softmax"})
_REDUCTIONS = frozenset({"All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"})
_RESHAPES = frozenset({"ExpandDims", "Reshape", "Squeeze"})
_FILLS = frozenset({"BroadcastTo", "Fill"})
_LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})


class NotByRows(Exception):
    """An operation does not treat rows independently of each other."""


class OtherWindow(NotByRows):
    """An operation takes a window of rows that is not known yet."""

    def __init__(self, message: str, window: Window):
        super().__init__(message)
        self.window = window


@dataclass(frozen=True)
class Placement:
    """A placement says how each input and output of an operation depends on rows.

    Args:
        cut_shape: the operation only gives the elements of its first input another shape, that of the output in a
            chunk.
        cut_input: the input that is the shape of the output, which has to be that in a chunk; None where there is none.
        windowed_input: the input whose rows within the window are the output, with zeros outside of it; None where
            there is none.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    cut_shape: bool = False
    cut_input: int | None = None
    windowed_input: int | None = None


@dataclass(frozen=True)
class Operands:
    """Operands are what a rule knows of one operation.

    Args:
        layouts: of the inputs that are known to be by rows or sums; None for the others, [num_inputs].
        values: of the inputs that no data changes, such as axes; None for the others, [num_inputs].
        rows: what counts as rows.
    """

    op: tf.Operation
    inputs: tuple[tf.Tensor, ...]
    layouts: tuple[Layout | None, ...]
    values: tuple[np.ndarray | None, ...]
    rows: Rows

    def get_shape(self, position: int) -> list[int]:
        return self.inputs[position].shape.as_list()

    @property
    def output_shape(self) -> list[int]:
        return self.op.outputs[0].shape.as_list()

    def count_lead(self, shape: Sequence[int], what: str) -> int:
        """Counts the leading dimensions that are rows. Raises NotByRows for a shape without."""
        lead = self.rows.count_lead(shape)
        if lead is None:
            raise NotByRows(f"{what} of {self.op.name} has the shape {list(shape)}, which does not begin with rows")
        return lead


def place(operands: Operands) -> Placement:
    """Finds the layouts of an operation's inputs and outputs. Raises NotByRows where it does not keep rows apart.

    A sum over all rows can be read as any tensor from outside, once it is complete.
    """
    op = operands.op
    rule = _RULES.get(op.type)
    if rule is None:
        raise NotByRows(f"{op.name} ({op.type}) has no rule that says how it treats rows")
    placement = rule(operands)
    for known, needed, tensor in zip(operands.layouts, placement.inputs, operands.inputs, strict=True):
        if known in (_ROWS, _PARTS) and known is not needed:
            raise NotByRows(f"{op.name} ({op.type}) reads all rows of {tensor.op.name} at once")
    return placement


def _align(operands: Operands, position: int, shape: Sequence[int]) -> Layout:
    """Finds the layout of an input that is broadcast to a shape that begins with rows."""
    lead = operands.count_lead(shape, "the result")
    own = operands.get_shape(position)
    padded = [1] * (len(shape) - len(own)) + own
    if padded[:lead] == list(shape[:lead]):
        return _ROWS
    if all(size == 1 for size in padded[:lead]):
        return _SHARED
    raise NotByRows(f"{operands.op.name} repeats {operands.inputs[position].op.name} for a part of the rows")


def _place_elementwise(operands: Operands) -> Placement:
    shape = operands.output_shape
    inputs = tuple(_align(operands, position, shape) for position in range(len(operands.inputs)))
    return Placement(inputs, (_ROWS,) * len(operands.op.outputs))


def _place_bitcast(operands: Operands) -> Placement:
    if operands.get_shape(0) != operands.output_shape:
        raise NotByRows(f"{operands.op.name} changes the shape of what it reads")
    return _place_elementwise(operands)


def _place_last_axis(operands: Operands) -> Placement:
    if operands.count_lead(operands.output_shape, "the result") == len(operands.output_shape):
        raise NotByRows(f"{operands.op.name} ({operands.op.type}) runs over the rows")
    return _place_elementwise(operands)


def _place_reduction(operands: Operands) -> Placement:
    op, axes = operands.op, operands.values[1]
    if axes is None:
        raise NotByRows(f"{op.name} ({op.type}) runs over axes that depend on data")
    shape = operands.get_shape(0)
    reduced = {int(axis) % len(shape) for axis in np.atleast_1d(axes)}
    if operands.layouts[0] is _PARTS and op.type == "Sum" and reduced == set(range(len(shape) - 2)):
        return Placement((_PARTS, _SHARED), (_SUM,))
    lead = operands.count_lead(shape, "the input")
    if not any(axis < lead and shape[axis] > 1 for axis in reduced):
        return Placement((_ROWS, _SHARED), (_ROWS,))
    if op.type == "Sum" and all(axis in reduced for axis in range(lead) if shape[axis] > 1):
        return Placement((_ROWS, _SHARED), (_SUM,))
    raise NotByRows(f"{op.name} ({op.type}) runs over rows")


def _place_reshape(operands: Operands) -> Placement:
    operands.count_lead(operands.get_shape(0), "the input")
    operands.count_lead(operands.output_shape, "the result")
    inputs = (_ROWS,) + (_SHARED,) * (len(operands.inputs) - 1)
    return Placement(inputs, (_ROWS,), cut_shape=True)


def _place_fill(operands: Operands) -> Placement:
    if operands.op.type == "BroadcastTo":
        return Placement((_align(operands, 0, operands.output_shape), _SHARED), (_ROWS,), cut_input=1)
    operands.count_lead(operands.output_shape, "the result")
    return Placement((_SHARED, _SHARED), (_ROWS,), cut_input=0)


def _place_slice(operands: Operands) -> Placement:
    _check_window(operands, operands.get_shape(0), operands.values[1:])
    return Placement((_ROWS, _SHARED, _SHARED, _SHARED), (_ROWS,), cut_shape=True)


def _place_slice_gradient(operands: Operands) -> Placement:
    _check_window(operands, operands.output_shape, operands.values[1:4])
    return Placement((_SHARED,) * 4 + (_ROWS,), (_ROWS,), windowed_input=4)


def _check_window(operands: Operands, shape: Sequence[int], bounds: Sequence[np.ndarray | None]) -> None:
    """Raises OtherWindow for a slice of other rows than the window, and NotByRows for any other slice."""
    op, (begins, ends, strides) = operands.op, bounds
    name, rows = f"{op.name} ({op.type})", operands.rows
    if begins is None or ends is None or strides is None:
        raise NotByRows(f"{name} takes rows that depend on data")
    if op.get_attr("new_axis_mask") or op.get_attr("shrink_axis_mask") or np.any(strides != 1):
        raise NotByRows(f"{name} takes single rows, or some at a distance")
    whole = [slice(None)] * len(shape)
    masks = {attribute: op.get_attr(f"{attribute}_mask") for attribute in ("begin", "end", "ellipsis")}
    num_given = len(begins)
    for axis in range(num_given):
        if masks["ellipsis"] >> axis & 1:
            continue
        is_behind = masks["ellipsis"] and masks["ellipsis"] < 1 << axis
        first = None if masks["begin"] >> axis & 1 else int(begins[axis])
        last = None if masks["end"] >> axis & 1 else int(ends[axis])
        whole[axis - num_given if is_behind else axis] = slice(first, last)
    taken = [range(size)[part] for size, part in zip(shape, whole, strict=True)]
    lead = operands.count_lead(shape, "what is sliced")
    length = shape[lead - 1]
    others = [size for axis, size in enumerate(shape) if axis != lead - 1 and len(taken[axis]) != size]
    if others or rows.is_in_window(shape) or not taken[lead - 1]:
        raise NotByRows(f"{name} takes a part of the rows, or of each row")
    window = Window(rows.num_rows // length, length, taken[lead - 1].start, len(taken[lead - 1]))
    if window != rows.window:
        raise OtherWindow(f"{name} takes other rows than other slices do", window)


def _place_tile(operands: Operands) -> Placement:
    multiples = operands.values[1]
    lead = operands.count_lead(operands.get_shape(0), "the input")
    if multiples is None or any(multiple != 1 for multiple in multiples[:lead]):
        raise NotByRows(f"{operands.op.name} repeats rows")
    return Placement((_ROWS, _SHARED), (_ROWS,))


def _place_one_hot(operands: Operands) -> Placement:
    operands.count_lead(operands.get_shape(0), "the input")
    if operands.op.get_attr("axis") not in (-1, len(operands.output_shape) - 1):
        raise NotByRows(f"{operands.op.name} puts classes before rows")
    return Placement((_ROWS, _SHARED, _SHARED, _SHARED), (_ROWS,))


def _place_loss(operands: Operands) -> Placement:
    logits, labels = operands.get_shape(0), operands.get_shape(1)
    if operands.rows.count_lead(logits[:1]) is None or labels[0] != logits[0]:
        raise NotByRows(f"{operands.op.name} repeats its labels for a part of the rows")
    return Placement((_ROWS, _ROWS), (_ROWS, _ROWS))


def _place_in_top_k(operands: Operands) -> Placement:
    operands.count_lead(operands.get_shape(0)[:1], "the input")
    return Placement((_ROWS, _ROWS, _SHARED), (_ROWS,))


def _place_top_k(operands: Operands) -> Placement:
    if operands.count_lead(operands.get_shape(0), "the input") == len(operands.get_shape(0)):
        raise NotByRows(f"{operands.op.name} runs over the rows")
    return Placement((_ROWS, _SHARED), (_ROWS, _ROWS))


def _place_bias(operands: Operands) -> Placement:
    shape = operands.output_shape
    if operands.op.get_attr("data_format") != b"NHWC" or operands.count_lead(shape, "the result") == len(shape):
        raise NotByRows(f"{operands.op.name} adds a bias to each row as a whole")
    return Placement((_ROWS, _SHARED), (_ROWS,))


def _place_bias_gradient(operands: Operands) -> Placement:
    shape = operands.get_shape(0)
    if operands.op.get_attr("data_format") != b"NHWC" or operands.count_lead(shape, "the input") == len(shape):
        raise NotByRows(f"{operands.op.name} sums over a part of the rows")
    return Placement((_ROWS,), (_SUM,))


def _place_product(operands: Operands) -> Placement:
    op, (first, second) = operands.op, operands.layouts
    is_batched = op.type != "MatMul"
    turned = [op.get_attr(name) for name in (("adj_x", "adj_y") if is_batched else ("transpose_a", "transpose_b"))]
    shapes = [operands.get_shape(0), operands.get_shape(1)]
    if turned[0] and not turned[1] and _ROWS in (first, second):
        leads = [operands.count_lead(shape, "an operand") for shape in shapes]
        if all(lead == len(shape) - 1 for lead, shape in zip(leads, shapes, strict=True)):
            is_whole = all(size == 1 for size in shapes[0][:-2])
            return Placement((_ROWS, _ROWS), (_SUM,) if is_whole else (_PARTS,))
    lead = operands.rows.count_lead(shapes[0])
    is_shared = second is not _ROWS and all(size == 1 for size in shapes[1][:-2])
    if not turned[0] and is_shared and lead == len(shapes[0]) - 1:
        return Placement((_ROWS, _SHARED), (_ROWS,))
    raise NotByRows(f"{op.name} ({op.type}) multiplies rows with each other")


def _place_einsum(operands: Operands) -> Placement:
    op = operands.op
    sources, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms = sources.split(",")
    if not result or "." in sources:
        raise NotByRows(f"{op.name} has the equation {sources}, which names no axes")
    first = next((i for i, layout in enumerate(operands.layouts) if layout is _ROWS), 0)
    lead = operands.count_lead(operands.get_shape(first), "an operand")
    labels = terms[first][:lead]
    inputs = tuple(_ROWS if term.startswith(labels) else _SHARED for term in terms)
    apart = [term[len(labels) :] if layout is _ROWS else term for term, layout in zip(terms, inputs, strict=True)]
    if set(labels) & set("".join(apart)):
        raise NotByRows(f"{op.name} (Einsum) has rows among its other axes")
    if result.startswith(labels) and not set(labels) & set(result[len(labels) :]):
        return Placement(inputs, (_ROWS,))
    if not set(labels) & set(result):
        return Placement(inputs, (_SUM,))
    raise NotByRows(f"{op.name} (Einsum) sums over a part of the rows")


_RULES: Mapping[str, Callable[[Operands], Placement]] = {
    **dict.fromkeys(_ELEMENTWISE, _place_elementwise),
    **dict.fromkeys(_LAST_AXIS, _place_last_axis),
    **dict.fromkeys(_REDUCTIONS, _place_reduction),
    **dict.fromkeys(_RESHAPES, _place_reshape),
    **dict.fromkeys(_FILLS, _place_fill),
    **dict.fromkeys(_LOSSES, _place_loss),
    "BatchMatMulV2": _place_product,
    "BatchMatMulV3": _place_product,
    "BiasAdd": _place_bias,
    "BiasAddGrad": _place_bias_gradient,
    "Bitcast": _place_bitcast,
    "Einsum": _place_einsum,
    "InTopKV2": _place_in_top_k,
    "MatMul": _place_product,
    "OneHot": _place_one_hot,
    "StridedSlice": _place_slice,
    "StridedSliceGrad": _place_slice_gradient,
    "Tile": _place_tile,
    "TopKV2": _place_top_k,
}
