"""Measures what a fragment holds only while it runs."""

from collections.abc import Sequence
from math import prod

import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.memory import record_peak_bytes


def measure_workspace_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], device: str
) -> int | None:
    """Measures the peak of one run, less what the inputs and the returned outputs take; None where it cannot be told.

    On a CPU from the allocations that the runtime records, which are the bytes asked for: the allocator's peak counts
    whole chunks, up to twice as large, nothing under 256 KiB, and nothing at all with oneDNN off. Elsewhere from the
    device's allocator: its peak less what it holds while the outputs are still alive.
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
