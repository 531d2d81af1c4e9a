"""Trains a planned model under XLA and says on standard error where planning, `train_on_batch` and `fit` begin.

    python -m tests.xla_compilations

TensorFlow's log says beside it what was compiled: the test that runs this counts those lines.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import checkmate_tf

BATCH_SIZE = 8


def build() -> keras.Model:
    """A convolution with statistics that a step updates, and attention."""
    tokens = keras.Input((128,), dtype="int32")
    hidden = layers.Embedding(50, 32)(tokens)
    other = layers.BatchNormalization()(layers.Conv1D(32, 3, padding="same", use_bias=False)(hidden))
    hidden = layers.ReLU()(layers.Add()([hidden, other]))
    normal = layers.LayerNormalization()(hidden)
    hidden = layers.Add()([hidden, layers.MultiHeadAttention(2, 16)(normal, normal, use_causal_mask=True)])
    return keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))


def main() -> None:
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=True)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (10 * BATCH_SIZE, 128)), random.integers(0, 10, 10 * BATCH_SIZE)
    plan = checkmate_tf.rematerialize(
        model, batch_size=BATCH_SIZE, budget="90%", options=checkmate_tf.Options(costs="flops"), time_limit_s=5
    )
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.stock_peak_bytes  # so that a rewritten step runs
    for way in ("train_on_batch", "fit"):
        in_use = []
        say(way)
        for _ in range(2):
            if way == "fit":
                model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
            else:
                for first in range(0, 5 * BATCH_SIZE, BATCH_SIZE):
                    model.train_on_batch(x[first : first + BATCH_SIZE], y[first : first + BATCH_SIZE])
            in_use.append(tf.config.experimental.get_memory_info("CPU:0")["current"])
        say(f"grew {in_use[1] - in_use[0]}")
    say("end")


def say(what: str) -> None:
    sys.stderr.flush()
    print(f"=== {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
