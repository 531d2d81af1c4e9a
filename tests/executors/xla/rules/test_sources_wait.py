import keras
import pytest

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.backends import CPU, GPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_xla import noisy


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_random_numbers_wait_for_what_comes_before_them(backend: Backend) -> None:
    assert count_ties(emit(noisy, backend)) > count_ties(emit(noisy, backend.without("sources_wait")))


def frames() -> keras.Model:
    """Convolutions of slices of the batch, which read no activation."""
    inputs = keras.Input((4, 16, 16, 4))
    x = keras.layers.TimeDistributed(keras.layers.Conv2D(8, 3, activation="relu"))(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Flatten()(x)))


def test_what_is_not_random_does_not_wait_on_a_gpu() -> None:
    """XLA computes several such nodes in one kernel there."""
    waiting, free = ([count_ties(emit(frames, one)) for one in (b, b.without("sources_wait"))] for b in (CPU, GPU))
    assert waiting[0] > waiting[1]
    assert free[0] == free[1]
