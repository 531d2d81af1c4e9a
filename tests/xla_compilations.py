"""Trains a planned model under XLA and says on standard error where planning, `train_on_batch` and `fit` begin.

    python -m tests.xla_compilations convolutions|attention

TensorFlow's log says beside it what was compiled: the test that runs this counts those lines.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import checkmate_tf

BATCH_SIZE = 8


def convolutions() -> keras.Model:
    inputs = hidden = keras.Input((32, 32, 8))
    for _ in range(2):
        other = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(hidden))
        hidden = layers.ReLU()(layers.Add()([hidden, other]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(hidden)))


def attention() -> keras.Model:
    tokens = keras.Input((128,), dtype="int32")
    hidden = layers.Embedding(50, 32)(tokens)
    normal = layers.LayerNormalization()(hidden)
    hidden = layers.Add()([hidden, layers.MultiHeadAttention(2, 16)(normal, normal, use_causal_mask=True)])
    return keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))


def main(name: str) -> None:
    model = {"convolutions": convolutions, "attention": attention}[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=True)
    random = np.random.default_rng(0)
    shape = (10 * BATCH_SIZE, *model.input_shape[1:])
    x = random.integers(0, 50, shape) if name == "attention" else random.normal(size=shape).astype("float32")
    y = random.integers(0, 10, len(x))
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="90%", costs="flops", time_limit_s=5)
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
    main(sys.argv[1])
