"""Losses over the logits of a vocabulary, as people write them: each a step that gives its loss and gradients."""

from collections.abc import Callable
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.tf_private import ConcreteFunction

BATCH, LENGTH, WIDTH, NUM_WORDS = 2, 23, 6, 50


def make_data(seed: int = 0) -> list[tf.Tensor]:
    """Makes hidden states, the words that follow, and weights of rows."""
    random = np.random.default_rng(seed)
    return [
        tf.constant(random.normal(size=(BATCH, LENGTH, WIDTH))),
        tf.constant(random.integers(0, NUM_WORDS, (BATCH, LENGTH))),
        tf.constant(random.uniform(0.5, 1.0, (BATCH, LENGTH))),
    ]


@cache
def make_variables(seed: int = 1) -> list[tf.Variable]:
    """Makes the matrix of a vocabulary, [words, width], and a bias, which traced steps do not hold."""
    random = np.random.default_rng(seed)
    return [tf.Variable(random.normal(size=(NUM_WORDS, WIDTH))), tf.Variable(random.normal(size=NUM_WORDS))]


def trace_loss(compute: Callable[..., Any], *, jit_compile: bool = False) -> ConcreteFunction:
    """Traces `compute(logits, words, weights)`, a loss or a loss and metrics, with its gradients in 64 bits."""
    matrix, bias = make_variables()

    def step(hidden: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            logits = tf.nn.bias_add(tf.tensordot(hidden, tf.transpose(matrix), axes=1), bias)
            computed = tf.nest.flatten(compute(logits, words, weights))
        return computed, tape.gradient(computed[0], [hidden, matrix, bias])

    return tf.function(step, jit_compile=jit_compile).get_concrete_function(*make_data())


def _sparse(logits: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=logits)


def compute_mean(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(_sparse(logits, words))


def compute_weighted(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(weights * _sparse(logits, words)) / tf.reduce_sum(weights)


def compute_masked(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    mask = tf.cast(words > 10, tf.float64)
    return tf.reduce_sum(mask * _sparse(logits, words)) / tf.reduce_sum(mask)


def compute_scaled(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return 1024 * compute_weighted(logits, words, weights)


def compute_with_z_loss(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(_sparse(logits, words) + 1e-2 * tf.reduce_logsumexp(logits, axis=-1) ** 2)


def compute_capped(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return compute_mean(30.0 * tf.tanh(logits / 30.0), words, weights)


def compute_of_probabilities(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    loss = keras.losses.sparse_categorical_crossentropy(words, tf.identity(tf.nn.softmax(logits)))
    return tf.reduce_mean(tf.cast(loss, tf.float64))


def compute_smoothed(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    labels = 0.9 * tf.one_hot(words, NUM_WORDS, dtype=tf.float64) + 0.1 / NUM_WORDS
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def compute_by_hand(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    chosen = tf.reduce_sum(tf.one_hot(words, NUM_WORDS, dtype=tf.float64) * tf.nn.log_softmax(logits), axis=-1)
    return -tf.reduce_mean(chosen)


def compute_with_metrics(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), words), tf.float64)
    flat = tf.cast(tf.reshape(logits, [-1, NUM_WORDS]), tf.float32)
    in_five = tf.math.in_top_k(tf.reshape(words, [-1]), flat, 5)
    perplexity = tf.exp(compute_mean(logits, words, weights))
    return [
        compute_mean(logits, words, weights),
        tf.reduce_mean(correct),
        tf.reduce_mean(tf.cast(in_five, "float64")),
        perplexity,
    ]


def _of_product(product: Callable[..., tf.Tensor]) -> Callable[..., ConcreteFunction]:
    """Makes a step of another product of hidden states [batch, length, width] and a matrix [width, words]."""

    def step(hidden: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
        matrix = tf.transpose(make_variables()[0])
        with tf.GradientTape() as tape:
            tape.watch([hidden, matrix])
            loss = compute_weighted(product(hidden, matrix), words, weights)
        return loss, tape.gradient(loss, [hidden, matrix])

    return lambda: tf.function(step).get_concrete_function(*make_data())


PRODUCTS = {
    "matmul": _of_product(tf.matmul),
    "einsum": _of_product(lambda hidden, matrix: tf.einsum("btd,dv->btv", hidden, matrix)),
    "turned": _of_product(lambda hidden, matrix: tf.matmul(hidden, tf.transpose(matrix), transpose_b=True)),
    "one_row": _of_product(lambda hidden, matrix: tf.squeeze(tf.matmul(hidden[None], matrix), axis=0)),
    "flat": _of_product(
        lambda hidden, matrix: tf.reshape(tf.reshape(hidden, [-1, WIDTH]) @ matrix, [BATCH, LENGTH, NUM_WORDS])
    ),
}


def compute_shifted(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return compute_weighted(logits[:, :-1], words[:, 1:], weights[:, 1:])


def compute_shifted_metrics(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    logits, words = logits[..., 2:-3, :], words[:, 5:]
    correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), words), tf.float64)
    return [tf.reduce_sum(_sparse(logits, words)), tf.reduce_mean(correct)]


def compute_root(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The gradient waits for the value of the loss."""
    return tf.sqrt(compute_mean(logits, words, weights))


LOSSES = [
    compute_shifted,
    compute_shifted_metrics,
    compute_root,
    compute_mean,
    compute_weighted,
    compute_masked,
    compute_scaled,
    compute_with_z_loss,
    compute_capped,
    compute_of_probabilities,
    compute_smoothed,
    compute_by_hand,
    compute_with_metrics,
]
