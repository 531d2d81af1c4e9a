"""Measures the prefetched batches that `fit` holds while a step runs, on a CPU.

With a GPU, prefetched batches are in host memory, so they do not count.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.pool import CPU_POOL_MIN_BYTES
from checkmate_tf.tf_private import list_dataset_stages

# tf.data gathers at most this many batches of arrays in parallel.
_MOST_GATHERED = 16
# The last stage of a pipeline keeps one batch ready; two, if a batch was late once.
_READY = 2
# The pipeline is full if nothing was added during the time of two batches, and at least during this time.
_LEAST_WAIT_S = 0.1
_MOST_WAIT_S = 1.0
_TIME_LIMIT_S = 5.0


def count_prefetched_batches() -> int:
    """Returns the most batches of arrays that `fit` holds besides the step's: tf.data gathers one for each core."""
    if not find_default_device().startswith("CPU"):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_GATHERED) + _READY


def measure_prefetched_bytes(iterator: Any, taken: Sequence[Any], *, before_bytes: int, batch_s: float) -> int | None:
    """Measures the bytes of the batches that an iterator has prefetched, besides those taken from it.

    The measurement waits until the iterator prefetches no more. It excludes the elements of shuffle buffers, and adds
    one batch that may come later. The result is rounded to whole batches, because the allocator places some batches in
    larger chunks than they need.

    Args:
        taken: the batches that were taken, as nested tensors.
        before_bytes: the bytes in use before the first batch was taken.
        batch_s: the time to make one batch.

    Returns:
        The bytes; None if batches are too small for the allocator to count, or are made too slowly.
    """
    device = find_default_device()
    tensors = [tensor for tensor in tf.nest.flatten(list(taken), expand_composites=True) if tf.is_tensor(tensor)]
    taken_bytes = sum(filter(_is_counted, map(_count_bytes, tensors)))
    wait_s = max(_LEAST_WAIT_S, 2 * batch_s)
    if not device.startswith("CPU") or not taken_bytes or not count_bytes_in_use() or wait_s > _MOST_WAIT_S:
        return None
    in_use, began_s = count_bytes_in_use(), time.perf_counter()
    changed_s = began_s
    while time.perf_counter() - changed_s < wait_s:
        time.sleep(_LEAST_WAIT_S / 10)
        now_in_use, now_s = count_bytes_in_use(), time.perf_counter()
        if now_in_use != in_use:
            in_use, changed_s = now_in_use, now_s
        if now_s - began_s > _TIME_LIMIT_S:
            return None
    held_bytes = max(0, in_use - before_bytes - taken_bytes - _count_shuffled_bytes(iterator))
    batch_bytes = taken_bytes // len(taken)
    return (round(held_bytes / batch_bytes) + 1) * batch_bytes


def _count_shuffled_bytes(iterator: Any) -> int:
    """Returns the bytes of full shuffle buffers."""
    found = 0
    for stage in list_dataset_stages(iterator):
        if stage.num_shuffled:
            specs = tf.nest.flatten(stage.element_spec, expand_composites=True)
            sizes = [_count_bytes(spec) for spec in specs if isinstance(spec, tf.TensorSpec)]
            found += stage.num_shuffled * sum(filter(_is_counted, sizes))
    return found


def _is_counted(size_bytes: int) -> bool:
    return size_bytes >= CPU_POOL_MIN_BYTES


def _count_bytes(tensor: Any) -> int:
    elements = tf.TensorShape(tensor.shape).num_elements()
    return 0 if elements is None else elements * tf.as_dtype(tensor.dtype).size
