"""Running a training step in place with its state put back after, and what memory the device has left."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib

from checkmate_tf.errors import BudgetError


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
