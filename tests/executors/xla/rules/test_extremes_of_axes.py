import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.executors.xla.backends import CPU, GPU
from tests.executors.xla.rules.steps import list_ops


def attentive_chain() -> keras.Model:
    """Blocks that scale each channel by a weight, which a dense layer computes from the channels' maxima."""
    keras.utils.set_random_seed(3)
    inputs = x = keras.Input((16, 16, 8))
    for _ in range(3):
        x = keras.layers.Conv2D(16, 3, padding="same")(x)
        x = keras.layers.Activation("gelu")(keras.layers.LayerNormalization()(x))
        scale = keras.layers.GlobalMaxPooling2D(keepdims=True)(x)
        x = keras.layers.Multiply()([x, keras.layers.Dense(16, activation="sigmoid")(scale)])
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_extreme_is_not_read_from_the_forward_pass(backend):
    ops = list_ops(attentive_chain, "Equal")
    assert len(ops) == 3
    for op in ops:
        lowering = backend.lower(op)
        assert lowering is not None
        assert [op.inputs[position].op.type for position in lowering.inputs] == ["Mul"]
        assert backend.without("extremes_of_axes").lower(op) is None


def test_other_comparisons_stay():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (4, 4))
        of_rows = tf.reduce_max(x, 1)
        of_columns = tf.reshape(of_rows, (1, 4))
        for compared in (
            tf.equal(of_rows, x),
            tf.equal(of_columns, x),
            tf.equal(x, tf.reduce_max(x * 2, 1, keepdims=True)),
            tf.equal(x, 0),
        ):
            assert CPU.lower(compared.op) is None
        lowering = CPU.lower(tf.equal(x, tf.reduce_max(x, 1, keepdims=True)).op)
        assert lowering is not None
        assert lowering.inputs == (0,)


def test_training_where_values_but_not_their_maxima_are_computed_again():
    """Without the rule no recomputed value equals its maximum, and the second loss is NaN."""
    x = np.random.default_rng(0).normal(size=(32, 16, 16, 8)).astype("float32")
    y = np.arange(32) % 4
    losses = []
    for budget in (None, "50%"):
        model = attentive_chain()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
        if budget is not None:
            plan = checkmate_tf.rematerialize(model, data=(x, y), batch_size=32, budget=budget, progress=False)
            assert any("Gelu" in one.name for one in plan.recomputed)
        losses.append([float(model.train_on_batch(x, y)) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
