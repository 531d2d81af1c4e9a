"""Counts the iterations of while loops, and the bytes of the TensorLists that they fill, which shapes do not contain.

A loop that is differentiated stores the tensors for its gradient in lists, with one element for each iteration. The
loop of its gradient takes them out again. Rows of a `tf.TensorArray`, and those of Keras's recurrent layers, are lists,
too.
"""

import tensorflow as tf

from checkmate_tf.tf_private import get_loop_body
from checkmate_tf.tracing.semantics import count_static_bytes

WHILE_TYPES = frozenset({"StatelessWhile", "While"})
_VIEWS = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"})
_SUMS = frozenset({"AddN", "AddV2"})


def count_iterations(loop: tf.Operation) -> int | None:
    """Returns the number of a loop's iterations: the length of the longest list in its arguments; None if unknown."""
    lengths = [_find_length(tensor) for tensor in loop.inputs if tensor.dtype == tf.variant]
    known = [length for length in lengths if length]
    limit = tf.get_static_value(loop.inputs[1])
    if known:
        return max(known)
    return int(limit) if limit is not None and limit >= 0 else None


def count_list_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes of a TensorList beyond its inputs; None if they are unknown, or if the tensor is not a list."""
    if tensor.op.type in WHILE_TYPES and is_passed_on(tensor):
        return 0
    return _count_contents_bytes(tensor)


def count_stacked_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes of a TensorList under XLA: its elements, stacked, even if all are the same variable.

    None if they are unknown, or if the tensor is not a list.
    """
    return _count_contents_bytes(tensor, stacked=True) if tensor.dtype == tf.variant else None


def _find_length(tensor: tf.Tensor) -> int | None:
    """Returns the number of elements of a list; 0 for one that pushes will fill."""
    op = tensor.op
    if op.type == "TensorListReserve":
        length = tf.get_static_value(op.inputs[1])
        return None if length is None else int(length)
    if op.type == "TensorListFromTensor":
        return op.inputs[0].shape[0] if op.inputs[0].shape.rank else None
    if op.type == "EmptyTensorList":
        return 0
    if op.type in WHILE_TYPES:
        return count_iterations(op)
    return _find_length(op.inputs[0]) if op.type in ("Identity", "ZerosLike") else None


def _count_contents_bytes(tensor: tf.Tensor, *, stacked: bool = False) -> int | None:
    op = tensor.op
    if op.type in ("EmptyTensorList", "TensorListReserve"):
        return 0
    if op.type == "TensorListFromTensor":
        return count_static_bytes(op.inputs[0])
    if op.type in ("Identity", "ZerosLike"):
        return _count_contents_bytes(op.inputs[0], stacked=stacked)
    if op.type not in WHILE_TYPES:
        return None
    if is_passed_on(tensor):
        return _count_contents_bytes(op.inputs[tensor.value_index], stacked=stacked)
    body, count = get_loop_body(op), count_iterations(op)
    added = _find_added(body.outputs[tensor.value_index])
    if added is None:
        return None
    element_bytes = 0 if not stacked and _is_held_anyway(added, body) else count_static_bytes(added)
    return None if element_bytes is None or count is None else element_bytes * count


def find_element(output: tf.Tensor) -> tf.Tensor | None:
    """Returns the tensor that an iteration adds to, or puts in, a list that a loop returns; None if none is found."""
    return None if is_passed_on(output) else _find_added(get_loop_body(output.op).outputs[output.value_index])


def is_passed_on(output: tf.Tensor) -> bool:
    """Returns whether a loop returns a tensor unchanged, or a list with elements taken out."""
    body, position = get_loop_body(output.op), output.value_index
    inner = body.outputs[position]
    while inner.op.type in ("Identity", "TensorListPopBack"):
        inner = inner.op.inputs[0]
    return inner is body.inputs[position]


def _find_added(inner: tf.Tensor) -> tf.Tensor | None:
    """Returns the tensor that an iteration adds to a list, or puts in it."""
    op = inner.op
    if op.type == "TensorListPushBack":
        return op.inputs[1]
    if op.type == "TensorListSetItem":
        return op.inputs[2]
    if op.type == "Identity":
        return _find_added(op.inputs[0])
    found = [_find_added(source) for source in op.inputs] if op.type in _SUMS else []
    return next((tensor for tensor in found if tensor is not None), None)


def _is_held_anyway(element: tf.Tensor, body: tf.Graph) -> bool:
    """Returns whether an element is a variable, a constant, or the same tensor in every iteration."""
    while element.op.type in _VIEWS:
        element = element.op.inputs[0]
    if element.op.type in ("Const", "ReadVariableOp"):
        return True
    return any(
        element is given and element is back for given, back in zip(body.inputs, _list_returned(body), strict=False)
    )


def _list_returned(body: tf.Graph) -> list[tf.Tensor]:
    returned = []
    for tensor in body.outputs:
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        returned.append(tensor)
    return returned
