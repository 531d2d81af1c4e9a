"""Planning where a measured step runs out of the device's memory: it goes on with less, or raises an error of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate_tf
from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.graph import step as graph_step
from checkmate_tf.planning import plan_cache
from checkmate_tf.training.rematerialize import find_installed_step

ROWS = 2048
QUICK: dict[str, Any] = {
    "batch_size": ROWS,
    "options": checkmate_tf.Options(costs="flops"),
    "progress": False,
}


@pytest.fixture
def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(64, "tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def limit_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], list[int]]:
    """Limits the device's memory to so many bytes; returns the predicted peaks of the steps that ran out of it."""
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    run_steps = graph_step.run_steps

    def limit(room_bytes: int) -> list[int]:
        ran_out: list[int] = []

        def run(function: Any, arguments: Any, *, predicted_bytes: int, **options: Any) -> Any:
            if predicted_bytes > room_bytes:
                ran_out.append(predicted_bytes)
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return run_steps(function, arguments, predicted_bytes=predicted_bytes, **options)

        monkeypatch.setattr(graph_step, "run_steps", run)
        monkeypatch.setattr(graph_step, "find_free_bytes", lambda *_, **__: room_bytes)
        return ran_out

    return limit


def test_a_step_that_runs_out_of_memory_is_planned_with_less(
    model: keras.Model, limit_room: Callable[[int], list[int]]
) -> None:
    stock_bytes = checkmate_tf.estimate(model, batch_size=ROWS).peak_bytes
    room_bytes = int(0.64 * stock_bytes)
    ran_out = limit_room(room_bytes)
    with pytest.warns(RuntimeWarning, match="the stock step of .* ran out of the device's memory"):
        plan = checkmate_tf.rematerialize(model, budget=int(0.75 * stock_bytes), time_limit_s=8, **QUICK)
    assert ran_out[0] == stock_bytes
    assert len(ran_out) > 1
    assert plan.measured_peak_bytes is not None
    assert plan.predicted_peak_bytes <= room_bytes
    x = np.zeros((ROWS, 64), "float32")
    model.fit(x, x[:, :1], batch_size=ROWS, verbose=0)


def test_where_no_step_has_room_the_model_trains_stock(
    model: keras.Model, limit_room: Callable[[int], list[int]]
) -> None:
    before = model.get_weights()
    ran_out = limit_room(0)
    with (
        pytest.warns(RuntimeWarning, match="the stock step of .* ran out of the device's memory"),
        pytest.raises(EmissionError, match="ran out of the device's memory: pass a lower budget or a smaller batch"),
    ):
        checkmate_tf.rematerialize(model, budget="70%", time_limit_s=2, **QUICK)
    assert len(ran_out) > 2
    assert find_installed_step(model) is None
    assert all(np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))
    x = np.zeros((ROWS, 64), "float32")
    model.fit(x, x[:, :1], batch_size=ROWS, verbose=0)
