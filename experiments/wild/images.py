"""Models of images and video under the stock training step."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, batched, classes, normal

_LOGITS_LOSS = keras.losses.SparseCategoricalCrossentropy


def _compiled(model: keras.Model, rate: float = 0.01) -> keras.Model:
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), _LOGITS_LOSS(from_logits=True), metrics=["accuracy"])
    return model


def build_grey_images() -> keras.Model:
    model = keras.Sequential([keras.Input((64, 64, 1))])
    for filters in (16, 16, 32, 32):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.BatchNormalization())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10))
    return _compiled(model)


def _grey(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 64, 64), classes(random, 10, rows)


class PatchTokens(layers.Layer):
    """Linear codes of the patches of an image, with learned positions."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        self.code = layers.Dense(width)

    def build(self, shape: Any) -> None:
        self.num_tokens = (shape[1] // self.patch) * (shape[2] // self.patch)
        self.code.build((None, self.num_tokens, self.patch**2 * shape[3]))
        self.positions = self.add_weight(shape=(self.num_tokens, self.width), initializer="random_normal")

    def call(self, images: Any) -> Any:
        patches = ops.image.extract_patches(images, self.patch)
        return self.code(ops.reshape(patches, (-1, self.num_tokens, patches.shape[-1]))) + self.positions


def build_vit() -> keras.Model:
    images = keras.Input((64, 64, 3))
    hidden = PatchTokens(4, 64)(images)
    for _ in range(3):
        normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
        hidden = layers.Add()([hidden, layers.MultiHeadAttention(4, 16, dropout=0.1)(normed, normed)])
        normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
        widened = layers.Dropout(0.1)(layers.Dense(128, activation="gelu")(normed))
        hidden = layers.Add()([hidden, layers.Dense(64)(widened)])
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(hidden))
    return _compiled(keras.Model(images, layers.Dense(10)(pooled)))


def _square(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 64, 64, 3), classes(random, 10, rows)


class LayerScale(layers.Layer):
    """Multiplies each channel by a learned number that is small at first."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(0.1))

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


class AttentionPooling(layers.Layer):
    """One vector an image: a learned query attends to all places."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(4, 16)

    def build(self, shape: Any) -> None:
        self.query = self.add_weight(shape=(1, 1, shape[-1]), initializer="random_normal")
        self.attention.build((None, 1, shape[-1]), (None, shape[1] * shape[2], shape[-1]))

    def call(self, inputs: Any) -> Any:
        rows, height, width, channels = ops.shape(inputs)
        places = ops.reshape(inputs, (rows, height * width, channels))
        return self.attention(ops.repeat(self.query, rows, axis=0), places)[:, 0]


def build_patch_convnet() -> keras.Model:
    images = keras.Input((64, 64, 3))
    hidden = layers.Conv2D(48, 4, strides=2, padding="same", activation="gelu")(images)
    for _ in range(3):
        branch = layers.Conv2D(48, 1, activation="gelu")(layers.LayerNormalization()(hidden))
        branch = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(branch)
        gates = layers.GlobalAveragePooling2D(keepdims=True)(branch)
        gates = layers.Conv2D(48, 1, activation="sigmoid")(layers.Conv2D(12, 1, activation="relu")(gates))
        branch = layers.Conv2D(48, 1)(layers.Multiply()([branch, gates]))
        hidden = layers.Add()([hidden, LayerScale()(branch)])
    return _compiled(keras.Model(images, layers.Dense(10)(AttentionPooling()(hidden))))


def build_video() -> keras.Model:
    frames = keras.Input((8, 40, 40, 3))
    hidden = layers.TimeDistributed(layers.Conv2D(16, 3, padding="same", activation="relu"))(frames)
    hidden = layers.TimeDistributed(layers.BatchNormalization())(hidden)
    for _ in range(3):
        hidden = layers.Conv3D(16, (1, 3, 3), padding="same")(hidden)
        hidden = layers.Conv3D(16, (3, 1, 1), padding="same", activation="relu")(hidden)
    hidden = layers.TimeDistributed(layers.GlobalAveragePooling2D())(hidden)
    return _compiled(keras.Model(frames, layers.Dense(5)(layers.Flatten()(hidden))))


def _frames(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 8, 40, 40, 3), classes(random, 5, rows)


def build_bfloat16() -> keras.Model:
    policy = "mixed_bfloat16"
    images = hidden = keras.Input((32, 32, 3))
    for filters in (32, 32, 64):
        for _ in range(2):
            hidden = layers.Conv2D(filters, 3, padding="same", dtype=policy)(hidden)
            hidden = layers.Activation("relu", dtype=policy)(layers.BatchNormalization(dtype=policy)(hidden))
        hidden = layers.MaxPooling2D(dtype=policy)(hidden)
    pooled = layers.GlobalAveragePooling2D(dtype=policy)(hidden)
    return _compiled(keras.Model(images, layers.Dense(10, dtype="float32")(pooled)))


def _small(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 32, 32, 3), classes(random, 10, rows)


def _unet_block(hidden: Any, filters: int) -> Any:
    for _ in range(2):
        hidden = layers.SeparableConv2D(filters, 3, padding="same")(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    return hidden


def build_unet() -> keras.Model:
    images = hidden = keras.Input((64, 64, 3))
    skipped = []
    for filters in (16, 32):
        hidden = _unet_block(hidden, filters)
        skipped.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    hidden = _unet_block(hidden, 64)
    for filters, skip in zip((32, 16), reversed(skipped), strict=True):
        hidden = layers.Concatenate()([layers.UpSampling2D()(hidden), skip])
        hidden = _unet_block(hidden, filters)
    return _compiled(keras.Model(images, layers.Conv2D(3, 1)(hidden)))


def _masks(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 64, 64, 3), classes(random, 3, rows, 64, 64, 1)


def build_dict_inputs() -> keras.Model:
    image, table = keras.Input((48, 48, 3), name="image"), keras.Input((16,), name="table")
    hidden = image
    for _ in range(5):
        hidden = layers.Conv2D(24, 3, padding="same", activation="silu")(hidden)
    seen = layers.GlobalAveragePooling2D()(hidden)
    joined = layers.Concatenate()([seen, layers.Dense(32, activation="relu")(table)])
    outputs = {
        "kind": layers.Dense(6, name="kind")(joined),
        "depth": layers.Conv2D(1, 1, name="depth")(hidden),
    }
    model = keras.Model({"image": image, "table": table}, outputs)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        {"kind": _LOGITS_LOSS(from_logits=True), "depth": "mse"},
        loss_weights={"kind": 1.0, "depth": 0.5},
        weighted_metrics={"kind": ["accuracy"], "depth": ["mae"]},
    )
    return model


def _dicts(random: np.random.Generator, rows: int) -> Arrays:
    x = {"image": normal(random, rows, 48, 48, 3), "table": normal(random, rows, 16)}
    y = {"kind": classes(random, 6, rows), "depth": normal(random, rows, 48, 48, 1)}
    weights = {"kind": random.random(rows, dtype="float32"), "depth": random.random((rows, 48, 48), dtype="float32")}
    return x, y, weights


MODELS = (
    WildModel("grey_images", "images without the channel that the model's input has", build_grey_images, _grey, 16),
    WildModel("vit", "attention over patches of an image, dropout", build_vit, _square, 8, "batch_size"),
    WildModel(
        "patch_convnet",
        "residual branches, gates, pooling by attention",
        build_patch_convnet,
        _square,
        12,
        "batch_size",
    ),
    WildModel("video", "time-distributed layers and factorized 3D convolutions", build_video, _frames, 4, "batch_size"),
    WildModel("bfloat16", "mixed_bfloat16", build_bfloat16, _small, 64, dataset=batched),
    WildModel("unet", "skips across the network, a class for each pixel", build_unet, _masks, 12),
    WildModel("dict_inputs", "dicts of inputs, outputs and sample weights", build_dict_inputs, _dicts, 16),
)
