"""Reads how much memory this process uses, and how much the system has left for it."""

from pathlib import Path


def find_free_bytes() -> int | None:
    """Returns the memory that this process could still get; None if the system does not report it.

    That is the free memory of the system, or of the control group if there is one.
    """
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except OSError:
        return free


def find_peak_bytes(process: int | str = "self") -> int | None:
    """Returns the peak memory of a process, by default of this one; None if the system does not report it.

    `resource.getrusage` reports too much for a process that was started by a larger one.
    """
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc", str(process), "status").read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
