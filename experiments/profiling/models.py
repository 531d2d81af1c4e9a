"""The four models whose predictions are compared with measured steps, compiled."""

from collections.abc import Callable

import keras
from keras import layers

from experiments.models import apply_unet, resnet50


def unet(size: int = 128, width: int = 32, depth: int = 4) -> keras.Model:
    """U-Net with BatchNorm and transposed convolutions, two classes a pixel."""
    inputs = keras.Input((size, size, 3))
    x = apply_unet(inputs, [width * 2**level for level in range(depth)], width * 2**depth)
    return _compiled(keras.Model(inputs, layers.Conv2D(2, 1)(x), name="unet"))


def transformer(
    length: int = 128, width: int = 256, heads: int = 4, blocks: int = 4, vocabulary: int = 8000
) -> keras.Model:
    """A transformer encoder that predicts a token at each position."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return _compiled(keras.Model(inputs, layers.Dense(vocabulary)(layers.LayerNormalization()(x)), name="transformer"))


def mobilenet() -> keras.Model:
    return _compiled(keras.applications.MobileNet(weights=None, classifier_activation=None))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "resnet50": lambda: _compiled(resnet50()),
    "unet": unet,
    "mobilenet": mobilenet,
    "transformer": transformer,
}


def _compiled(model: keras.Model) -> keras.Model:
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model
