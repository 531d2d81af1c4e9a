"""Planning that is interrupted under XLA, and whole plannings beside each other on caches that hold nothing."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.planning import plan_cache
from checkmate_tf.training.installed_step import find_installed_step
from tests.training.test_plan_files import QUICK, build

ROWS = 1024


def fit(model: keras.Model) -> list[np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 64)).astype("float32")
    model.fit(x, x[:, :1], batch_size=ROWS, verbose=0)
    return list(model.get_weights())


def test_interrupts_under_xla_leave_the_model_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(folder: str) -> keras.Model:
        monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path / folder)
        model = build(jit_compile=True)
        checkmate_tf.rematerialize(model, batch_size=ROWS, budget="80%", time_limit_s=2, **QUICK)
        return model

    began_s = time.perf_counter()
    plan("whole")
    whole_s = time.perf_counter() - began_s
    expected = fit(build(jit_compile=True))
    lot, interrupts = random.Random(0), 0
    for number in range(3):
        model = build(jit_compile=True)
        before = model.get_weights()
        monkeypatch.setattr(plan_cache, "get_default_folder", lambda number=number: tmp_path / str(number))
        timer = threading.Timer(lot.uniform(0, whole_s / 2), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            checkmate_tf.rematerialize(model, batch_size=ROWS, budget="80%", time_limit_s=2, **QUICK)
            timer.join()
        except KeyboardInterrupt:
            interrupts += 1
            assert find_installed_step(model) is None
        assert tf.executing_eagerly()
        assert all(np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))
        for mine, theirs in zip(fit(model), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    assert interrupts


SCRIPT = """
import sys
import checkmate_tf
from tests.training.test_faults_of_planning import ROWS, fit
from tests.training.test_plan_files import build
model = build()
plan = checkmate_tf.rematerialize(model, batch_size=ROWS, budget=sys.argv[1], time_limit_s=2, progress=False)
fit(model)
print(plan.measured_peak_bytes <= plan.budget_bytes)
"""


def test_two_processes_plan_the_same_model_for_two_budgets_on_one_cold_cache(tmp_path: Path) -> None:
    """Each node is timed by one of them, while the other waits for it or times another one."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment["PYTHONWARNINGS"] = "error::RuntimeWarning"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, budget],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for budget in ("90%", "80%")
    ]
    said = [process.communicate() for process in both]
    assert [out.split() for out, _ in said] == [["True"], ["True"]], said
    assert list(tmp_path.rglob("*.sqlite")), "another cache was used"
