"""What `fit` holds of other batches while a step runs, by what the allocator of the CPU counts."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.training.batches import take_batch_from_fit
from checkmate_tf.training.prefetched import count_prefetched_batches

ROWS, WIDTH, NUM_BATCHES = 64, 4096, 16
BATCH_BYTES = 4 * ROWS * WIDTH


def in_use() -> int:
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


@pytest.fixture(scope="module")
def model() -> keras.Model:
    built = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    built.compile("sgd", "mse", jit_compile=False)
    return built


def make_batch() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((ROWS, WIDTH), "float32"), np.ones((ROWS, 1), "float32")


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return make_batch()


def arrays() -> tuple[tf.Tensor, tf.Tensor]:
    return tf.ones((ROWS * NUM_BATCHES, WIDTH)), tf.ones((ROWS * NUM_BATCHES, 1))


def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield from (make_batch() for _ in range(NUM_BATCHES))


def rows() -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(ROWS * NUM_BATCHES)
    return dataset.map(lambda row: (tf.fill([WIDTH], tf.cast(row, tf.float32)), tf.zeros([1])))


def count_held(model: keras.Model, make: Callable[[], Any], batch_size: int | None) -> int:
    """The bytes counted for data; the first batch may come too slowly on a busy machine for anything to be told."""
    for _ in range(4):
        counted = take_batch_from_fit(model, make(), batch_size).prefetched_bytes
        if counted is not None:
            return counted
    pytest.skip("batches came too slowly, four times")


KINDS: dict[str, Callable[[], Any]] = {
    "arrays": arrays,
    "dataset": lambda: rows().batch(ROWS),
    "prefetching dataset": lambda: rows().batch(ROWS).prefetch(6),
    "generator": generate,
    "PyDataset": Batches,
    "PyDataset with workers": lambda: Batches(workers=2),
}


@pytest.mark.measures_memory
@pytest.mark.parametrize("kind", KINDS)
def test_no_less_is_counted_than_training_holds_and_not_much_more(model: keras.Model, kind: str) -> None:
    held_bytes: list[int] = []

    class Held(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Waits while further batches are made ready: after a few steps, for as long as a busy machine needs."""
            until = time.monotonic() + (10 if batch == NUM_BATCHES // 4 else 0)
            time.sleep(0.02)
            while in_use() - before < least and time.monotonic() < until:
                time.sleep(0.005)
            held_bytes.append(in_use())

    counted = count_held(model, KINDS[kind], ROWS if kind == "arrays" else None)
    least = counted - 2 * BATCH_BYTES
    data = KINDS[kind]()
    arguments = {"x": data[0], "y": data[1], "batch_size": ROWS} if kind == "arrays" else {"x": data}
    model.fit(**arguments, epochs=1, verbose=0)  # makes what is made once
    data = arguments["x"] = None
    data = KINDS[kind]()
    arguments |= {"x": data[0], "y": data[1]} if kind == "arrays" else {"x": data}
    before = in_use()
    model.fit(**arguments, epochs=1, verbose=0, callbacks=[Held()])
    held = max(held_bytes) - before
    assert held <= counted
    assert held >= least


@pytest.mark.measures_memory
def test_arrays_are_counted_as_they_are_measured(model: keras.Model) -> None:
    """Without data, batches are expected to come from arrays."""
    measured = count_held(model, arrays, ROWS)
    assert count_prefetched_batches() - 1 <= measured / BATCH_BYTES <= count_prefetched_batches()


@pytest.mark.measures_memory
def test_a_shuffle_buffer_holds_no_batches(model: keras.Model) -> None:
    """Elements of a mebibyte, each counted by the allocator."""

    def make(shuffled: int) -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(64).map(lambda row: (tf.fill([64, WIDTH], 1.0), tf.zeros([64, 1])))
        return dataset.shuffle(shuffled) if shuffled else dataset

    plain, shuffled = (count_held(model, lambda size=size: make(size), None) for size in (0, 20))
    assert shuffled <= plain + 2 * BATCH_BYTES


def test_batches_too_small_to_be_counted_are_not_measured(model: keras.Model) -> None:
    x, y = make_batch()
    assert take_batch_from_fit(model, (x[:8], y[:8]), 8).prefetched_bytes is None


def test_on_many_cores_more_batches_of_arrays_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a core, at most 16, and two that are ready."""
    for cores, batches in ((2, 4), (8, 10), (64, 18)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores), raising=False)
        assert count_prefetched_batches() == batches
