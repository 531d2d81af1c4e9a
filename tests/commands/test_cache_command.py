"""`checkmate-tf cache` lists and clears both caches."""

import json

import pytest

from checkmate_tf.cli import main
from checkmate_tf.planning import plan_cache
from checkmate_tf.planning.plan_cache import PlanCache
from checkmate_tf.profiling import cache as profile_cache
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path / "plans")
    monkeypatch.setattr(profile_cache, "get_default_cache_path", lambda: tmp_path / "profiles.sqlite")
    PlanCache().keep("a" * 64, {"format": "checkmate-plan/2"})
    with ProfileCache() as cache:
        key = DeviceKey("a processor, 2 threads", "2.21.0", "oneDNN on")
        cache.add(key, [Measurement(name, "MatMul", 5.0, 0.01, 3, 64, 1.0) for name in "ab"])


def test_both_caches_are_listed(tmp_path, capsys):
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert f"1 plans, 30 B, in {tmp_path / 'plans'}" in shown
    assert f"2 measurements, in {tmp_path / 'profiles.sqlite'}" in shown
    assert "a processor, 2 threads" in shown


def test_what_is_named_is_cleared(capsys):
    assert main(["cache", "clear", "--plans"]) == 0
    assert capsys.readouterr().out.startswith("1 plans removed from ")
    assert main(["cache", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["plans"]["num_kept"], found["profiles"]["num_kept"]) == (0, 2)
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profiles"]["num_removed"] == 2
