"""Keeps plans on disk, so that the same step within the same budget is planned once: also by the workers of one job.

A plan is one JSON file, named by a digest of all that it depends on. Files are written whole, and the oldest go where
there are too many. The folder is only a help: whatever is wrong with it, or with the disk, planning goes on without.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

import checkmate_tf
from checkmate_tf import profiling, solvers
from checkmate_tf.errors import CheckmateError
from checkmate_tf.files import write_file
from checkmate_tf.serialization import read_json
from checkmate_tf.user_warnings import warn

_MOST_PLANS = 200
_MOST_BYTES = 256 << 20
_SUFFIX = ".plan.json"
# A process that plans the same step has its lock for as long as it solves and measures.
_PATIENCE_S = 600.0


def get_default_folder() -> Path:
    """Returns the folder of plans in the user's cache directory."""
    return user_cache_path("checkmate_tf") / "plans-1"


def digest(parts: Mapping[str, Any]) -> str:
    """Makes the key of a plan: a digest of JSON values that it depends on.

    >>> digest({"budget": "60%"}) == digest({"budget": "60%"}) != digest({"budget": "61%"})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def digest_package() -> str:
    """Makes a digest of this package's own code: other code makes other plans, whatever its version says."""
    found = hashlib.sha256()
    for folder in (checkmate_tf, profiling, solvers):
        for path in sorted(Path(folder.__path__[0]).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class CachedPlan:
    """A cached plan is one file of the cache."""

    path: Path
    size_bytes: int
    used_at_s: float


class PlanCache:
    """A plan cache holds plans in the files of one folder.

    A file that is no plan is renamed, never overwritten, and a warning names it. Where the folder cannot be written, a
    warning says so once, and nothing is kept.
    """

    def __init__(self, folder: Path | str | None = None):
        self.folder = get_default_folder() if folder is None else Path(folder)
        self._has_warned = False

    def find(self, key: str) -> Any | None:
        """Returns what was kept under a key, and notes that it was used; None where there is nothing."""
        path = self._name(key)
        if not path.is_file():
            return None
        try:
            data = read_json(path, CheckmateError, "plan")
        except CheckmateError as error:
            self.set_aside(key, str(error))
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def keep(self, key: str, data: Any) -> None:
        """Keeps JSON under a key, and removes the plans that were not used for longest where there are too many."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._name(key), json.dumps(data))
        except OSError as error:
            self._give_up(error)
            return
        plans = self.list()
        size_bytes = sum(plan.size_bytes for plan in plans)
        for number, plan in enumerate(plans):
            if len(plans) - number <= _MOST_PLANS and size_bytes <= _MOST_BYTES:
                break
            plan.path.unlink(missing_ok=True)
            size_bytes -= plan.size_bytes

    def set_aside(self, key: str, reason: str) -> None:
        """Renames a file that is no plan, with a warning."""
        path = self._name(key)
        aside = path.with_name(f"{path.name}.bad-{time.time_ns()}")
        with suppress(OSError):
            path.rename(aside)
            warn(f"a kept plan is not usable ({reason}): it was renamed to {aside}, and the step is planned again")

    def list(self) -> list[CachedPlan]:
        """Lists all plans, those first that were not used for longest."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process removed it
                status = path.stat()
                found.append(CachedPlan(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda plan: (plan.used_at_s, plan.path.name))

    def clear(self) -> int:
        """Removes all plans; returns how many there were."""
        plans = self.list()
        for plan in plans:
            plan.path.unlink(missing_ok=True)
        return len(plans)

    @contextmanager
    def plan_once(self, key: str) -> Iterator[None]:
        """Lets one process at a time plan for a key; the others wait, and find what it kept.

        Where the lock cannot be had, a process plans for itself.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A lock's file stays, or two processes could lock two files of one name: so there are not more than these.
            lock = FileLock(self.folder / f"{key[:2]}.lock", timeout=_PATIENCE_S, mode=0o600)
            lock.acquire()
        except (OSError, Timeout) as error:
            self._give_up(error)
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _name(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _give_up(self, error: Exception) -> None:
        if not self._has_warned:
            warn(f"the folder of plans {self.folder} cannot be used ({error}): plans are not kept")
        self._has_warned = True
