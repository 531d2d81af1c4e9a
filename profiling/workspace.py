"""Measures the memory that a fragment holds only while it runs."""

from collections.abc import Sequence
from math import prod

import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes, record_peak_bytes

# A chunk is smaller than twice the buffer that it is for: the allocator would split a larger one.
_LARGEST_CHUNK = 2
# The least of so many runs counts, as other threads of the process may allocate during one.
_ALLOCATOR_RUNS = 2


def measure_workspace_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], device: str
) -> int | None:
    """Returns the peak of one run, less the inputs and the returned outputs; None if the device does not report it.

    On a CPU, the peak comes from the allocations that the runtime records, which are the bytes requested. The
    allocator's own peak counts whole chunks, up to twice as large; it does not count allocations under 256 KiB, nor
    anything with oneDNN off. The runtime does not record the buffers of calls that XLA compiles. Keras makes such calls
    for convolutions in groups, and the gradient of one with 1,024 groups takes 128 MiB. If the allocator's peak is more
    than twice the recorded peak, or twice the outputs, the rest is therefore added. On other devices, the peak comes
    from the allocator, less the bytes that it holds while the outputs are still alive.
    """
    if device.upper().lstrip("/").startswith("CPU"):
        return _record_workspace_bytes(function, arguments, device)
    tf.config.experimental.reset_memory_stats(device)
    outputs = function(*arguments)
    tf.test.experimental.sync_devices()
    held = tf.config.experimental.get_memory_info(device)
    del outputs
    return max(0, held["peak"] - held["current"])


def _record_workspace_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], device: str
) -> int | None:
    try:
        recorded_bytes = record_peak_bytes(function, arguments)
    except (ProfileError, tf.errors.OpError):
        return None
    output_bytes = sum(prod(t.shape) * t.dtype.size for t in function.outputs if t.shape.is_fully_defined())
    counted = [
        measure_allocator_peak_bytes(lambda: function(*arguments), device=device) for _ in range(_ALLOCATOR_RUNS)
    ]
    unrecorded_bytes = min(peak or 0 for peak in counted) - _LARGEST_CHUNK * max(recorded_bytes, output_bytes)
    return max(0, recorded_bytes - output_bytes) + max(0, unrecorded_bytes)
