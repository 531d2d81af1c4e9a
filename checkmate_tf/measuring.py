"""Running a training step in place with its state put back after, and what memory the device has left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib

from checkmate_tf.errors import BudgetError
from checkmate_tf.loops import WHILE_TYPES
from checkmate_tf.op_semantics import reached_ops
from checkmate_tf.profiling.device import default_device
from checkmate_tf.profiling.memory import allocator_peak_bytes, recorded_peak_bytes

_MEASURED_STEPS = 4
# What runs at the same time, and so the peak, may differ from one step to the next: then more of them are measured.
_MOST_MEASURED_STEPS = 12
# Kernels' scratch and what lies between chunks come on top of what a step asks for.
_RESERVED_PER_STEP = 1.5


def measured_bytes(step: Callable[..., Any], arguments: Sequence[tf.Tensor]) -> int:
    """Most bytes that one of several steps takes beside its arguments and variables, which are put back.

    By the allocator's statistics, which leave out what is small on a CPU; by the runtime's allocation records where
    there are none, and where they say more of a step with loops, whose lists may be of many small tensors.
    """
    concrete = tf.function(step, autograph=False).get_concrete_function(*arguments)
    if allocator_peak_bytes(lambda: None, device=default_device()) is None:
        return recorded_peak_bytes(concrete, arguments)
    with state_kept(concrete.graph.variables):
        concrete(*arguments)  # what is allocated once, for good, does not count
        peaks: list[int | None] = []
        batch = _copies(arguments)
        while len(peaks) < (_MEASURED_STEPS if len(set(peaks)) < 2 else _MOST_MEASURED_STEPS):
            # As in training: each batch in a place of its own, and perhaps before the last one has gone.
            if len(peaks) % 2:
                del batch
            batch = _copies(arguments)
            peaks.append(allocator_peak_bytes(partial(concrete, *batch), device=default_device()))
    if WHILE_TYPES & reached_ops(concrete.graph):
        peaks.append(recorded_peak_bytes(concrete, arguments))
    return max(peak for peak in peaks if peak is not None)


def reserve_pool(step_bytes: int | None = None) -> int:
    """Gives the CPU's pool one free region for a step that takes so many bytes, by default half of what is free.

    The pool grows by regions that double, and a tensor takes the free rest of one whole where that is less than twice
    the tensor: without this, what a step takes depends on all that was allocated before it. Of pages that nothing
    touches only the pool's own table takes memory, 8 bytes in 256. To be called before anything else makes the pool
    grow. Gives the bytes reserved, 0 where that is impossible or the device is no CPU.
    """
    if not default_device().startswith("CPU"):
        return 0
    try:
        free = free_bytes(default_device())
        reserved = free // 2 if step_bytes is None else min(int(_RESERVED_PER_STEP * step_bytes), free)
        tf.raw_ops.Empty(shape=[-(-reserved >> 20), 1 << 20], dtype=tf.uint8, init=False)  # sizes are int32
    except (BudgetError, tf.errors.ResourceExhaustedError):
        return 0
    return reserved


def _copies(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]


@contextmanager
def state_kept(variables: Sequence[Any]) -> Iterator[None]:
    """Puts the variables back as they were, from copies in host memory."""
    saved = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)


def free_bytes(device: str) -> int:
    """Bytes that one more allocation on the device could take, less a margin of 10 %.

    Raises BudgetError where the device does not tell.
    """
    if device.startswith("CPU"):
        return int(0.9 * _free_host_bytes())
    kind, _, index = device.partition(":")
    for local in device_lib.list_local_devices():
        if local.name.endswith(f"{kind}:{index}"):
            in_use = tf.config.experimental.get_memory_info(device)["current"]
            return int(0.9 * (local.memory_limit - in_use))
    raise BudgetError(f'{device} does not tell its free memory; give the budget in bytes instead of "auto"')


def _free_host_bytes() -> int:
    """What the operating system, and the control group where there is one, would still give this process."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError) as error:
        raise BudgetError(f"this system does not tell its free memory ({error}); give the budget in bytes") from error
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except OSError:
        return free
