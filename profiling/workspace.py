"""Measures the memory that a fragment holds only while it runs."""

from collections.abc import Sequence
from math import prod

import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.memory import record_peak_bytes


def measure_workspace_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], device: str
) -> int | None:
    """Returns the peak of one run, less the inputs and the returned outputs; None if the device does not report it.

    On a CPU, the peak comes from the allocations that the runtime records, which are the bytes requested. The
    allocator's own peak counts whole chunks, up to twice as large; it does not count allocations under 256 KiB, nor
    anything with oneDNN off. On other devices, the peak comes from the allocator, less the bytes that it holds while
    the outputs are still alive.
    """
    if device.upper().lstrip("/").startswith("CPU"):
        return _record_workspace_bytes(function, arguments)
    tf.config.experimental.reset_memory_stats(device)
    outputs = function(*arguments)
    tf.test.experimental.sync_devices()
    held = tf.config.experimental.get_memory_info(device)
    del outputs
    return max(0, held["peak"] - held["current"])


def _record_workspace_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor]
) -> int | None:
    try:
        peak_bytes = record_peak_bytes(function, arguments)
    except (ProfileError, tf.errors.OpError):
        return None
    return max(
        0, peak_bytes - sum(prod(t.shape) * t.dtype.size for t in function.outputs if t.shape.is_fully_defined())
    )
