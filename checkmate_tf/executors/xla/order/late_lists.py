"""Makes the lists that a loop fills wait for the sequence that it reads.

XLA begins each list as zeros. It writes these at the start of the step, as it does with all constants, and holds them
until the loop runs. A loop that is computed again would therefore lower no peak.
"""

from collections.abc import Callable, Sequence
from functools import cache

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.executors.xla.order.ties import hold_always, write_operations
from checkmate_tf.tracing.loops import find_element

_EMPTY_TYPES = frozenset({"EmptyTensorList", "TensorListReserve"})


def write_late_lists(loop: tf.Operation, name: str, inputs: Sequence[str], written: list[NodeDef]) -> list[str]:
    """Returns the inputs of a loop, with empty lists that cannot exist before the first sequence among the inputs.

    Nothing changes if the loop reads no sequence.

    Args:
        name: of the loop that is written.
        inputs: the names of its inputs; control inputs come last.
        written: operations are appended here.
    """
    late = list(inputs)
    positions = [i for i, tensor in enumerate(loop.inputs) if tensor.op.type == "TensorListFromTensor"]
    sequence = loop.inputs[positions[0]].op.inputs[0] if positions else None
    if sequence is None or not sequence.shape[1:].num_elements():
        return late
    for position, tensor in enumerate(loop.inputs):
        element = find_element(loop.outputs[position]) if tensor.op.type in _EMPTY_TYPES else None
        if element is not None and element.shape.is_fully_defined():
            build = _make_build(
                tuple(element.shape), element.dtype, known_shape=tuple(sequence.shape[1:]), known_dtype=sequence.dtype
            )
            given = [(inputs[position], tf.variant), (inputs[positions[0]], tf.variant)]
            late[position] = write_operations(build, f"{name}/late_{position}", given, written).results[0]
    return late


@cache
def _make_build(
    shape: tuple[int, ...], dtype: tf.DType, *, known_shape: tuple[int, ...], known_dtype: tf.DType
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that sets the first element of a list to zeros. To XLA, they depend on a sequence."""

    def build(zeros: tf.Tensor, sequence: tf.Tensor) -> tf.Tensor:
        known = tf.raw_ops.TensorListGetItem(
            input_handle=sequence, index=0, element_shape=known_shape, element_dtype=known_dtype
        )
        element = tf.where(hold_always(known), tf.zeros(shape, dtype), tf.ones(shape, dtype))
        return tf.raw_ops.TensorListSetItem(input_handle=zeros, index=0, item=element)

    return build
