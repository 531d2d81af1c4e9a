import keras
import numpy as np
import pytest

from experiments.peers.grappler import count_recomputed, recompute_cheap_operations

_BATCH = (np.linspace(-1, 1, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3), np.ones((2, 8, 8, 4)))


def _model() -> keras.Model:
    keras.utils.set_random_seed(0)
    block = [keras.layers.Conv2D(4, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *block, keras.layers.Conv2D(4, 1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_grappler_recomputes_only_where_it_is_asked_to():
    stock, recomputed = _model(), _model()
    recompute_cheap_operations(recomputed)

    assert count_recomputed(recomputed, _BATCH) > 0
    assert count_recomputed(stock, _BATCH) == 0


def test_grappler_computes_the_same_losses():
    stock, recomputed = _model(), _model()
    recompute_cheap_operations(recomputed)

    losses = [[float(model.train_on_batch(*_BATCH)) for _ in range(3)] for model in (stock, recomputed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0][2] != losses[0][0]
