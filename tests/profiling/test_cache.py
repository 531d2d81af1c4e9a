"""The profile cache: what survives a kill, several processes, damaged and foreign files."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

import pytest

from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache

KEY = DeviceKey("a processor, 2 threads", "2.21.0", "oneDNN on")

# Measures signatures "0" to argv[2] in the cache argv[1], 10 ms each, and appends to argv[3] what it measured.
WORKER = """
import sys, time
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache
path, count, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
key = DeviceKey("a processor, 2 threads", "2.21.0", "oneDNN on")
def measure(signature):
    time.sleep(0.01)
    with open(log, "a") as file:
        file.write(signature + "\\n")
    return Measurement(signature, "MatMul", 5.0, 0.01, 3, 0, 1.0)
with ProfileCache(path) as cache:
    for number in range(count):
        cache.get_or_measure(key, str(number), lambda: measure(str(number)))
"""


def measurement(signature: str, cost_ns: float = 5.0) -> Measurement:
    return Measurement(signature, "MatMul", cost_ns, 0.01, 3, 64, 1.0)


def worker(path, log, *, count: int, program: str = WORKER) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, str(path), str(count), str(log)])


def test_measures_once_and_keeps(tmp_path):
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        assert cache.get_or_measure(KEY, "a", lambda: measurement("a")) == (measurement("a"), True)
        assert cache.get_or_measure(KEY, "a", lambda: pytest.fail("measured twice")) == (measurement("a"), False)
    with ProfileCache(path) as cache:
        assert cache.load(KEY) == {"a": measurement("a")}


@pytest.mark.parametrize("field", ["device", "tensorflow", "driver"])
def test_another_device_version_or_driver_is_measured_again(tmp_path, field):
    other = replace(KEY, **{field: "another"})
    with ProfileCache(tmp_path / "profiles.sqlite") as cache:
        cache.get_or_measure(KEY, "a", lambda: measurement("a"))
        assert cache.load(other) == {}
        assert cache.get_or_measure(other, "a", lambda: measurement("a", 7.0)) == (measurement("a", 7.0), True)
        assert cache.count_by_device() == {KEY: 1, other: 1}


def test_a_failed_measurement_leaves_nothing_and_no_lock(tmp_path):
    def fails():
        raise RuntimeError("out of memory")

    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache, ProfileCache(path) as other:
        with pytest.raises(RuntimeError, match="out of memory"):
            cache.get_or_measure(KEY, "a", fails)
        assert other.get_or_measure(KEY, "a", lambda: measurement("a"))[1]


def test_export_add_and_clear(tmp_path):
    with ProfileCache(tmp_path / "profiles.sqlite") as cache:
        assert cache.add(KEY, [measurement("a"), measurement("b")]) == 2
        assert cache.add(KEY, [measurement("b", 9.0), measurement("c")]) == 1
        (profile,) = json.loads(json.dumps(cache.export()))["profiles"]
        assert [entry["cost_ns"] for entry in profile["measurements"]] == [5.0, 5.0, 5.0]
        assert profile["device"] == KEY.device
        assert cache.clear(DeviceKey("another", "", "")) == 0
        assert cache.clear(KEY) == 3
        assert cache.load(KEY) == {}


def test_killed_in_the_middle_nothing_is_lost_or_measured_again(tmp_path):
    path, log = tmp_path / "profiles.sqlite", tmp_path / "log"
    first = worker(path, log, count=500)
    while not (log.exists() and log.read_text().count("\n") >= 20):
        assert first.poll() is None
        time.sleep(0.005)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ProfileCache(path) as cache:
            kept = set(cache.load(KEY))
    assert len(kept) >= 19
    before = log.read_text().split()
    # One may have been measured and not yet committed.
    assert set(before) - kept <= {before[-1]}
    log.unlink()
    assert worker(path, log, count=60).wait() == 0
    again = log.read_text().split()
    assert kept.isdisjoint(again)
    assert len(again) == len(set(again))
    assert kept | set(again) == {str(number) for number in range(max(60, len(kept)))}


def test_two_processes_share_one_cache_and_measure_nothing_twice(tmp_path):
    path, log = tmp_path / "profiles.sqlite", tmp_path / "log"
    both = [worker(path, log, count=40) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert Counter(log.read_text().split()) == {str(number): 1 for number in range(40)}
    with ProfileCache(path) as cache:
        assert len(cache.load(KEY)) == 40


@pytest.mark.parametrize("kept_share", [0.3, 0.9])
def test_a_truncated_file_is_set_aside_with_a_warning(tmp_path, kept_share):
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        cache.add(KEY, [measurement(str(number)) for number in range(500)])
    whole = path.read_bytes()
    damaged = whole[: int(len(whole) * kept_share)]
    path.write_bytes(damaged)
    with pytest.warns(RuntimeWarning, match="was renamed to"):
        cache = ProfileCache(path)
    assert cache.load(KEY) == {}
    assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
    cache.close()
    (aside,) = tmp_path.glob("*.bad-*")
    assert aside.read_bytes() == damaged


def test_foreign_files_are_kept_untouched(tmp_path):
    text, database = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("not a database, and longer than the sixteen bytes of sqlite's header")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE measurements (x)")
    for path in (text, database):
        content = path.read_bytes()
        with pytest.warns(RuntimeWarning, match="was renamed to"), ProfileCache(path) as cache:
            assert cache.add(KEY, [measurement("a")]) == 1
        (aside,) = tmp_path.glob(f"{path.name}.bad-*")
        assert aside.read_bytes() == content


def test_where_no_file_can_be_made_measurements_stay_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="will not be kept"):
        cache = ProfileCache(tmp_path / "file" / "x")
    assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
    assert not cache.get_or_measure(KEY, "a", lambda: pytest.fail("measured twice"))[1]


def test_a_file_that_another_process_holds_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("checkmate_tf.profiling.cache._PATIENCE_S", 0.05)
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(RuntimeWarning, match=rf"process {os.getpid()} \(.+ is running; `kill \d+` ends it\) has"):
            found, is_new = cache.get_or_measure(KEY, "a", lambda: measurement("a"))
        other.close()
    assert (found.signature, is_new) == ("a", True)


# Measures for ever; opens the cache for ever.
MEASURING = WORKER.replace("    return", "    time.sleep(1000)\n    return")
OPENING = """
import sys, time
from pathlib import Path
from checkmate_tf.profiling import cache
cache._connect_or_set_aside = lambda path: (Path(sys.argv[3]).touch(), time.sleep(1000))
cache.ProfileCache(sys.argv[1])
"""


@pytest.mark.parametrize("program", [MEASURING, OPENING], ids=["measured", "opened"])
def test_a_process_that_was_stopped_while_it_had_the_cache_is_named(tmp_path, monkeypatch, program):
    monkeypatch.setattr("checkmate_tf.profiling.cache._LOOK_S", 0.05)
    monkeypatch.setattr("checkmate_tf.profiling.cache._NOTICE_S", 0.05)
    monkeypatch.setattr("checkmate_tf.profiling.cache._PATIENCE_S", 0.6)
    path, log = tmp_path / "profiles.sqlite", tmp_path / "log"
    other = worker(path, log, count=500, program=program)
    while not log.exists():
        time.sleep(0.005)
    os.kill(other.pid, signal.SIGSTOP)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ProfileCache(path) as cache:
                assert cache.get_or_measure(KEY, "a", lambda: measurement("a")) == (measurement("a"), True)
    finally:
        other.kill()
        other.wait()
    waits, gives_up = [str(warning.message) for warning in caught]
    holder = rf"process {other.pid} \(python.*, which was stopped; `kill -CONT {other.pid}` lets it go on\)"
    assert re.search(rf"held for 0.05 s by {holder}; waiting for it", waits)
    assert re.search(rf"{holder} has held it for 0.6 s\): new measurements will not be kept", gives_up)


def test_a_process_that_measures_is_waited_for_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr("checkmate_tf.profiling.cache._LOOK_S", 0.05)
    monkeypatch.setattr("checkmate_tf.profiling.cache._NOTICE_S", 0.05)
    path, log = tmp_path / "profiles.sqlite", tmp_path / "log"
    slow = WORKER.replace("    return", "    time.sleep(1.5)\n    return")
    other = worker(path, log, count=1, program=slow)
    while not log.exists():
        time.sleep(0.005)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ProfileCache(path) as cache:
            assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
    other.wait()


def test_others_that_write_in_turn_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("checkmate_tf.profiling.cache._PATIENCE_S", 0.6)
    path = tmp_path / "profiles.sqlite"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with ProfileCache(path) as cache, closing(connection) as other:
        other.execute("BEGIN IMMEDIATE")

        def write_in_turn() -> None:
            for number in range(8):  # as if one after the other wrote
                time.sleep(0.25)
                os.utime(path, ns=(0, number))
            other.execute("COMMIT")

        thread = threading.Thread(target=write_in_turn)
        thread.start()
        assert cache.get_or_measure(KEY, "new", lambda: measurement("new")) == (measurement("new"), True)
        thread.join()
    with ProfileCache(path) as cache:
        assert set(cache.load(KEY)) == {"new"}


def test_a_full_disk_ends_nothing_and_is_told_once(tmp_path):
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        cache.add(KEY, [measurement("kept")])
    with ProfileCache(path) as cache:
        pages = cache._connection.execute("PRAGMA page_count").fetchone()[0]
        cache._connection.execute(f"PRAGMA max_page_count = {pages}")  # sqlite then says that the disk is full
        assert set(cache.load(KEY)) == {"kept"}
        large = [replace(measurement(str(number)), op_types="x" * 3000) for number in range(10)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for entry in large:
                assert cache.get_or_measure(KEY, entry.signature, lambda entry=entry: entry) == (entry, True)
        (told,) = caught
        assert "disk is full" in str(told.message)
        assert not cache.get_or_measure(KEY, large[-1].signature, lambda: pytest.fail("measured twice"))[1]
    with ProfileCache(path) as cache:
        assert {"kept"} <= set(cache.load(KEY))
    assert not list(tmp_path.glob("*-journal"))


@contextmanager
def read_only_folder():
    """Gives a folder that this process cannot write in, though it may be the superuser's."""
    with TemporaryDirectory() as name:
        folder = Path(name, "cache")
        folder.mkdir()
        for place, mode in ((folder, 0o555), (Path(name), 0o755)):
            place.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)


def test_a_folder_that_cannot_be_written_in_ends_nothing():
    with read_only_folder() as folder:
        with pytest.warns(RuntimeWarning, match="will not be kept") as caught:
            cache = ProfileCache(folder / "profiles.sqlite")
        assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
        assert not cache.get_or_measure(KEY, "a", lambda: pytest.fail("measured twice"))[1]
        assert len(caught) == 1
        assert not list(folder.iterdir())


def test_only_its_owner_reads_the_cache(tmp_path):
    path = tmp_path / "folder" / "profiles.sqlite"
    before = os.umask(0)
    try:
        with ProfileCache(path) as cache:
            cache.add(KEY, [measurement("a")])
    finally:
        os.umask(before)
    assert S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def make_cache(path, count=40):
    with ProfileCache(path) as cache:
        cache.add(KEY, [measurement(str(number)) for number in range(count)])


DAMAGE = {
    "a view that fills memory": "DROP TABLE measurements; CREATE VIEW measurements AS WITH RECURSIVE n(x) AS "
    "(VALUES (1) UNION ALL SELECT x + 1 FROM n) SELECT 'd' device, 't' tensorflow, 'v' driver, x signature FROM n",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON measurements BEGIN DELETE FROM measurements; END",
    "another table": "CREATE TABLE more (x)",
    "a missing column": "DROP TABLE measurements; CREATE TABLE measurements (device, tensorflow, driver, signature)",
    "another format": "PRAGMA user_version = 77",
    "text for a number": "UPDATE measurements SET cost_ns = 'much'",
    "endless costs": "UPDATE measurements SET cost_ns = 9e999",
    "a cost beyond all graphs": "UPDATE measurements SET cost_ns = 1e300",
    "a negative workspace": "UPDATE measurements SET workspace_bytes = -1",
    "a signature of 50 MB": "UPDATE measurements SET signature = hex(zeroblob(25000000)) WHERE signature = '7'",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_no_profile_cache_holds_is_set_aside(tmp_path, how):
    path = tmp_path / "profiles.sqlite"
    make_cache(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(DAMAGE[how])
        connection.commit()
    content = path.read_bytes()
    with pytest.warns(RuntimeWarning, match="was renamed to"):
        cache = ProfileCache(path)
    with cache:
        assert cache.load(KEY) == {}
        assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
    (aside,) = tmp_path.glob("*.bad-*")
    assert aside.read_bytes() == content


@pytest.fixture
def fast_path(tmp_path):
    """Gives a folder in memory, where the system has one: each new cache waits for the disk several times."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_no_byte_of_the_file_can_end_or_stop_what_measures(fast_path):
    tmp_path = fast_path
    whole, damaged = tmp_path / "whole.sqlite", tmp_path / "damaged.sqlite"
    make_cache(whole)
    content = whole.read_bytes()
    draw = random.Random(0)
    header, used = range(100), [place for place, byte in enumerate(content) if byte]
    places = draw.choices(header, k=100) + draw.choices(used, k=200)
    num_aside = 0
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        damaged.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with ProfileCache(damaged) as cache:
                cache.load(KEY)
                cache.count_by_device()
                assert cache.get_or_measure(KEY, "new", lambda: measurement("new")) == (measurement("new"), True)
                json.dumps(cache.export())
        aside = list(tmp_path.glob("*.bad-*"))
        num_aside += len(aside)
        for file in (*aside, *tmp_path.glob("damaged.sqlite*")):
            file.unlink(missing_ok=True)
    assert num_aside > 50
