"""Classifiers of images after public examples: each mixes places and channels in another way."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, classes, compile_classifier, normal

_IMAGE = (48, 48, 3)
_NUM_CLASSES = 10
_WIDTH = 64


def _embed_patches(images: Any, patch: int = 4) -> Any:
    """Returns codes of the patches, [rows, places, width]."""
    grid = layers.Conv2D(_WIDTH, patch, strides=patch)(images)
    return layers.Reshape((grid.shape[1] * grid.shape[2], _WIDTH))(grid)


def _finish(images: Any, hidden: Any) -> keras.Model:
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(hidden))
    return compile_classifier(keras.Model(images, layers.Dense(_NUM_CLASSES)(layers.Dropout(0.2)(pooled))))


def _feed_forward(hidden: Any, factor: int = 2) -> Any:
    widened = layers.Dense(factor * hidden.shape[-1], activation="gelu")(layers.LayerNormalization()(hidden))
    return layers.Add()([hidden, layers.Dense(hidden.shape[-1])(layers.Dropout(0.1)(widened))])


def build_mlp_mixer() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = _embed_patches(images)
    for _ in range(4):
        places = layers.Permute((2, 1))(layers.LayerNormalization()(hidden))
        mixed = layers.Dense(hidden.shape[1])(layers.Dense(128, activation="gelu")(places))
        hidden = _feed_forward(layers.Add()([hidden, layers.Permute((2, 1))(mixed)]))
    return _finish(images, hidden)


class FourierMixing(layers.Layer):
    """Takes the real part of a Fourier transform over places and channels."""

    def call(self, inputs: Any) -> Any:
        return ops.fft2((inputs, ops.zeros_like(inputs)))[0]


def build_fnet() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = _embed_patches(images)
    for _ in range(4):
        hidden = layers.LayerNormalization()(layers.Add()([hidden, FourierMixing()(hidden)]))
        hidden = _feed_forward(hidden)
    return _finish(images, hidden)


class SpatialGate(layers.Layer):
    """Multiplies one half of the channels by a mixture over places of the other half."""

    def build(self, shape: Any) -> None:
        self.norm = layers.LayerNormalization()
        self.norm.build((*shape[:-1], shape[-1] // 2))
        self.mixture = self.add_weight(shape=(shape[1], shape[1]), initializer="random_normal")
        self.bias = self.add_weight(shape=(shape[1], 1), initializer="ones")

    def call(self, inputs: Any) -> Any:
        kept, gate = ops.split(inputs, 2, axis=-1)
        return kept * (ops.einsum("pq,nqc->npc", self.mixture, self.norm(gate)) + self.bias)


def build_gmlp() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = _embed_patches(images)
    for _ in range(4):
        widened = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden = layers.Add()([hidden, layers.Dense(_WIDTH)(SpatialGate()(widened))])
    return _finish(images, hidden)


class WindowAttention(layers.Layer):
    """Attends within square windows, which every second layer shifts; places from across the edge are masked."""

    def __init__(self, size: int, window: int, shift: int) -> None:
        super().__init__()
        self.size, self.window, self.shift = size, window, shift
        self.attention = layers.MultiHeadAttention(4, _WIDTH // 4, dropout=0.1)
        regions = np.zeros((size, size), "int32")
        for axis in (0, 1):
            last = np.arange(size) >= size - shift
            regions = 2 * regions + (last[:, None] if axis == 0 else last[None, :])
        parts = regions.reshape(size // window, window, size // window, window).transpose(0, 2, 1, 3)
        parts = parts.reshape(-1, window**2)
        self.mask = parts[:, :, None] == parts[:, None, :]

    def build(self, shape: Any) -> None:
        self.attention.build((None, self.window**2, shape[-1]), (None, self.window**2, shape[-1]))

    def call(self, inputs: Any, training: bool = False) -> Any:
        rows, side, number = ops.shape(inputs)[0], self.window, self.size // self.window
        grid = ops.reshape(inputs, (rows, self.size, self.size, inputs.shape[-1]))
        grid = ops.roll(grid, (-self.shift, -self.shift), axis=(1, 2))
        windows = ops.reshape(grid, (rows, number, side, number, side, inputs.shape[-1]))
        windows = ops.reshape(ops.transpose(windows, (0, 1, 3, 2, 4, 5)), (-1, side**2, inputs.shape[-1]))
        mask = ops.tile(ops.convert_to_tensor(self.mask), (rows, 1, 1))
        windows = self.attention(windows, windows, attention_mask=mask, training=training)
        grid = ops.transpose(
            ops.reshape(windows, (rows, number, number, side, side, inputs.shape[-1])), (0, 1, 3, 2, 4, 5)
        )
        grid = ops.reshape(grid, (rows, self.size, self.size, inputs.shape[-1]))
        return ops.reshape(ops.roll(grid, (self.shift, self.shift), axis=(1, 2)), ops.shape(inputs))


def build_swin() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = _embed_patches(images)
    for shift in (0, 2, 0, 2):
        attended = WindowAttention(12, 4, shift)(layers.LayerNormalization(epsilon=1e-5)(hidden))
        hidden = _feed_forward(layers.Add()([hidden, attended]))
    return _finish(images, hidden)


class Latents(layers.Layer):
    """Repeats a learned array for each row."""

    def build(self, shape: Any) -> None:
        self.latents = self.add_weight(shape=(1, 32, _WIDTH), initializer="random_normal")

    def call(self, inputs: Any) -> Any:
        return ops.repeat(self.latents, ops.shape(inputs)[0], axis=0)


def build_perceiver() -> keras.Model:
    images = keras.Input((64, 64, 3))
    places = _embed_patches(images, patch=2)
    hidden = Latents()(places)
    cross, within = layers.MultiHeadAttention(4, 16), [layers.MultiHeadAttention(4, 16) for _ in range(2)]
    for _ in range(3):  # the same weights each time
        hidden = layers.Add()([hidden, cross(layers.LayerNormalization()(hidden), layers.LayerNormalization()(places))])
        for attention in within:
            normed = layers.LayerNormalization()(hidden)
            hidden = layers.Add()([hidden, attention(normed, normed)])
        hidden = _feed_forward(hidden)
    return _finish(images, hidden)


class Involution(layers.Layer):
    """Weighs the neighbours of a place by a kernel that is made from the place itself."""

    def __init__(self, groups: int, kernel: int) -> None:
        super().__init__()
        self.groups, self.kernel = groups, kernel

    def build(self, shape: Any) -> None:
        self.made = keras.Sequential(
            [
                layers.Conv2D(shape[-1] // 2, 1),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(self.kernel**2 * self.groups, 1),
            ]
        )
        self.made.build(shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        _, height, width, channels = inputs.shape
        kernels = self.made(inputs, training=training)
        kernels = ops.reshape(kernels, (-1, height, width, self.kernel**2, 1, self.groups))
        near = tf.image.extract_patches(inputs, [1, self.kernel, self.kernel, 1], [1] * 4, [1] * 4, "SAME")
        near = ops.reshape(near, (-1, height, width, self.kernel**2, channels // self.groups, self.groups))
        return ops.reshape(ops.sum(near * kernels, axis=3), (-1, height, width, channels))


def build_involution() -> keras.Model:
    images = keras.Input((32, 32, 3))
    hidden = layers.Conv2D(16, 3, padding="same")(images)
    for _ in range(3):
        hidden = layers.ReLU()(Involution(2, 3)(hidden))
    hidden = layers.Flatten()(layers.MaxPooling2D(4)(hidden))
    return compile_classifier(keras.Model(images, layers.Dense(_NUM_CLASSES)(hidden)))


def build_conv_mixer() -> keras.Model:
    def activated(hidden: Any) -> Any:
        return layers.BatchNormalization()(layers.Activation("gelu")(hidden))

    images = keras.Input(_IMAGE)
    hidden = activated(layers.Conv2D(96, 3, strides=3)(images))
    for _ in range(5):
        mixed = activated(layers.DepthwiseConv2D(5, padding="same")(hidden))
        hidden = activated(layers.Conv2D(96, 1)(layers.Add()([hidden, mixed])))
    pooled = layers.GlobalAveragePooling2D()(hidden)
    return compile_classifier(keras.Model(images, layers.Dense(_NUM_CLASSES)(pooled)))


class ExternalAttention(layers.Layer):
    """Attends to a learned memory of keys and values, with shares normed twice."""

    def __init__(self, num_heads: int, num_keys: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.keys, self.values = layers.Dense(2 * _WIDTH), layers.Dense(num_keys), layers.Dense(32)
        self.joined = layers.Dense(_WIDTH)

    def build(self, shape: Any) -> None:
        self.query.build(shape)
        self.keys.build((None, None, None, 2 * _WIDTH // self.num_heads))
        self.values.build((None, None, None, self.keys.units))
        self.joined.build((None, None, 32 * self.num_heads))

    def call(self, inputs: Any) -> Any:
        places = inputs.shape[1]
        heads = ops.reshape(self.query(inputs), (-1, places, self.num_heads, 2 * _WIDTH // self.num_heads))
        shares = ops.softmax(self.keys(ops.transpose(heads, (0, 2, 1, 3))), axis=2)
        shares = shares / (1e-9 + ops.sum(shares, axis=-1, keepdims=True))
        read = ops.transpose(self.values(shares), (0, 2, 1, 3))
        return self.joined(ops.reshape(read, (-1, places, 32 * self.num_heads)))


def build_external_attention() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = _embed_patches(images)
    for _ in range(4):
        hidden = layers.Add()([hidden, ExternalAttention(8, 32)(layers.LayerNormalization()(hidden))])
        hidden = _feed_forward(hidden)
    return _finish(images, hidden)


class StochasticDepth(layers.Layer):
    """Leaves out a residual branch for some rows, by chance."""

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share, self.seeds = share, keras.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        kept = keras.random.uniform((ops.shape(inputs)[0], 1, 1), seed=self.seeds) >= self.share
        return inputs * ops.cast(kept, inputs.dtype) / (1 - self.share)


def build_compact_transformer() -> keras.Model:
    images = hidden = keras.Input(_IMAGE)
    for filters in (32, _WIDTH):
        hidden = layers.Conv2D(filters, 3, padding="same", use_bias=False, activation="relu")(hidden)
        hidden = layers.MaxPooling2D(3, 2, padding="same")(hidden)
    hidden = layers.Reshape((hidden.shape[1] * hidden.shape[2], _WIDTH))(hidden)
    for number in range(2):
        normed = layers.LayerNormalization(epsilon=1e-5)(hidden)
        attended = layers.MultiHeadAttention(2, 32, dropout=0.1)(normed, normed)
        hidden = layers.Add()([hidden, StochasticDepth(0.1 * number, number)(attended)])
        hidden = _feed_forward(hidden)
    normed = layers.LayerNormalization(epsilon=1e-5)(hidden)
    shares = layers.Softmax(axis=1)(layers.Dense(1)(normed))
    pooled = layers.Flatten()(layers.Dot(axes=1)([shares, normed]))
    model = keras.Model(images, layers.Dense(_NUM_CLASSES)(pooled))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), loss, metrics=["accuracy"])
    return model


def _images(random: np.random.Generator, rows: int, shape: tuple[int, ...] = _IMAGE) -> Arrays:
    return normal(random, rows, *shape), classes(random, _NUM_CLASSES, rows)


def _large(random: np.random.Generator, rows: int) -> Arrays:
    return _images(random, rows, (64, 64, 3))


def _small(random: np.random.Generator, rows: int) -> Arrays:
    return _images(random, rows, (32, 32, 3))


def _one_hot(random: np.random.Generator, rows: int) -> Arrays:
    x, y = _images(random, rows)
    return x, np.eye(_NUM_CLASSES, dtype="float32")[y]


_MIXING = "keras.io/examples/vision/mlp_image_classification"
MODELS = (
    WildModel(
        "mlp_mixer", "dense layers over transposed places", build_mlp_mixer, _images, 24, "batch_size", after=_MIXING
    ),
    WildModel("fnet", "Fourier transforms, complex numbers", build_fnet, _images, 24, after=_MIXING),
    WildModel("gmlp", "a dense layer's halves gate each other", build_gmlp, _images, 16, "batch_size", after=_MIXING),
    WildModel(
        "swin",
        "shifted windows with masks",
        build_swin,
        _images,
        16,
        after="keras.io/examples/vision/swin_transformers",
    ),
    WildModel(
        "perceiver",
        "few learned places attend to many; weights used three times",
        build_perceiver,
        _large,
        8,
        after="keras.io/examples/vision/perceiver_image_classification",
    ),
    WildModel(
        "involution",
        "kernels made from each place, six dimensions",
        build_involution,
        _small,
        32,
        after="keras.io/examples/vision/involution",
    ),
    WildModel(
        "conv_mixer",
        "depthwise and pointwise convolutions",
        build_conv_mixer,
        _images,
        24,
        "batch_size",
        after="keras.io/examples/vision/convmixer",
    ),
    WildModel(
        "external_attention",
        "attention to a learned memory, shares normed twice",
        build_external_attention,
        _images,
        16,
        after="keras.io/examples/vision/eanet",
    ),
    WildModel(
        "compact_transformer",
        "branches left out by chance, label smoothing, AdamW",
        build_compact_transformer,
        _one_hot,
        16,
        after="keras.io/examples/vision/cct",
    ),
)
