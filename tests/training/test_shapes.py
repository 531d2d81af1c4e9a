"""Data whose batches have several shapes: some are planned before training, and every step keeps to one budget."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate_tf
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.measurement.step_meter import StepMeter
from checkmate_tf.training.planned_batches import PlannedBatches
from checkmate_tf.training.rematerialize import find_installed_step

WIDTH, ROWS = 128, 8
LENGTHS = (512, 448, 384)
SHORTER = (128, 112, 96)  # for XLA, whose peaks no allocator measures


def encoder(*, num_layers: int = 3, jit_compile: bool = False) -> keras.Model:
    """Its activations shrink with the length, and exceed 70 % of the longest one's peak at each of the lengths."""
    keras.utils.set_random_seed(1)
    inputs = hidden = keras.Input((None, WIDTH))
    for _ in range(num_layers):
        hidden = layers.LayerNormalization()(hidden + layers.Dense(WIDTH, activation="gelu")(hidden))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit_compile)
    return model


def sentences(lengths: tuple[int, ...] = LENGTHS, num_rows: int = 3 * ROWS + 4) -> tf.data.Dataset:
    """Batches of the three lengths, the last one of few rows."""
    longest, middle, shortest = lengths

    def generate() -> Iterator[Any]:
        random = np.random.default_rng(0)
        lengths = [middle, longest, shortest, longest]
        for first in range(0, num_rows, ROWS):
            rows = min(ROWS, num_rows - first)
            x = random.normal(size=(rows, lengths[first // ROWS], WIDTH)).astype("float32")
            yield x, x.mean(axis=(1, 2), keepdims=False)[:, None]

    signature = (tf.TensorSpec((None, None, WIDTH)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


@pytest.mark.measures_memory
@pytest.mark.parametrize(("jit_compile", "lengths", "num_layers"), [(False, LENGTHS, 4), (True, SHORTER, 2)])
@pytest.mark.filterwarnings("error:.*is planned now:RuntimeWarning")
def test_three_lengths_are_planned_before_training(
    jit_compile: bool, lengths: tuple[int, ...], num_layers: int
) -> None:
    """The last, short batch trains by the stock step, which fits."""
    stock = encoder(num_layers=num_layers)
    base_bytes = count_bytes_in_use()
    model = encoder(num_layers=num_layers, jit_compile=jit_compile)
    options = checkmate_tf.Options(costs="flops", num_shapes=3)
    plan = checkmate_tf.rematerialize(
        model, data=sentences(lengths), budget="70%", time_limit_s=10, options=options, progress=False
    )
    entries = list(find_installed_step(model).batches.entries.values())
    assert [entry.spec.flat[0].shape[1] for entry in entries] == list(lengths)
    assert all(entry.planned is None or entry.planned.budget_bytes == plan.budget_bytes for entry in entries)
    assert entries[1].planned.stock.peak_bytes > plan.budget_bytes
    meter = StepMeter(base_bytes)
    found = model.fit(sentences(lengths), epochs=2, verbose=0, callbacks=[] if jit_compile else [meter])
    expected = stock.fit(sentences(lengths), epochs=2, verbose=0)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], rtol=1e-5)
    assert max(meter.peaks_bytes, default=0) <= 1.1 * plan.budget_bytes


def test_shapes_that_were_not_asked_for_are_not_planned() -> None:
    model = encoder()
    quick = {"options": checkmate_tf.Options(solver="retain_all", costs="flops"), "measure": False, "progress": False}
    checkmate_tf.rematerialize(model, data=sentences(), budget="1000%", **quick)
    assert len(find_installed_step(model).batches.entries) == 1


def test_a_number_of_shapes_is_at_least_one() -> None:
    with pytest.raises(checkmate_tf.BatchError, match="num_shapes"):
        checkmate_tf.Options(num_shapes=0)


def test_the_model_trains_as_before_if_a_further_shape_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder()
    quick = {"measure": False, "progress": False}
    options = checkmate_tf.Options(solver="retain_all", costs="flops")
    before = checkmate_tf.rematerialize(model, data=sentences(), budget="1000%", options=options, **quick)

    def refuse(*_: Any) -> None:
        raise checkmate_tf.InfeasibleBudgetError("no schedule was found")

    monkeypatch.setattr(PlannedBatches, "plan_smaller", refuse)
    two = replace(options, num_shapes=2)
    with pytest.raises(checkmate_tf.InfeasibleBudgetError, match="no schedule"):
        checkmate_tf.rematerialize(model, data=sentences(), budget="900%", options=two, **quick)
    batches = find_installed_step(model).batches
    assert [entry.planned for entry in batches.entries.values()] == [before.planned]
    assert batches.request.budget == before.budget_bytes
