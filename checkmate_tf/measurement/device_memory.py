"""Asks the device how much memory is in use and free, and reserves a region of the CPU's pool for a step."""

import tensorflow as tf

from checkmate_tf import process_memory
from checkmate_tf.errors import BudgetError
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tf_private import find_memory_limit

# Kernels' scratch and what lies between chunks come on top of what a step asks for.
_RESERVED_PER_STEP = 1.5


def count_bytes_in_use() -> int:
    """Asks the device's allocator for the bytes in use; 0 where it keeps no statistics."""
    try:
        return int(tf.config.experimental.get_memory_info(find_default_device())["current"])
    except (ValueError, RuntimeError, tf.errors.OpError):
        return 0


def reserve_pool(step_bytes: int | None = None) -> int:
    """Reserves one free region in the CPU's pool for a step that takes so many bytes, by default half of what is free.

    The pool grows by regions that double, and a tensor takes the free rest of one whole where that is less than twice
    the tensor: without this, what a step takes depends on all that was allocated before it. Of pages that nothing
    touches only the pool's own table takes memory, 8 bytes in 256. To be called before anything else makes the pool
    grow. Gives the bytes reserved, 0 where that is impossible or the device is no CPU.
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
    """Finds how many bytes one more allocation on the device could take, less a margin: a share of them.

    Raises BudgetError where the device does not report it.
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
