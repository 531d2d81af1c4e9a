"""Reads the used and the free memory of a device, and reserves a region of the CPU's pool for a step."""

import tensorflow as tf

from checkmate_tf import process_memory
from checkmate_tf.errors import BudgetError
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tf_private import find_memory_limit

# A step needs more than the bytes that it requests, as kernels use scratch memory and gaps between chunks stay free.
_RESERVED_PER_STEP = 1.5


def count_bytes_in_use() -> int:
    """Returns the bytes in use, by the device's allocator; 0 if it keeps no statistics."""
    try:
        return int(tf.config.experimental.get_memory_info(find_default_device())["current"])
    except (ValueError, RuntimeError, tf.errors.OpError):
        return 0


def reserve_pool(step_bytes: int | None = None) -> int:
    """Reserves one free region in the CPU's pool for a step of so many bytes; by default, half of the free memory.

    The pool grows by regions of doubling size, and a tensor gets the whole rest of a region if that is less than twice
    the tensor. Without a reserved region, the peak of a step therefore depends on all earlier allocations. Unused pages
    take no memory except for the pool's own table, 8 bytes in 256. Call it before the pool grows for another reason.

    Returns:
        The bytes reserved; 0 if that is impossible or the device is not a CPU.
    """
    if not find_default_device().startswith("CPU"):
        return 0
    try:
        free = find_free_bytes(find_default_device())
        reserved = free // 2 if step_bytes is None else min(int(_RESERVED_PER_STEP * step_bytes), free)
        tf.raw_ops.Empty(shape=[-(-reserved >> 20), 1 << 20], dtype=tf.uint8, init=False)  # sizes are int32
    except (BudgetError, tf.errors.ResourceExhaustedError):
        return 0
    return reserved


def find_free_bytes(device: str, *, margin: float = 0.1) -> int:
    """Returns the bytes that one more allocation on the device could take, less `margin`, a share of them.

    Raises BudgetError if the device does not report them.
    """
    if device.startswith("CPU"):
        free = process_memory.find_free_bytes()
        if free is None:
            raise BudgetError("this system does not report its free memory; give the budget in bytes")
        return int((1 - margin) * free)
    kind, _, index = device.partition(":")
    limit = find_memory_limit(kind, index)
    if limit is not None:
        in_use = tf.config.experimental.get_memory_info(device)["current"]
        return int((1 - margin) * (limit - in_use))
    raise BudgetError(f'{device} does not report its free memory; give the budget in bytes instead of "auto"')
