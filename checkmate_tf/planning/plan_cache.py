"""Keeps plans on disk, so that the same step within the same budget is planned once, also by several processes.

A plan is one JSON file, named by a digest of everything that it depends on. Files are written completely, and the
oldest are removed if there are too many. Planning does not depend on the folder: if it or the disk fails, plans are not
kept.
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
# A process that plans the same step holds its lock while it solves and measures.
_PATIENCE_S = 600.0


def get_default_folder() -> Path:
    """Returns the folder of plans in the user's cache directory."""
    return user_cache_path("checkmate_tf") / "plans-1"


def digest(parts: Mapping[str, Any]) -> str:
    """Returns the key of a plan: a digest of JSON values on which it depends.

    >>> digest({"budget": "60%"}) == digest({"budget": "60%"}) != digest({"budget": "61%"})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def digest_package() -> str:
    """Returns a digest of this package's code, because other code makes other plans, even with the same version."""
    found = hashlib.sha256()
    for folder in (checkmate_tf, profiling, solvers):
        for path in sorted(Path(folder.__path__[0]).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class CachedPlan:
    """One file of the cache."""

    path: Path
    size_bytes: int
    used_at_s: float


class PlanCache:
    """The plans in the files of one folder.

    A file that is not a plan is renamed and never overwritten, and a warning names it. If the folder cannot be written,
    one warning says so, and nothing is kept.
    """

    def __init__(self, folder: Path | str | None = None):
        self.folder = get_default_folder() if folder is None else Path(folder)
        self._has_warned = False

    def find(self, key: str) -> Any | None:
        """Returns the JSON kept under a key, and marks it as used; None if there is none."""
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
        """Keeps JSON under a key, and removes the least recently used plans if there are too many."""
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
        """Renames a file that is not a plan, with a warning."""
        path = self._name(key)
        aside = path.with_name(f"{path.name}.bad-{time.time_ns()}")
        with suppress(OSError):
            path.rename(aside)
            warn(f"a kept plan is not usable ({reason}): it was renamed to {aside}, and the step is planned again")

    def list(self) -> list[CachedPlan]:
        """Lists all plans, the least recently used first."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # Another process removed it.
                status = path.stat()
                found.append(CachedPlan(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda plan: (plan.used_at_s, plan.path.name))

    def clear(self) -> int:
        """Removes all plans, and returns their number."""
        plans = self.list()
        for plan in plans:
            plan.path.unlink(missing_ok=True)
        return len(plans)

    @contextmanager
    def plan_once(self, key: str) -> Iterator[None]:
        """Lets one process at a time plan for a key. The others wait, and then find its plan.

        If the lock cannot be acquired, a process plans for itself.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A lock's file is never removed, because two processes could then lock two files of one name. Its name is
            # short, so that there are few such files.
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
