"""Attention as people write it, each a step of loss and gradients."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.tf_private import ConcreteFunction

LENGTH, WIDTH, NUM_HEADS = 24, 16, 4


class MakesScores(keras.Layer):
    """Multiplies queries and keys by hand, and makes weights of the scores [batch, heads, queries, keys]."""

    def __init__(self, make_weights: Callable[[tf.Tensor], tf.Tensor], dtype: str = "float64"):
        super().__init__(dtype=dtype)
        self.make_weights = make_weights
        self.queries, self.keys = (keras.layers.Dense(WIDTH, dtype=dtype) for _ in range(2))

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        queries, keys = (self.split(layer(hidden)) for layer in (self.queries, self.keys))
        weights = self.make_weights(tf.matmul(queries, keys, transpose_b=True))
        attended = tf.transpose(tf.matmul(weights, self.split(hidden)), [0, 2, 1, 3])
        return tf.reshape(attended, tf.shape(hidden))

    def split(self, hidden: tf.Tensor) -> tf.Tensor:
        """Splits the width into heads, [batch, heads, tokens, width of a head]."""
        shape = [*hidden.shape[:2], NUM_HEADS, WIDTH // NUM_HEADS]
        return tf.transpose(tf.reshape(hidden, shape), [0, 2, 1, 3])


class SharesKeys(keras.Layer):
    """Attention of which two heads share keys and values, as Gemma's, with a causal mask."""

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        batch_size, length, _ = hidden.shape
        keys = tf.reshape(hidden, [batch_size, length, 2, WIDTH // 2])
        queries = tf.stack([tf.sin(keys), tf.cos(keys)], axis=3)
        scores = keras.ops.einsum("btkgh,bskh->bkgts", queries, keys)
        places = tf.range(length)
        scores = tf.where((places[:, None] >= places)[None, None, None], scores, tf.cast(-1e9, scores.dtype))
        attended = keras.ops.einsum("bkgts,bskh->btkgh", tf.nn.softmax(scores), keys)
        return tf.reshape(attended, [batch_size, length, 2 * WIDTH])


def make_shared_keys(batch_size: int) -> keras.Model:
    """Makes a model whose attention has heads that share keys."""
    keras.utils.set_random_seed(0)
    hidden = keras.Input((LENGTH, WIDTH), batch_size, dtype="float64")
    projected = keras.layers.Dense(WIDTH, dtype="float64")(hidden)
    attended = SharesKeys(dtype="float64")(projected)
    return keras.Model(hidden, keras.layers.Dense(WIDTH, activation="tanh", dtype="float64")(attended))


def make_attention(
    kind: str,
    *,
    dropout: float = 0.0,
    dtype: str = "float64",
    length: int = LENGTH,
    batch_size: int = 2,
    num_layers: int = 1,
) -> keras.Model:
    """Makes a model of layers that are "multi_head", "grouped" or "masked", where some tokens are none."""
    keras.utils.set_random_seed(0)
    hidden = keras.Input((length, WIDTH), batch_size, dtype="float32" if dtype == "mixed_bfloat16" else dtype)
    mask = hidden[:, None, :, 0] > 0 if kind == "masked" else None
    attended = hidden
    for _ in range(num_layers):
        if kind == "grouped":
            layer = keras.layers.GroupQueryAttention(WIDTH // NUM_HEADS, NUM_HEADS, 2, dropout=dropout, dtype=dtype)
        else:
            layer = keras.layers.MultiHeadAttention(NUM_HEADS, WIDTH // NUM_HEADS, dropout=dropout, dtype=dtype)
        attended = layer(attended, attended, attention_mask=mask, use_causal_mask=kind != "masked")
    return keras.Model(hidden, keras.layers.Dense(WIDTH, activation="tanh", dtype=dtype)(attended))


def make_by_hand(make_weights: Callable[[tf.Tensor], tf.Tensor], batch_size: int = 2) -> keras.Model:
    """Makes a model of attention with weights made by a function of the scores."""
    keras.utils.set_random_seed(0)
    hidden = keras.Input((LENGTH, WIDTH), batch_size, dtype="float64")
    return keras.Model(hidden, MakesScores(make_weights)(hidden))


def trace_attention(model: keras.Model, *, jit_compile: bool = False) -> ConcreteFunction:
    """Traces loss and gradients."""
    variables = [variable.value for variable in model.trainable_variables]

    def step(hidden: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = tf.reduce_sum(model(hidden, training=True) ** 2)
        return loss, tape.gradient(loss, [hidden, *variables])

    spec = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype)
    return tf.function(step, autograph=False, jit_compile=jit_compile).get_concrete_function(spec)


def make_hidden(model: keras.Model) -> list[tf.Tensor]:
    """Makes one batch."""
    values = np.random.default_rng(0).normal(size=model.inputs[0].shape)
    return [tf.constant(values, model.inputs[0].dtype)]
