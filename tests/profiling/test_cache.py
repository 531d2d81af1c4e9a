"""The profile cache: what survives a kill, several processes, damaged and foreign files."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections import Counter

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


def worker(path, log, *, count: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(count), str(log)])


def test_measures_once_and_keeps(tmp_path):
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        assert cache.get_or_measure(KEY, "a", lambda: measurement("a")) == (measurement("a"), True)
        assert cache.get_or_measure(KEY, "a", lambda: pytest.fail("measured twice")) == (measurement("a"), False)
    with ProfileCache(path) as cache:
        assert cache.load(KEY) == {"a": measurement("a")}


@pytest.mark.parametrize("field", ["device", "tensorflow", "driver"])
def test_another_device_version_or_driver_is_measured_again(tmp_path, field):
    from dataclasses import replace

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
    with pytest.warns(RuntimeWarning, match="nothing will be kept"):
        cache = ProfileCache(tmp_path / "file" / "x")
    assert cache.get_or_measure(KEY, "a", lambda: measurement("a"))[1]
    assert not cache.get_or_measure(KEY, "a", lambda: pytest.fail("measured twice"))[1]


def test_a_file_that_another_process_holds_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("checkmate_tf.profiling.cache._PATIENCE_S", 0.05)
    path = tmp_path / "profiles.sqlite"
    with ProfileCache(path) as cache:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(RuntimeWarning, match="another process has held"):
            found, is_new = cache.get_or_measure(KEY, "a", lambda: measurement("a"))
        other.close()
    assert (found.signature, is_new) == ("a", True)
