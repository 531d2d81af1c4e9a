"""Plans on disk: whole files, a bounded number of them, and a folder that is only a help."""

import os
import threading

import pytest

from checkmate_tf.planning import plan_cache
from checkmate_tf.planning.plan_cache import PlanCache, digest


def test_a_key_is_of_all_that_a_plan_depends_on():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) != digest({"a": 1, "b": 3})


def test_a_plan_is_found_under_its_key(tmp_path):
    cache = PlanCache(tmp_path / "plans")
    assert cache.find("a" * 64) is None
    cache.keep("a" * 64, {"order": [0, 1]})
    assert PlanCache(tmp_path / "plans").find("a" * 64) == {"order": [0, 1]}
    assert cache.find("b" * 64) is None
    assert (tmp_path / "plans").stat().st_mode & 0o077 == 0


def test_the_plan_that_was_not_used_for_longest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "_MOST_PLANS", 2)
    cache = PlanCache(tmp_path)
    for number, key in enumerate("ab"):
        cache.keep(key, {})
        os.utime(tmp_path / f"{key}.plan.json", (number, number))
    assert cache.find("a") == {}  # so that it is newer than the other one
    cache.keep("c", {})
    assert [cache.find(key) for key in "abc"] == [{}, None, {}]
    monkeypatch.setattr(plan_cache, "_MOST_BYTES", 0)
    cache.keep("d", {})
    assert cache.list() == []


def test_a_damaged_file_is_set_aside(tmp_path):
    cache = PlanCache(tmp_path)
    (tmp_path / "a.plan.json").write_text('{"order": [0')
    with pytest.warns(RuntimeWarning, match="not usable .* is not JSON.* planned again"):
        assert cache.find("a") is None
    (aside,) = tmp_path.glob("a.plan.json.bad-*")
    assert aside.read_text() == '{"order": [0'
    assert cache.list() == []


def _keep_twice(cache):
    cache.keep("a", {})
    with cache.plan_once("a"):
        cache.keep("a", {})


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "plans").write_text("no folder")
    cache = PlanCache(tmp_path / "plans")
    with pytest.warns(RuntimeWarning, match="cannot be used .* plans are not kept") as warned:
        _keep_twice(cache)
    assert len(warned) == 1
    assert cache.find("a") is None


def test_one_at_a_time_plans_for_a_key(tmp_path):
    """The others find what it kept."""
    planned = []

    def plan(cache):
        with cache.plan_once("a" * 64):
            if cache.find("a" * 64) is None:
                planned.append(threading.get_ident())
                cache.keep("a" * 64, {})

    threads = [threading.Thread(target=plan, args=(PlanCache(tmp_path),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(planned) == 1
