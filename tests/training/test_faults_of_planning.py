"""Planning that is interrupted under XLA leaves the model stock."""

import os
import random
import signal
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
from tests.training.test_plan_files import QUICK
from tests.training.test_plan_files import build as build_with

ROWS = 1024


def build(*, jit_compile: bool = False) -> keras.Model:
    return build_with(keras.optimizers.SGD(0.01, momentum=0.9), jit_compile=jit_compile)


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
    expected = fit(build())
    lot, interrupts = random.Random(0), 0
    for number in range(2):
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
