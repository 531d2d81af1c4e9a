"""Finds what `fit` holds of other batches while a step runs, where batches lie in the device's own memory: on a CPU."""

import os
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.pool import CPU_POOL_MIN_BYTES
from checkmate_tf.tf_private import list_dataset_stages

# tf.data gathers so many batches of arrays side by side at most.
_MOST_GATHERED = 16
# The last stage of a pipeline keeps one batch ready, and two where the first was not there in time once.
_READY = 2
# The pipeline is full when nothing was added for as long as two batches take, and at least for this long.
_LEAST_WAIT_S = 0.1
_MOST_WAIT_S = 1.0
_TIME_LIMIT_S = 5.0


def count_prefetched_batches() -> int:
    """Counts the batches of arrays that `fit` holds at most beside that of the step: tf.data gathers one a core."""
    if not find_default_device().startswith("CPU"):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_GATHERED) + _READY


def measure_prefetched_bytes(iterator: Any, taken: Sequence[Any], *, before_bytes: int, batch_s: float) -> int | None:
    """Measures what an iterator of batches holds beside those taken from it, when it has made ready all that it may.

    The elements of a shuffle buffer are no batches, and left out. One more batch is counted: it may come later. Whole
    batches are counted, as the allocator serves some of them from larger chunks than they need, now one, now another.

    Args:
        taken: the batches, nested tensors.
        before_bytes: in use before the first of them was taken.
        batch_s: that one took to come.

    Returns None where that cannot be told: batches are too small for the allocator to count, or come too slowly.
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
    """Counts what shuffle buffers hold when they are full."""
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
