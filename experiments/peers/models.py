"""Eight architectures built of blocks. A model trains as it is, or a peer of ours recomputes its activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from experiments.models import apply_two_units, apply_unet, apply_unit
from experiments.peers.grappler import recompute_cheap_operations
from experiments.peers.rows import Way

Batch = tuple[np.ndarray, np.ndarray]
# A function of Keras layers, from one tensor to one tensor.
Block = Callable[[Any], Any]

BATCH_SIZE = 8
_TOKENS, _WORDS, _LOGITS = 256, 1000, 500
_WIDTH, _HEADS = 128, 4
_CLASSES = 10


def build(name: str, way: Way) -> tuple[keras.Model, Batch]:
    """Gives a compiled model and one synthetic batch for it; every way begins with the same weights."""
    keras.utils.set_random_seed(0)
    inputs, outputs = MODELS[name](way)
    model = keras.Model(inputs, outputs, name=name)
    per_pixel = len(outputs.shape) == 4
    loss: keras.losses.Loss = (
        keras.losses.BinaryCrossentropy(from_logits=True)
        if per_pixel
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=False)
    if way == "Grappler":
        recompute_cheap_operations(model)
    random = np.random.default_rng(0)
    shape = (BATCH_SIZE, *inputs.shape[1:])
    x = random.integers(0, _WORDS, shape) if inputs.dtype == "int64" else random.normal(size=shape).astype("float32")
    if per_pixel:
        return model, (x, random.integers(0, 2, (BATCH_SIZE, *outputs.shape[1:])).astype("float32"))
    return model, (x, random.integers(0, outputs.shape[-1], (BATCH_SIZE, *outputs.shape[1:-1])))


class _BlockLayer(layers.Layer):
    """A block whose weights exist already, called the way that is put around it."""

    def __init__(self, inner: keras.Model, wrap: Callable[[Block], Block]):
        super().__init__()
        self.inner = inner
        self.wrap = wrap

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.wrap(lambda y: self.inner(y, training=training))(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.inner.compute_output_shape(input_shape)


_WRAPPERS: dict[Way, Callable[[Block], Block]] = {
    "stock": lambda block: block,
    "tf.recompute_grad": tf.recompute_grad,
    "keras.remat": keras.remat,
    "Grappler": lambda block: block,
}


def _wrapped(way: Way, block: Block, x: Any) -> Any:
    """Calls a block on `x` the given way. Its layers are built before, outside of the wrapper."""
    inputs = keras.Input(x.shape[1:])
    return _BlockLayer(keras.Model(inputs, block(inputs)), _WRAPPERS[way])(x)


def _convolution(x: Any, channels: int, size: int = 3) -> Any:
    return layers.Conv2D(channels, size, padding="same", use_bias=False)(x)


def _classified(x: Any) -> Any:
    pool = layers.GlobalAveragePooling2D() if len(x.shape) == 4 else layers.GlobalAveragePooling1D()
    return layers.Dense(_CLASSES)(pool(x))


def _resnet(way: Way) -> tuple[Any, Any]:
    def residual(x: Any) -> Any:
        return x + layers.BatchNormalization()(_convolution(apply_unit(x, 64), 64))

    inputs = keras.Input((64, 64, 3))
    hidden = _convolution(inputs, 64)
    for _ in range(8):
        hidden = _wrapped(way, residual, hidden)
    return inputs, _classified(hidden)


def _attention(x: Any, *, is_causal: bool) -> Any:
    normal = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
    return x + attention(normal, normal, use_causal_mask=is_causal)


def _feed_forward(x: Any, wide: int = 4) -> Any:
    width = x.shape[-1]
    hidden = layers.Dense(wide * width, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(width)(hidden)


def _embedded(tokens: Any) -> Any:
    positions = layers.Embedding(_TOKENS, _WIDTH)(keras.ops.arange(_TOKENS))
    return layers.Embedding(_WORDS, _WIDTH)(tokens) + positions


def _transformer(way: Way, *, is_causal: bool) -> tuple[Any, Any]:
    inputs = keras.Input((_TOKENS,), dtype="int64")
    hidden = _embedded(inputs)
    for _ in range(6):
        hidden = _wrapped(way, lambda x: _feed_forward(_attention(x, is_causal=is_causal)), hidden)
    return inputs, layers.LayerNormalization()(hidden)


def _encoder(way: Way) -> tuple[Any, Any]:
    inputs, hidden = _transformer(way, is_causal=False)
    return inputs, _classified(hidden)


def _decoder(way: Way) -> tuple[Any, Any]:
    inputs, hidden = _transformer(way, is_causal=True)
    return inputs, layers.Dense(_LOGITS)(hidden)


def _unet(way: Way) -> tuple[Any, Any]:
    def pair(x: Any, channels: int) -> Any:
        return _wrapped(way, lambda y: apply_two_units(y, channels), x)

    inputs = keras.Input((96, 96, 3))
    hidden = apply_unet(inputs, (24, 48, 96), 96, apply_block=pair)
    return inputs, layers.Conv2D(1, 1)(hidden)


def _densenet(way: Way) -> tuple[Any, Any]:
    def dense_layer(x: Any) -> Any:
        x = _convolution(layers.ReLU()(layers.BatchNormalization()(x)), 64, 1)
        return _convolution(layers.ReLU()(layers.BatchNormalization()(x)), 16)

    inputs = keras.Input((64, 64, 3))
    hidden = _convolution(inputs, 32)
    for stage in range(3):
        for _ in range(4):
            hidden = layers.Concatenate()([hidden, _wrapped(way, dense_layer, hidden)])
        if stage < 2:
            hidden = layers.AveragePooling2D(2)(_convolution(hidden, hidden.shape[-1] // 2, 1))
    return inputs, _classified(hidden)


def _mobilenet(way: Way) -> tuple[Any, Any]:
    def inverted(x: Any, channels: int, strides: int) -> Any:
        y = layers.ReLU(6)(layers.BatchNormalization()(_convolution(x, 6 * x.shape[-1], 1)))
        y = layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(y)
        y = layers.ReLU(6)(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(_convolution(y, channels, 1))
        return y if y.shape != x.shape else x + y

    inputs = keras.Input((64, 64, 3))
    hidden = apply_unit(inputs, 16)
    for channels, first_strides, repeats in ((16, 1, 2), (32, 2, 3), (64, 2, 3)):
        for repeat in range(repeats):
            strides = 1 if repeat else first_strides
            hidden = _wrapped(way, partial(inverted, channels=channels, strides=strides), hidden)
    return inputs, _classified(hidden)


def _convnext(way: Way) -> tuple[Any, Any]:
    def block(x: Any) -> Any:
        width = x.shape[-1]
        y = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
        return x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))

    inputs = hidden = keras.Input((64, 64, 3))
    for width in (64, 128):
        hidden = layers.LayerNormalization()(layers.Conv2D(width, 2, strides=2)(hidden))
        for _ in range(4):
            hidden = _wrapped(way, block, hidden)
    return inputs, _classified(hidden)


def _mixer(way: Way) -> tuple[Any, Any]:
    def block(x: Any) -> Any:
        by_channel = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        mixed = layers.Dense(x.shape[1])(layers.Dense(2 * x.shape[1], activation="gelu")(by_channel))
        return _feed_forward(x + layers.Permute((2, 1))(mixed))

    inputs = keras.Input((64, 64, 3))
    patches = layers.Conv2D(_WIDTH, 4, strides=4)(inputs)
    hidden = layers.Reshape((-1, _WIDTH))(patches)
    for _ in range(8):
        hidden = _wrapped(way, block, hidden)
    return inputs, _classified(layers.LayerNormalization()(hidden))


MODELS: dict[str, Callable[[Way], tuple[Any, Any]]] = {
    "resnet": _resnet,
    "encoder": _encoder,
    "decoder": _decoder,
    "unet": _unet,
    "densenet": _densenet,
    "mobilenet": _mobilenet,
    "convnext": _convnext,
    "mixer": _mixer,
}
