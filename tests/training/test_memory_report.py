"""MemoryReport: its figures against the allocator's and the plan's, in what Keras's own callbacks write."""

import csv
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

import checkmate_tf
from checkmate_tf.training.installed_step import find_installed_step
from tests.training_steps import conv_chain

ROWS, MIB = 32, 2**20
QUICK: dict[str, Any] = {"options": checkmate_tf.Options(costs="flops"), "time_limit_s": 5, "progress": False}


def compiled(**options: Any) -> keras.Model:
    model = conv_chain(num_layers=4, size=32)
    model.compile("adam", "sparse_categorical_crossentropy", **({"jit_compile": False} | options))
    return model


def fit(model: keras.Model, *, batches: int = 5, **options: Any) -> tuple[Any, checkmate_tf.MemoryReport]:
    """Trains on images, with MemoryReport before the other callbacks."""
    report = checkmate_tf.MemoryReport()
    images = np.random.default_rng(0).random((ROWS * batches, 32, 32, 3), "float32")
    labels = np.zeros(len(images), int)
    others = options.pop("callbacks", [])
    options = {"batch_size": ROWS, "verbose": 0, "callbacks": [report, *others]} | options
    return model.fit(images, labels, **options), report


@pytest.mark.measures_memory
def test_stock_peaks_are_those_estimated() -> None:
    model = compiled()
    history, report = fit(model, epochs=2)
    assert report.num_steps == 10
    assert report.budget_bytes is None
    assert set(history.history) == {"loss", "peak_mib", "step_s"}
    assert report.peak_bytes == pytest.approx(max(history.history["peak_mib"]) * MIB)
    assert "rematerialize" in str(report)
    # What the allocator's chunks add, in the first step more than later, is within the tolerance.
    assert report.peak_bytes == pytest.approx(checkmate_tf.estimate(model, batch_size=ROWS).peak_bytes, rel=0.25)


@pytest.mark.measures_memory
def test_planned_peaks_keep_to_the_budget_also_with_validation_and_large_batches() -> None:
    """Six batches are a quarter of the budget: to count them twice would exceed it."""
    images = keras.Input((32, 32, 32))
    hidden = images
    for _ in range(6):
        hidden = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(hidden)
    model = keras.Model(images, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(hidden)))
    model.compile("sgd", "mse", jit_compile=False)
    plan = checkmate_tf.rematerialize(model, batch_size=ROWS, budget="85%", **QUICK)
    x, y = np.ones((8 * ROWS, 32, 32, 32), "float32"), np.ones((8 * ROWS, 1), "float32")
    report = checkmate_tf.MemoryReport()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        options = {"batch_size": ROWS, "epochs": 3, "verbose": 0}
        history = model.fit(x, y, **options, callbacks=[report], validation_data=(x, y)).history
    assert report.num_above == 0
    assert report.budget_bytes == plan.budget_bytes
    assert history["budget_mib"] == [plan.budget_bytes / MIB] * 3
    assert 0.7 * plan.peak_bytes < report.peak_bytes <= plan.budget_bytes
    # The 32 MiB of validation data do not count; a batch more may be ready in one epoch than in another.
    assert max(history["peak_mib"]) < 1.05 * min(history["peak_mib"]) + plan.resident.batch / MIB


@pytest.mark.measures_memory
def test_each_batch_size_has_its_budget_and_the_first_step_above_it_is_warned_about_with_numbers() -> None:
    model = compiled()
    budgets = {
        rows: checkmate_tf.rematerialize(model, batch_size=rows, budget="80%", measure=False, **QUICK).budget_bytes
        for rows in (ROWS // 2, ROWS)
    }
    for rows, budget_bytes in budgets.items():
        _, report = fit(model, batches=2, batch_size=rows)
        assert report.budget_bytes == budget_bytes
    for entry in find_installed_step(model).batches.entries.values():
        object.__setattr__(entry.planned, "budget_bytes", budgets[ROWS] // 3)
    with pytest.warns(RuntimeWarning, match=r"batch 0 of epoch 0 .* above its budget of .* MiB") as warned:
        _, report = fit(model)
    assert len([each for each in warned if each.category is RuntimeWarning]) == 1
    assert warned[0].filename == __file__
    assert report.num_above == 5
    assert "5 peaks were above it" in str(report)


def test_several_steps_of_one_execution() -> None:
    seen = Seen()
    _, report = fit(compiled(steps_per_execution=2), batches=4, callbacks=[seen])
    assert report.num_steps == 4
    assert len(seen.logs) == 2
    assert all(logs["step_s"] > 0 for logs in seen.logs)
    assert max(logs["peak_mib"] for logs in seen.logs) * MIB == pytest.approx(report.peak_bytes)


class Seen(keras.callbacks.Callback):
    """Keeps the logs of each step as the callbacks after MemoryReport find them."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


@pytest.mark.measures_memory
def test_keras_loggers_and_the_progress_bar_have_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = compiled()
    plan = checkmate_tf.rematerialize(model, batch_size=ROWS, budget="80%", measure=False, **QUICK)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    board = keras.callbacks.TensorBoard(tmp_path, update_freq=1, write_graph=False)
    _, report = fit(model, batches=3, epochs=2, verbose=1, callbacks=[logger, board])
    with open(tmp_path / "log.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["budget_mib"]) for row in rows] == [plan.budget_bytes / MIB] * 2
    assert max(float(row["peak_mib"]) for row in rows) * MIB == pytest.approx(report.peak_bytes)
    assert {"batch_peak_mib", "epoch_peak_mib", "epoch_step_s"} <= read_tags(tmp_path / "train")
    printed = capsys.readouterr().out
    assert "peak_mib: " in printed
    assert printed.endswith(f"{report}\n")


def read_tags(folder: Path) -> set[str]:
    """The names of all figures in TensorBoard's files."""
    files = [str(path) for path in folder.glob("*.v2")]
    events = [Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(files)]
    return {value.tag for event in events for value in event.summary.value}


def test_an_allocator_that_tells_nothing_leaves_the_peak_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise ValueError(f"{device} keeps no statistics")

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", refuse)
    with pytest.warns(RuntimeWarning, match="TF_ENABLE_ONEDNN_OPTS=1"):
        history, report = fit(compiled(), batches=2)
    assert set(history.history) == {"loss", "step_s"}
    assert report.peak_bytes is None
    assert "not known" in str(report)
