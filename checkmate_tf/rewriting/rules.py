"""Rules for types of operations that treat the rows of their inputs independently, or sum over them.

A rule reads an operation and the known layouts of its inputs and outputs, and returns the layouts of all of them. An
operation without a rule, or with other layouts, stays whole: `place` raises NotByRows, with the reason in words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from string import ascii_lowercase, digits

import numpy as np
import tensorflow as tf

from checkmate_tf.rewriting.rows import PARTS, SHARED, SUM, Layout, Rows, Span, Window

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
_WITHOUT_REDUCED_AXES = frozenset({"ArgMax", "ArgMin"})
_REDUCTIONS = frozenset({"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"}) | _WITHOUT_REDUCED_AXES
_RESHAPES = frozenset({"ExpandDims", "Reshape", "Squeeze"})
_FILLS = frozenset({"BroadcastTo", "Fill"})
# It is cheaper to repeat these operations than to keep their results.
CHEAP_TYPES = _ELEMENTWISE | _RESHAPES | _FILLS | {"StridedSlice", "Transpose"}
# Rows in the leading dimensions.
_FIRST = Layout("rows")
_LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})


class NotByRows(Exception):
    """An operation does not treat rows independently of each other."""


class FewerRows(NotByRows):
    """An operation repeats an operand for all but the last dimensions of the rows, so only the last can be rows."""

    def __init__(self, message: str, num_rows: int):
        super().__init__(message)
        self.num_rows = num_rows


class OtherWindow(NotByRows):
    """An operation reads a window of rows that is not known yet."""

    def __init__(self, message: str, window: Window):
        super().__init__(message)
        self.window = window


@dataclass(frozen=True)
class Placement:
    """The layouts of an operation's inputs and outputs.

    Args:
        cut_shape: the operation only reshapes its first input, in a chunk to the shape of a chunk's output.
        cut_input: the input that contains the output's shape, in a chunk that of a chunk's output; None if there is
            none.
        windowed_input: the input that is written into the window of an output of zeros; None if there is none.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    cut_shape: bool = False
    cut_input: int | None = None
    windowed_input: int | None = None


@dataclass(frozen=True)
class Operands:
    """One operation, with the facts that its rule reads.

    Args:
        layouts: of the inputs that are known to be by rows or sums; None for the others, [num_inputs].
        results: layouts of the outputs that others are known to read by rows; None for the others, [num_outputs].
        values: of the inputs that are the same for all data, such as axes; None for the others, [num_inputs].
        rows: the rows of the region.
    """

    op: tf.Operation
    inputs: tuple[tf.Tensor, ...]
    layouts: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]
    values: tuple[np.ndarray | None, ...]
    rows: Rows

    @property
    def name(self) -> str:
        return f"{self.op.name} ({self.op.type})"

    def get_shape(self, position: int) -> list[int]:
        return self.inputs[position].shape.as_list()

    @property
    def output_shape(self) -> list[int]:
        return self.op.outputs[0].shape.as_list()

    def get_rows(self, position: int) -> Layout | None:
        """Returns the layout of an input that is known to be by rows; None for any other input."""
        layout = self.layouts[position]
        return layout if layout is not None and layout.is_rows else None

    @property
    def result(self) -> Layout | None:
        """Returns the layout of the outputs by rows; None if it is unknown."""
        return next((layout for layout in self.results if layout is not None and layout.is_rows), None)

    def find_rows(self) -> Layout:
        """Returns the layout by rows that the first input and the outputs share. Raises NotByRows if there is none."""
        layout = self.get_rows(0) or self.result
        if layout is None:
            raise NotByRows(f"{self.name} has no rows")
        return layout

    def find_span(self, shape: Sequence[int], layout: Layout) -> Span:
        """Returns the dimensions of a tensor that are rows. Raises NotByRows if there are none."""
        span = self.rows.find_span(shape, layout.before)
        if span is None:
            raise NotByRows(f"{self.name} takes rows apart in the shape {list(shape)}")
        return span


def lay(shape: Sequence[int], span: Span) -> Layout:
    """Returns the layout of a tensor of which the dimensions in a span are the rows."""
    return Layout("rows", prod(shape[: span.axis]) * span.repeats)


def place(operands: Operands) -> Placement:
    """Returns the layouts of an operation's inputs and outputs. Raises NotByRows if it does not keep rows apart.

    Once a sum over all rows is complete, operations read it like any tensor from outside.
    """
    rule = _RULES.get(operands.op.type)
    if rule is None:
        raise NotByRows(f"{operands.name} has no rule that says how it treats rows")
    placement = rule(operands)
    for known, needed, tensor in zip(operands.layouts, placement.inputs, operands.inputs, strict=True):
        if known is not None and known.kind in ("rows", "parts") and known != needed:
            raise NotByRows(f"{operands.name} reads all rows of {tensor.op.name} at once")
    return placement


def _find_broadcast_span(operands: Operands) -> Span:
    """Returns the dimensions that are rows in the shape to which inputs are broadcast."""
    shape = operands.output_shape
    for position in range(len(operands.inputs)):
        layout = operands.get_rows(position)
        if layout is not None:
            own = operands.get_shape(position)
            span = operands.find_span(own, layout)
            span = replace(span, axis=span.axis + len(shape) - len(own))
            return operands.find_span(shape, lay(shape, span))
    return operands.find_span(shape, operands.find_rows())


def _align(operands: Operands, position: int, span: Span) -> Layout:
    """Returns the layout of an input that is broadcast to the output, of which the dimensions in a span are rows."""
    shape, own = operands.output_shape, operands.get_shape(position)
    padded = [1] * (len(shape) - len(own)) + own
    needed, found = shape[span.axes], padded[span.axes]
    if found == needed:
        return lay(padded, span)
    if all(size == 1 for size in found):
        return SHARED
    reason = f"{operands.op.name} repeats {operands.inputs[position].op.name} for a part of the rows"
    num_repeated = next(axis for axis, size in enumerate(found) if size > 1)
    if found[num_repeated:] == needed[num_repeated:]:
        raise FewerRows(reason, prod(found))
    raise NotByRows(reason)


def _place_elementwise(operands: Operands) -> Placement:
    span = _find_broadcast_span(operands)
    inputs = tuple(_align(operands, position, span) for position in range(len(operands.inputs)))
    return Placement(inputs, (lay(operands.output_shape, span),) * len(operands.op.outputs))


def _place_bitcast(operands: Operands) -> Placement:
    if operands.get_shape(0) != operands.output_shape:
        raise NotByRows(f"{operands.op.name} changes the shape of its input")
    return _place_elementwise(operands)


def _check_last_axis(operands: Operands, rows: Layout) -> None:
    """Raises NotByRows if the last axis of the first input is one of the rows."""
    shape = operands.get_shape(0)
    if operands.find_span(shape, rows).axes.stop == len(shape):
        raise NotByRows(f"{operands.name} runs over the rows")


def _place_last_axis(operands: Operands) -> Placement:
    _check_last_axis(operands, operands.find_rows())
    return _place_elementwise(operands)


def _place_reduction(operands: Operands) -> Placement:
    op, axes = operands.op, operands.values[1]
    if axes is None:
        raise NotByRows(f"{operands.name} runs over axes that depend on data")
    shape = operands.get_shape(0)
    reduced = {int(axis) % len(shape) for axis in np.atleast_1d(axes)}
    if operands.layouts[0] == PARTS and op.type == "Sum" and reduced == set(range(len(shape) - 2)):
        return Placement((PARTS, SHARED), (SUM,))
    keeps = op.type not in _WITHOUT_REDUCED_AXES and op.get_attr("keep_dims")
    kept = [axis for axis in range(len(shape)) if keeps or axis not in reduced]
    rows = operands.get_rows(0)
    if rows is None:
        span = operands.find_span(operands.output_shape, operands.find_rows())
        rows = lay(shape, replace(span, axis=kept[span.axis]))
    span = operands.find_span(shape, rows)
    dimensions = {axis for axis in range(*span.axes.indices(len(shape))) if shape[axis] > 1}
    if not reduced.intersection(dimensions):
        span = replace(span, axis=sum(axis < span.axis for axis in kept))
        return Placement((rows, SHARED), (lay(operands.output_shape, span),))
    if op.type == "Sum" and reduced.issuperset(dimensions):
        return Placement((rows, SHARED), (SUM,))
    raise NotByRows(f"{operands.name} runs over rows")


def _place_reshape(operands: Operands) -> Placement:
    rows = operands.find_rows()
    for shape in (operands.get_shape(0), operands.output_shape):
        operands.find_span(shape, rows)
    return Placement((rows, *(SHARED,) * (len(operands.inputs) - 1)), (rows,), cut_shape=True)


def _place_transpose(operands: Operands) -> Placement:
    order = operands.values[1]
    if order is None:
        raise NotByRows(f"{operands.name} has an order that depends on data")
    shape, rows = operands.get_shape(0), operands.get_rows(0)
    if rows is None:
        span = operands.find_span(operands.output_shape, operands.find_rows())
        rows = lay(shape, replace(span, axis=int(order[span.axis])))
    span = operands.find_span(shape, rows)
    places = [int(np.flatnonzero(order == axis)[0]) for axis in range(*span.axes.indices(len(shape)))]
    if places != list(range(places[0], places[0] + span.number)):
        raise NotByRows(f"{operands.name} takes the dimensions of rows apart")
    return Placement((rows, SHARED), (lay(operands.output_shape, replace(span, axis=places[0])),))


def _place_fill(operands: Operands) -> Placement:
    span = _find_broadcast_span(operands)
    rows = lay(operands.output_shape, span)
    if operands.op.type == "BroadcastTo":
        return Placement((_align(operands, 0, span), SHARED), (rows,), cut_input=1)
    return Placement((SHARED, SHARED), (rows,), cut_input=0)


def _place_slice(operands: Operands) -> Placement:
    strides = operands.values[3]
    if prod(operands.get_shape(0)) == prod(operands.output_shape) and strides is not None and np.all(strides == 1):
        return _place_reshape(operands)  # `x[:, None]`
    _check_window(operands, operands.get_shape(0), operands.values[1:])
    return Placement((_FIRST, SHARED, SHARED, SHARED), (_FIRST,), cut_shape=True)


def _place_slice_gradient(operands: Operands) -> Placement:
    _check_window(operands, operands.output_shape, operands.values[1:4])
    return Placement((SHARED,) * 4 + (_FIRST,), (_FIRST,), windowed_input=4)


def _check_window(operands: Operands, shape: Sequence[int], bounds: Sequence[np.ndarray | None]) -> None:
    """Raises OtherWindow for a slice of other rows than the window, and NotByRows for any other slice."""
    op, (begins, ends, strides) = operands.op, bounds
    name, rows = operands.name, operands.rows
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
    last_axis = operands.find_span(shape, _FIRST).number - 1
    length = shape[last_axis]
    others = [size for axis, size in enumerate(shape) if axis != last_axis and len(taken[axis]) != size]
    if others or rows.is_in_window(shape) or not taken[last_axis]:
        raise NotByRows(f"{name} takes a part of the rows, or of each row")
    window = Window(rows.num_rows // length, length, taken[last_axis].start, len(taken[last_axis]))
    if window != rows.window:
        raise OtherWindow(f"{name} takes other rows than other slices do", window)


def _place_tile(operands: Operands) -> Placement:
    multiples, shape, rows = operands.values[1], operands.get_shape(0), operands.get_rows(0)
    if rows is None:
        span = operands.find_span(operands.output_shape, operands.find_rows())
        rows = lay(shape, span)
    span = operands.find_span(shape, rows)
    if multiples is None or any(multiple != 1 for multiple in multiples[span.axes]):
        raise NotByRows(f"{operands.op.name} repeats rows")
    return Placement((rows, SHARED), (lay(operands.output_shape, span),))


def _place_one_hot(operands: Operands) -> Placement:
    rows = operands.find_rows()
    operands.find_span(operands.get_shape(0), rows)
    if operands.op.get_attr("axis") not in (-1, len(operands.output_shape) - 1):
        raise NotByRows(f"{operands.op.name} puts classes before rows")
    return Placement((rows, SHARED, SHARED, SHARED), (rows,))


def _place_loss(operands: Operands) -> Placement:
    rows, logits, labels = operands.find_rows(), operands.get_shape(0), operands.get_shape(1)
    operands.find_span(logits[:1], rows)
    if labels[0] != logits[0]:
        raise NotByRows(f"{operands.op.name} repeats its labels for a part of the rows")
    return Placement((rows, rows), (rows, rows))


def _place_in_top_k(operands: Operands) -> Placement:
    rows = operands.find_rows()
    operands.find_span(operands.get_shape(0)[:1], rows)
    return Placement((rows, rows, SHARED), (rows,))


def _place_top_k(operands: Operands) -> Placement:
    rows = operands.find_rows()
    _check_last_axis(operands, rows)
    return Placement((rows, SHARED), (rows, rows))


def _place_bias(operands: Operands) -> Placement:
    rows = operands.find_rows()
    if operands.op.get_attr("data_format") != b"NHWC":
        raise NotByRows(f"{operands.op.name} adds a bias to each row as a whole")
    _check_last_axis(operands, rows)
    return Placement((rows, SHARED), (rows,))


def _place_bias_gradient(operands: Operands) -> Placement:
    rows = operands.get_rows(0)
    if rows is None or operands.op.get_attr("data_format") != b"NHWC":
        raise NotByRows(f"{operands.op.name} sums over a part of the rows")
    _check_last_axis(operands, rows)
    return Placement((rows,), (SUM,))


def _place_product(operands: Operands) -> Placement:
    shapes = [*(operands.get_shape(position) for position in range(len(operands.inputs))), operands.output_shape]
    known = [*(operands.get_rows(position) for position in range(len(operands.inputs))), operands.result]
    terms = find_terms(operands.op)
    anchor = next((number for number, layout in enumerate(known) if layout is not None), None)
    if anchor is None:
        raise NotByRows(f"{operands.name} has no rows")
    layout = known[anchor]
    assert layout is not None
    span = operands.find_span(shapes[anchor], layout)
    labels = terms[anchor][span.axes]
    sizes = {
        label: size for term, shape in zip(terms, shapes, strict=True) for label, size in zip(term, shape, strict=True)
    }
    wide = "".join(label for label in labels if sizes[label] > 1) or labels[-1]

    def lay_term(term: str, shape: Sequence[int]) -> Layout:
        """Returns the layout of a tensor from the letters of its axes. Those of rows of size 1 may be missing."""
        for own in (labels, wide):
            axis = term.find(own)
            others = term[:axis] + term[axis + len(own) :]
            if axis >= 0 and not set(wide).intersection(others):
                return lay(shape, replace(span, axis=axis))
        if set(wide).intersection(term):
            raise NotByRows(f"{operands.name} multiplies rows with each other")
        return SHARED

    inputs = tuple(map(lay_term, terms[:-1], shapes[:-1]))
    result = terms[-1]
    num_parts = len(result) - 2
    is_begun = 0 < num_parts < len(labels) and result[:num_parts] == labels[:num_parts]
    if is_begun and set(wide).intersection(result) and not set(labels[num_parts:]).intersection(result):
        return Placement(inputs, (PARTS,))
    output = lay_term(result, operands.output_shape)
    return Placement(inputs, (output if output.is_rows else SUM,))


def find_terms(op: tf.Operation) -> list[str]:
    """Returns a letter for each axis of a product's operands and of its result, which is last, as in `einsum`.

    Raises NotByRows for an equation that does not name all axes.
    """
    if op.type == "Einsum":
        sources, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
        if not result or "." in sources:
            raise NotByRows(f"{op.name} has the equation {sources}, which does not name all axes")
        return [*sources.split(","), result]
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    shape = op.outputs[0].shape.as_list()
    batch = ascii_lowercase[: len(shape) - 2]
    alone = iter(digits)  # for the axes that are repeated
    terms = []
    for tensor, name, own in zip(op.inputs, names, ("MK", "KN"), strict=True):
        entries = tensor.shape.as_list()[:-2]
        wholes = zip(batch[len(batch) - len(entries) :], shape[len(batch) - len(entries) :], strict=False)
        labels = [label if size == whole else next(alone) for (label, whole), size in zip(wholes, entries, strict=True)]
        terms.append("".join(labels) + (own[::-1] if op.get_attr(name) else own))
    return [*terms, f"{batch}MN"]


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
    "Einsum": _place_product,
    "InTopKV2": _place_in_top_k,
    "MatMul": _place_product,
    "OneHot": _place_one_hot,
    "StridedSlice": _place_slice,
    "StridedSliceGrad": _place_slice_gradient,
    "Tile": _place_tile,
    "TopKV2": _place_top_k,
    "Transpose": _place_transpose,
}
