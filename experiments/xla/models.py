"""A ResNet, a U-Net, a DenseNet and a transformer in blocks that Keras or TensorFlow can rematerialize."""

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import layers

# What a user has without this project. "remat": keras.remat around each layer unit. "recompute_grad":
# tf.recompute_grad around each block. "scope_...": the whole model built in a keras.RematScope of that mode.
Remat = Literal["none", "remat", "recompute_grad", "scope_full", "scope_activations", "scope_larger_than"]

MODELS = ("resnet", "unet", "densenet", "transformer")
BATCH_SIZE = 8
_IMAGE = (96, 96, 3)
_TOKENS, _WORDS, _WIDTH = 256, 1000, 128
_LARGE_ELEMENTS = 100_000


def build(
    name: str, remat: Remat = "none", *, batch_size: int = BATCH_SIZE
) -> tuple[keras.Model, tuple[np.ndarray, np.ndarray]]:
    """A model compiled for XLA, and a batch for it."""
    keras.utils.set_random_seed(0)
    if remat.startswith("scope_"):
        mode = remat.removeprefix("scope_")
        with keras.RematScope(mode=mode, output_size_threshold=_LARGE_ELEMENTS):
            return _build(name, "none", batch_size)
    return _build(name, remat, batch_size)


def _build(name: str, remat: Remat, batch_size: int) -> tuple[keras.Model, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    labels = np.arange(batch_size) % 10
    if name == "transformer":
        inputs = keras.Input((_TOKENS,), dtype="int64")
        hidden = layers.GlobalAveragePooling1D()(_transformer(inputs, remat))
        data = random.integers(0, _WORDS, (batch_size, _TOKENS))
    else:
        inputs = keras.Input(_IMAGE)
        hidden = layers.GlobalAveragePooling2D()(_BODIES[name](inputs, remat))
        data = random.normal(size=(batch_size, *_IMAGE)).astype("float32")
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(hidden))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=True)
    return model, (data, labels)


class _Rematerialized(layers.Layer):
    """A functional model recomputed for its gradient."""

    def __init__(self, inner: keras.Model, remat: Remat):
        super().__init__()
        self.inner = inner
        self.wrap = keras.remat if remat == "remat" else tf.recompute_grad

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.wrap(lambda y: self.inner(y, training=training))(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.inner.compute_output_shape(input_shape)


def _apart(function: Callable[[Any], Any], hidden: Any, is_wrapped: bool, remat: Remat) -> Any:
    """`function(hidden)`, recomputed for its gradient where `is_wrapped`."""
    if not is_wrapped:
        return function(hidden)
    inputs = keras.Input(hidden.shape[1:])
    return _Rematerialized(keras.Model(inputs, function(inputs)), remat)(hidden)


def _unit(hidden: Any, channels: int, remat: Remat) -> Any:
    def unit(x: Any) -> Any:
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    return _apart(unit, hidden, remat == "remat", remat)


def _resnet(hidden: Any, remat: Remat) -> Any:
    hidden = _unit(hidden, 24, remat)
    for _ in range(5):
        hidden = _apart(lambda x: x + _unit(_unit(x, 24, remat), 24, remat), hidden, remat == "recompute_grad", remat)
    return hidden


def _unet(hidden: Any, remat: Remat) -> Any:
    def pair(x: Any, channels: int) -> Any:
        return _apart(lambda y: _unit(_unit(y, channels, remat), channels, remat), x, remat == "recompute_grad", remat)

    kept = []
    for channels in (16, 32, 48):
        hidden = pair(hidden, channels)
        kept.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    hidden = _unit(hidden, 64, remat)
    for channels, skip in zip((48, 32, 16), reversed(kept), strict=True):
        hidden = layers.Concatenate()([layers.Conv2DTranspose(channels, 2, strides=2)(hidden), skip])
        hidden = pair(hidden, channels)
    return hidden


def _densenet(hidden: Any, remat: Remat) -> Any:
    def dense_block(x: Any) -> Any:
        for _ in range(4):
            x = layers.Concatenate()([x, _unit(x, 12, remat)])
        return x

    hidden = _unit(hidden, 16, remat)
    for block in range(3):
        hidden = _apart(dense_block, hidden, remat == "recompute_grad", remat)
        if block < 2:
            hidden = layers.AveragePooling2D(2)(layers.Conv2D(32, 1)(hidden))
    return hidden


def _transformer(tokens: Any, remat: Remat) -> Any:
    def attention(x: Any) -> Any:
        return layers.LayerNormalization()(x + layers.MultiHeadAttention(4, _WIDTH // 4)(x, x))

    def feed_forward(x: Any) -> Any:
        wide = layers.Dense(4 * _WIDTH, activation="gelu")(x)
        return layers.LayerNormalization()(x + layers.Dense(_WIDTH)(wide))

    def encoder(x: Any) -> Any:
        x = _apart(attention, x, remat == "remat", remat)
        return _apart(feed_forward, x, remat == "remat", remat)

    hidden = layers.Embedding(_WORDS, _WIDTH)(tokens)
    for _ in range(4):
        hidden = _apart(encoder, hidden, remat == "recompute_grad", remat)
    return hidden


_BODIES = {"resnet": _resnet, "unet": _unet, "densenet": _densenet}
