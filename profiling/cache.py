"""Keeps measurements on disk, in one SQLite file for all devices, TensorFlow versions and drivers.

Each measurement is committed as it is made, under SQLite's write lock. A process that is killed loses no measurement
and releases the lock. Two processes neither measure one signature twice nor disturb each other's timings. Planning does
not depend on the file: if it or the disk fails, measurements are kept in memory.
"""

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from checkmate_tf.user_warnings import warn

_APPLICATION_ID = 0x434B4D54  # "CKMT", which identifies our files.
_FORMAT = 2
# A process that measures one node holds the file for a second or two.
_LOOK_S = 0.5
_NOTICE_S = 3.0
_PATIENCE_S = 30.0
_SOME_HOLDER = "another process (which is measuring, or was stopped while it did)"
# A damaged or foreign file must not make this process take much memory.
_LARGEST_FILE_BYTES = 256 << 20
_LARGEST_ROW_BYTES = 1 << 20
# SQLite enforces the checks when rows are written, and `PRAGMA quick_check` reports rows that violate them.
_CREATE = """
CREATE TABLE measurements (
    device TEXT NOT NULL, tensorflow TEXT NOT NULL, driver TEXT NOT NULL, signature TEXT NOT NULL,
    op_types TEXT NOT NULL,
    cost_ns REAL NOT NULL CHECK (typeof(cost_ns) = 'real' AND cost_ns BETWEEN 0 AND 1e13),
    relative_spread REAL NOT NULL CHECK (typeof(relative_spread) = 'real' AND relative_spread BETWEEN 0 AND 1e13),
    repeats INTEGER NOT NULL CHECK (typeof(repeats) = 'integer' AND repeats BETWEEN 0 AND 1000000000),
    workspace_bytes INTEGER CHECK (
        workspace_bytes IS NULL OR typeof(workspace_bytes) = 'integer' AND workspace_bytes BETWEEN 0 AND 10000000000000
    ),
    measured_at_s REAL NOT NULL CHECK (typeof(measured_at_s) = 'real' AND measured_at_s BETWEEN 0 AND 1e13),
    CHECK (
        typeof(device) = 'text' AND typeof(tensorflow) = 'text' AND typeof(driver) = 'text'
        AND typeof(signature) = 'text' AND typeof(op_types) = 'text'
    ),
    PRIMARY KEY (device, tensorflow, driver, signature)
) WITHOUT ROWID
""".strip()
_COLUMNS = "signature, op_types, cost_ns, relative_spread, repeats, workspace_bytes, measured_at_s"
# Python raises the latter if SQLite's own message quotes damaged bytes.
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
_WHERE = "device = ? AND tensorflow = ? AND driver = ?"
# These mean that this process cannot use the file now. All others mean that the file is damaged.
_CIRCUMSTANCES = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """The conditions of a measurement besides the node. Under other conditions, a node is measured again."""

    device: str
    tensorflow: str
    driver: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one node signature.

    `cost_ns` is the median over `repeats`, and `relative_spread` is half the interquartile range divided by the median.
    `workspace_bytes` is None if the device does not report it.
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
    """The measurements in one file: a context manager, for use by one thread.

    A file that SQLite cannot read, or that is not a profile cache, is renamed and never overwritten, and a warning
    names its new place. If no file can be made or written, one warning says so, and measurements are kept in memory.
    """

    def __init__(self, path: Path | str | None = None):
        self.path = Path(path) if path is not None else get_default_cache_path()
        self._is_in_memory = False
        self._connection = self._open()

    def __enter__(self) -> "ProfileCache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def load(self, key: DeviceKey) -> dict[str, Measurement]:
        """Returns every measurement of one device, by signature."""
        statement = f"SELECT {_COLUMNS} FROM measurements WHERE {_WHERE}"
        rows = self._transact(lambda: self._execute(statement, astuple(key)), begin="BEGIN")
        return {row[0]: Measurement(*row) for row in rows}

    def count_by_device(self) -> dict[DeviceKey, int]:
        """Returns the number of measurements of each device."""
        statement = "SELECT device, tensorflow, driver, COUNT(*) FROM measurements GROUP BY device, tensorflow, driver"
        rows = self._transact(lambda: self._execute(statement), begin="BEGIN")
        return {DeviceKey(*row[:3]): row[3] for row in rows}

    def get_or_measure(
        self, key: DeviceKey, signature: str, measure: Callable[[], Measurement]
    ) -> tuple[Measurement, bool]:
        """Returns the measurement of a signature, and whether this call made it.

        One process at a time measures with one cache file. The others wait, and then find its measurement in the file.
        """
        statement = f"SELECT {_COLUMNS} FROM measurements WHERE {_WHERE} AND signature = ?"
        measure_once = cache(measure)

        def find() -> tuple[Measurement, bool]:
            rows = self._execute(statement, (*astuple(key), signature))
            if rows:
                return Measurement(*rows[0]), False
            self._insert(key, [measure_once()])
            return measure_once(), True

        return self._transact(find)

    def add(self, key: DeviceKey, measurements: Sequence[Measurement]) -> int:
        """Adds measurements from elsewhere that are not here yet. Returns the number of those added."""
        return self._transact(lambda: self._insert(key, measurements))

    def clear(self, key: DeviceKey | None = None) -> int:
        """Removes the measurements of one device, or all of them. Returns their number."""

        def remove() -> int:
            before = self._connection.total_changes
            if key is None:
                self._execute("DELETE FROM measurements WHERE true")
            else:
                self._execute(f"DELETE FROM measurements WHERE {_WHERE}", astuple(key))
            return self._connection.total_changes - before

        return self._transact(remove)

    def export(self) -> dict[str, Any]:
        """Returns all measurements as a `checkmate-profile/1` object."""
        return {
            "format": "checkmate-profile/1",
            "profiles": [
                {**asdict(key), "measurements": [asdict(entry) for entry in self.load(key).values()]}
                for key in self.count_by_device()
            ],
        }

    def _insert(self, key: DeviceKey, measurements: Sequence[Measurement]) -> int:
        """Inserts measurements that are not there yet, and returns their number."""
        before = self._connection.total_changes
        marks = ", ".join("?" * (3 + len(fields(Measurement))))
        for measurement in measurements:
            self._execute(
                f"INSERT OR IGNORE INTO measurements (device, tensorflow, driver, {_COLUMNS}) VALUES ({marks})",
                (*astuple(key), *astuple(measurement)),
            )
        return self._connection.total_changes - before

    def _transact(self, work: Callable[[], _Result], *, begin: str = "BEGIN IMMEDIATE") -> _Result:
        """Does work in one transaction. If the file fails, it warns, and does this and all later work in memory."""
        if not self._is_in_memory:
            try:
                return self._try_to_transact(work, begin)
            except (TimeoutError, *_FAILURES) as error:
                self._connection.close()
                self._connection = self._open_in_memory(str(error))
        return self._try_to_transact(work, begin)

    def _try_to_transact(self, work: Callable[[], _Result], begin: str) -> _Result:
        self._execute(begin)
        try:
            result = work()
            self._execute("COMMIT")
        except BaseException:
            with suppress(*_FAILURES):  # The failure has ended the transaction itself.
                self._connection.rollback()
            raise
        return result

    def _execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return _execute_patiently(self._connection, self.path, statement, parameters)

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Two processes that find a damaged file must not rename each other's new one.
            lock = FileLock(f"{self.path}.lock", timeout=_LOOK_S, mode=0o600)
            _acquire_patiently(lock, self.path)
            try:
                return _connect_or_set_aside(self.path)
            finally:
                lock.release()
        except (OSError, *_FAILURES) as error:
            return self._open_in_memory(str(error))

    def _open_in_memory(self, reason: str) -> sqlite3.Connection:
        warn(f"profile cache {self.path} cannot be used ({reason}): new measurements will not be kept")
        self._is_in_memory = True
        return _connect(Path(":memory:"))


def _connect_or_set_aside(path: Path) -> sqlite3.Connection:
    # A file made by SQLite would be readable for all users of the computer.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        return _connect(path)
    except _FAILURES as error:
        if _get_code(error) in _CIRCUMSTANCES:
            raise
        aside = path.with_name(f"{path.name}.bad-{time.time_ns()}")
        path.rename(aside)
        journal = path.with_name(f"{path.name}-journal")
        if journal.exists():
            journal.rename(f"{aside}-journal")
        warn(f"profile cache {path} is not usable ({error}); it was renamed to {aside.name}, and a new one was started")
    return _connect_or_set_aside(path)


def _connect(path: Path) -> sqlite3.Connection:
    """Opens the file. Raises one of _FAILURES if it is damaged or not a profile cache."""
    # The time is short, so that an interrupt is noticed while another process holds the file.
    connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW_BYTES)
        connection.text_factory = lambda text: text.decode(errors="replace")
        _check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the table of a new file, and checks any other file without changing it."""

    def read(what: str) -> Any:
        return _execute_patiently(connection, path, what)[0][0]

    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    size_bytes = read("PRAGMA page_count") * read("PRAGMA page_size")
    if size_bytes == 0:
        connection.execute("PRAGMA query_only = OFF")
        connection.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_FORMAT};"
            f"{_CREATE}; COMMIT;"
        )
        return
    if size_bytes > _LARGEST_FILE_BYTES:
        raise sqlite3.DatabaseError(f"{size_bytes} bytes are more than the {_LARGEST_FILE_BYTES} that are ever kept")
    application_id, version = read("PRAGMA application_id"), read("PRAGMA user_version")
    if (application_id, version) != (_APPLICATION_ID, _FORMAT):
        raise sqlite3.DatabaseError(f"application {application_id:#x}, format {version}, is not a profile cache")
    # One row more than expected is enough to see that the tables differ.
    schema = _execute_patiently(connection, path, "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 2")
    if schema != [("table", "measurements", "measurements", _CREATE)]:
        raise sqlite3.DatabaseError("its tables are not those of a profile cache")
    damage = read("PRAGMA quick_check(1)")
    if damage != "ok":
        raise sqlite3.DatabaseError(damage)
    deque(connection.execute("SELECT * FROM measurements"), maxlen=0)  # raises if a row is too large
    connection.execute("PRAGMA query_only = OFF")


def _execute_patiently(
    connection: sqlite3.Connection, path: Path, statement: str, parameters: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """Runs a statement, and waits for another process if necessary.

    Raises one of _FAILURES if the file fails, and TimeoutError if that process holds it for too long.
    """
    wait = _Wait(path, held=path)
    while True:
        try:
            return connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            if _get_code(error) != sqlite3.SQLITE_BUSY:
                raise
        wait.go_on()


def _acquire_patiently(lock: FileLock, path: Path) -> None:
    """Acquires the lock for opening a cache. Raises TimeoutError if another process holds it for too long."""
    wait = _Wait(path, held=Path(lock.lock_file))
    while True:
        try:
            lock.acquire()
            return
        except Timeout:
            wait.go_on()


class _Wait:
    """A wait for another process that holds a cache; `held` is the locked file.

    The wait starts again whenever something is written to the cache, because several processes may take turns before
    this one.
    """

    def __init__(self, path: Path, *, held: Path):
        self._path, self._held = path, held
        self._began_s, self._has_warned = time.monotonic(), False
        self._written_ns = self._find_last_write()

    def go_on(self) -> None:
        """Warns once if the other process was stopped. Raises TimeoutError if the wait is too long."""
        written_ns = self._find_last_write()
        if written_ns != self._written_ns:
            self._began_s, self._written_ns = time.monotonic(), written_ns
        waited_s = time.monotonic() - self._began_s
        if waited_s > _PATIENCE_S:
            raise TimeoutError(f"{_find_holder(self._held) or _SOME_HOLDER} has held it for {_PATIENCE_S:g} s")
        if waited_s > _NOTICE_S and not self._has_warned:
            holder = _find_holder(self._held)
            if holder is None or not holder.is_stopped:  # It is measuring.
                return
            warn(
                f"profile cache {self._path} has been held for {_NOTICE_S:g} s by {holder}; waiting for it, up to "
                f"{_PATIENCE_S:g} s"
            )
            self._has_warned = True

    def _find_last_write(self) -> int:
        return self._path.stat().st_mtime_ns if self._path.exists() else 0


def _get_code(error: Exception) -> int:
    """Returns SQLite's primary error code; 0 for an error that SQLite did not raise itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@dataclass(frozen=True)
class _Holder:
    """A process that holds a file locked. `str` returns its number, its command and how to stop it."""

    process_id: str
    name: str
    is_stopped: bool

    def __str__(self) -> str:
        remedy = "was stopped; `kill -CONT {}` lets it go on" if self.is_stopped else "is running; `kill {}` ends it"
        return f"process {self.process_id} ({self.name}, which {remedy.format(self.process_id)})"


def _find_holder(path: Path) -> _Holder | None:
    """Returns the process that holds a file locked; None if the system does not report it."""
    with suppress(OSError, IndexError):
        place = f":{path.stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[3] == "WRITE" and fields[5].endswith(place):
                name, _, state = Path("/proc", fields[4], "stat").read_text().partition("(")[2].rpartition(") ")
                return _Holder(fields[4], name, state[0] in "Tt")
    return None
