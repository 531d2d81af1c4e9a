"""The allocator's peak of a training step, run in place with the model's state put back after."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib

from checkmate_tf.errors import BudgetError


def device_name() -> str:
    """The device that training runs on here: the first GPU, else the CPU."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def peak_above_start(run: Callable[[], Any], *, device: str) -> int | None:
    """Most bytes in use on the device while `run` runs, less those in use before; None where it does not tell.

    On the CPU the allocator counts no allocation under 256 KiB.
    """
    try:
        before = tf.config.experimental.get_memory_info(device)["current"]
        tf.config.experimental.reset_memory_stats(device)
    except (ValueError, RuntimeError, tf.errors.OpError):
        return None
    run()
    return tf.config.experimental.get_memory_info(device)["peak"] - before


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
