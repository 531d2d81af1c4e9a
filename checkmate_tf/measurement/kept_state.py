"""Restores the variables that a step changes, always into the same chunks of the pool."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.pool import CPU_POOL_MIN_BYTES

# TensorFlow uses an array in place, without a copy, if its address is a multiple of this (EIGEN_MAX_ALIGN_BYTES).
_ALIGNMENT = 64


def move_to_fitting_chunks(variables: Sequence[Any]) -> int:
    """Moves variables to chunks of the pool that are about as large as the variables.

    A variable that was made beside the temporary tensors of initializers may be in a chunk of nearly twice its size for
    as long as it lives.

    Returns:
        The bytes by which the chunks are larger than the variables.
    """
    counted_from = CPU_POOL_MIN_BYTES if find_default_device().startswith("CPU") else 0
    with keep_state(variables) as values:
        _free(variables)
        bytes_without = count_bytes_in_use()
    chunk_bytes = count_bytes_in_use() - bytes_without
    return max(0, chunk_bytes - sum(value.nbytes for value in values if value.nbytes >= counted_from))


@contextmanager
def keep_state(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Restores the variables after the block, from copies in host memory, which it yields.

    The pool gives a tensor a whole free chunk if that is less than twice as large as the tensor. An assignment takes
    new memory before it frees the old. Variables that are assigned repeatedly therefore move to other chunks, and the
    peak of the same step varies. Here, all variables are freed before the first is restored. Small ones come first,
    because they split the chunks that would be too large for others. The state is then in the same chunks each time.
    """
    saved = [_copy_unaligned(np.asarray(variable.numpy())) for variable in variables]
    try:
        yield saved
    finally:
        _free(variables)
        for variable, value in sorted(zip(variables, saved, strict=True), key=lambda pair: pair[1].nbytes):
            _replace(variable, value)


def _free(variables: Sequence[Any]) -> None:
    """Frees the memory of variables. They must be assigned before they are read."""
    for variable in variables:
        if not isinstance(variable, tf.distribute.DistributedValues):
            _replace(variable, tf.zeros([0], variable.dtype))


def _copy_unaligned(array: np.ndarray) -> np.ndarray:
    """Copies an array to an address at which TensorFlow does not use it in place.

    An array that happens to be aligned to 64 bytes becomes the memory of the variable to which it is assigned. That
    memory is outside of the pool, so a step that changes the variable would allocate it in the pool, and its peak would
    be higher.
    """
    if array.dtype.hasobject:
        return array
    memory = np.empty(array.nbytes + 2 * _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT + _ALIGNMENT // 2
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _replace(variable: Any, value: Any) -> None:
    """Assigns a tensor or an array of any shape to a variable."""
    if isinstance(variable, tf.distribute.DistributedValues):
        variable.assign(value)
    else:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
