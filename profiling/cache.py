"""Keeps measurements on disk, in one sqlite file for every device, TensorFlow version and driver.

Each measurement is committed as it is made, under sqlite's write lock: a process that is killed loses nothing, the lock
goes with it, and two processes neither measure one signature twice nor disturb each other's timings.
"""

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_path

from checkmate_tf.user_warnings import warn

_APPLICATION_ID = 0x434B4D54  # "CKMT": tells our files from foreign ones.
_FORMAT = 1
# A process that measures one node has the file for a second or two.
_PATIENCE_S = 30.0
_CREATE = """
CREATE TABLE measurements (
    device TEXT NOT NULL, tensorflow TEXT NOT NULL, driver TEXT NOT NULL, signature TEXT NOT NULL,
    op_types TEXT NOT NULL, cost_ns REAL NOT NULL, relative_spread REAL NOT NULL, repeats INTEGER NOT NULL,
    workspace_bytes INTEGER, measured_at_s REAL NOT NULL,
    PRIMARY KEY (device, tensorflow, driver, signature)
) WITHOUT ROWID
"""
_COLUMNS = "signature, op_types, cost_ns, relative_spread, repeats, workspace_bytes, measured_at_s"
_WHERE = "device = ? AND tensorflow = ? AND driver = ?"


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """A device key is what a measurement depends on besides the node: another of these means measuring again."""

    device: str
    tensorflow: str
    driver: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement is what one node signature took.

    `cost_ns` is the median over `repeats`; `relative_spread` is half the interquartile range over the median.
    `workspace_bytes` is None where the device does not tell.
    """

    signature: str
    op_types: str
    cost_ns: float
    relative_spread: float
    repeats: int
    workspace_bytes: int | None
    measured_at_s: float


def get_default_cache_path() -> Path:
    """Returns the path of the profile cache in the user's cache directory."""
    return user_cache_path("checkmate_tf") / f"profiles-{_FORMAT}.sqlite"


class ProfileCache:
    """A profile cache holds the measurements in one file. It is a context manager, and not for use by several threads.

    A file that sqlite cannot read, or that is not a profile cache, is renamed, never overwritten, and a warning names
    its new place. Where no file can be made, a warning says so and measurements are kept in memory.
    """

    def __init__(self, path: Path | str | None = None):
        self.path = Path(path) if path is not None else get_default_cache_path()
        self._connection = self._open()

    def __enter__(self) -> "ProfileCache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def load(self, key: DeviceKey) -> dict[str, Measurement]:
        """Loads every measurement of one device, by signature."""
        rows = self._execute(f"SELECT {_COLUMNS} FROM measurements WHERE {_WHERE}", astuple(key))
        return {row[0]: Measurement(*row) for row in rows}

    def count_by_device(self) -> dict[DeviceKey, int]:
        """Counts the measurements of each device."""
        rows = self._execute(
            "SELECT device, tensorflow, driver, COUNT(*) FROM measurements GROUP BY device, tensorflow, driver"
        )
        return {DeviceKey(*row[:3]): row[3] for row in rows}

    def get_or_measure(
        self, key: DeviceKey, signature: str, measure: Callable[[], Measurement]
    ) -> tuple[Measurement, bool]:
        """Returns the measurement of a signature and whether this call made it.

        One process at a time measures with one cache file; the others wait, and find what it wrote.
        """
        with self._write_lock():
            rows = self._execute(
                f"SELECT {_COLUMNS} FROM measurements WHERE {_WHERE} AND signature = ?", (*astuple(key), signature)
            )
            if rows:
                return Measurement(*rows[0]), False
            measurement = measure()
            self._insert(key, [measurement])
        return measurement, True

    def add(self, key: DeviceKey, measurements: Sequence[Measurement]) -> int:
        """Adds what was measured elsewhere and is not here yet. Gives how many were added."""
        with self._write_lock():
            before = self._connection.total_changes
            self._insert(key, measurements)
            return self._connection.total_changes - before

    def clear(self, key: DeviceKey | None = None) -> int:
        """Removes the measurements of one device, or all of them. Gives how many there were."""
        with self._write_lock():
            before = self._connection.total_changes
            if key is None:
                self._execute("DELETE FROM measurements WHERE true")
            else:
                self._execute(f"DELETE FROM measurements WHERE {_WHERE}", astuple(key))
            return self._connection.total_changes - before

    def export(self) -> dict[str, Any]:
        """Exports everything as a `checkmate-profile/1` object."""
        return {
            "format": "checkmate-profile/1",
            "profiles": [
                {**asdict(key), "measurements": [asdict(entry) for entry in self.load(key).values()]}
                for key in self.count_by_device()
            ],
        }

    def _insert(self, key: DeviceKey, measurements: Sequence[Measurement]) -> None:
        marks = ", ".join("?" * (3 + len(fields(Measurement))))
        self._connection.executemany(
            f"INSERT OR IGNORE INTO measurements (device, tensorflow, driver, {_COLUMNS}) VALUES ({marks})",
            [(*astuple(key), *astuple(measurement)) for measurement in measurements],
        )

    def _execute(
        self, statement: str, parameters: tuple[Any, ...] = (), *, patience_s: float = math.inf
    ) -> list[tuple[Any, ...]]:
        """Raises TimeoutError where another process has the file for longer than `patience_s`."""
        began = time.monotonic()
        while True:
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            if time.monotonic() - began > patience_s:
                raise TimeoutError(statement)

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        try:
            self._execute("BEGIN IMMEDIATE", patience_s=_PATIENCE_S)
        except TimeoutError:
            warn(
                f"another process has held the profile cache {self.path} for {_PATIENCE_S} s: "
                "what is measured now will not be kept"
            )
            self._connection.close()
            self._connection = _connect(":memory:")
            self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Two processes that find one damaged file must not set aside each other's fresh one.
            with FileLock(f"{self.path}.lock"):
                return _connect_or_set_aside(self.path)
        except (OSError, sqlite3.OperationalError) as error:
            warn(f"profile cache {self.path} cannot be used ({error}): nothing will be kept")
            return _connect(":memory:")


def _connect_or_set_aside(path: Path) -> sqlite3.Connection:
    try:
        return _connect(str(path))
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.bad-{time.time_ns()}")
        path.rename(aside)
        journal = path.with_name(f"{path.name}-journal")
        if journal.exists():
            journal.rename(f"{aside}-journal")
        warn(f"profile cache {path} is not usable ({error}): it was renamed to {aside.name}, and a new one is started")
        return _connect(str(path))


def _connect(path: str) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError when the file is damaged or not a profile cache."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        _prepare(connection)
        # The time is short, so that an interrupt is noticed while another process measures.
        connection.execute("PRAGMA busy_timeout = 500")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    is_new = not connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if is_new:
        connection.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_FORMAT};"
            f"{_CREATE}; COMMIT;"
        )
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if (application_id, version) != (_APPLICATION_ID, _FORMAT):
        raise sqlite3.DatabaseError(f"application {application_id:#x}, format {version}, is not a profile cache")
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise sqlite3.DatabaseError(damage)
