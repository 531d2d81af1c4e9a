"""The networks of the FastSA paper (appendix D.5, Tables 3 to 5), as training graphs at op level.

Those of keras.applications and KerasHub are taken from there; the others are built here in the sizes of the model that
the paper names. Batches and lengths are the paper's: 512 images of 224 x 224, 128 texts of 512 tokens, 8 of 2,048
(GPT2: 1,024) for language models, each with a head that classifies. Weights are never written, so even 7 billion
parameters take no memory. Costs are floating-point operations. GPT-Neo has GPT2's blocks here: its windows of attention
change no shape.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

# TensorFlow reads it once; by default, it allocates no more than the machine's memory, used or not.
os.environ.setdefault("TF_MKL_ALLOC_MAX_BYTES", str(1 << 40))

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from checkmate_tf.graph import Graph
from checkmate_tf.profiling.costs import FlopsCosts
from experiments.op_graphs import op_graph, resnet

IMAGES, TEXTS, LONG_TEXTS = 512, 128, 8
TEXT_LENGTH, LONG_LENGTH = 512, 2048


@dataclass(frozen=True)
class Network:
    """A network of the paper, the model that it names, and the batch size."""

    full_name: str
    batch_size: int
    make: Callable[[], keras.Model]


def network_graph(name: str) -> Graph:
    """The graph of one training step of a network of NETWORKS."""
    network = NETWORKS[name]
    keras.utils.clear_session()
    with unwritten_weights():
        return op_graph(network.make(), batch_size=network.batch_size, name=name, costs=FlopsCosts())


@contextmanager
def unwritten_weights() -> Iterator[None]:
    """Leaves new variables of Keras unwritten, so that the operating system provides no memory for them."""

    def reserve(self: Any, initializer: Any) -> None:
        self._initialize(tf.raw_ops.Empty(shape=tuple(self._shape), dtype=self._dtype))

    with mock.patch.object(keras.Variable, "_initialize_with_initializer", reserve):
        yield


class _Tokens(layers.Layer):
    """Puts a class token before the patches, and adds positions."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="zeros", name="token")
        self.positions = self.add_weight(shape=(1, shape[1] + 1, shape[-1]), name="positions")

    def call(self, x: Any) -> Any:
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1) + self.positions


class _Scale(layers.Layer):
    """Multiplies each channel by a weight (LayerScale)."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.weight = self.add_weight(shape=(shape[-1],), name="weight")

    def call(self, x: Any) -> Any:
        return x * self.weight


class _ResponseNorm(layers.Layer):
    """Normalizes channels by each other (ConvNeXt V2's GRN)."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="zeros", name="scale")
        self.offset = self.add_weight(shape=(shape[-1],), initializer="zeros", name="offset")

    def call(self, x: Any) -> Any:
        norm = ops.sqrt(ops.sum(ops.square(x), axis=(1, 2), keepdims=True))
        return self.scale * (x * (norm / (ops.mean(norm, axis=-1, keepdims=True) + 1e-6))) + self.offset + x


class _Attention(layers.Layer):
    """Attention among tokens, with a bias by position (BEiT, CoAtNet) or rotated queries and keys (EVA-02), or among
    channels (XCiT)."""

    def __init__(self, num_heads: int, *, biased: bool = False, rotary: bool = False, channels: bool = False) -> None:
        super().__init__()
        self.num_heads, self.biased, self.rotary, self.channels = num_heads, biased, rotary, channels

    def build(self, shape: tuple[int, ...]) -> None:
        _, length, width = shape
        self.qkv, self.project = layers.Dense(3 * width), layers.Dense(width)
        self.qkv.build(shape)
        self.project.build(shape)
        if self.biased:
            self.places = _relative_places(length)
            self.biases = self.add_weight(shape=(self.num_heads, int(self.places.max()) + 1), name="biases")
        if self.rotary:
            angles = (length, width // self.num_heads)
            self.cosine = self.add_weight(shape=angles, trainable=False, name="cosine")
            self.sine = self.add_weight(shape=angles, trainable=False, name="sine")
        if self.channels:
            self.temperature = self.add_weight(shape=(self.num_heads, 1, 1), initializer="ones", name="temperature")

    def call(self, x: Any) -> Any:
        _, length, width = x.shape
        split = ops.reshape(self.qkv(x), (-1, length, 3, self.num_heads, width // self.num_heads))
        q, k, v = ops.unstack(ops.transpose(split, (2, 0, 3, 1, 4)), axis=0)
        if self.channels:
            q, k = (ops.normalize(ops.swapaxes(part, -1, -2)) for part in (q, k))
            weights = ops.softmax(ops.matmul(q, ops.swapaxes(k, -1, -2)) * self.temperature)
            mixed = ops.swapaxes(ops.matmul(weights, ops.swapaxes(v, -1, -2)), -1, -2)
        else:
            if self.rotary:
                q, k = self._rotated(q), self._rotated(k)
            scores = ops.matmul(q * (width // self.num_heads) ** -0.5, ops.swapaxes(k, -1, -2))
            scores = scores + ops.take(self.biases, self.places, axis=1) if self.biased else scores
            mixed = ops.matmul(ops.softmax(scores), v)
        return self.project(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, length, width)))

    def _rotated(self, x: Any) -> Any:
        first, second = ops.split(x, 2, axis=-1)
        return x * self.cosine + ops.concatenate([-second, first], axis=-1) * self.sine


def _relative_places(length: int) -> np.ndarray:
    """Where two patches of a square image lie to each other, as an index, int [length, length]; a class token, where
    there is one, comes first and has places of its own."""
    side = math.isqrt(length)
    rows, columns = np.divmod(np.arange(side * side), side)
    down, right = rows[:, None] - rows + side - 1, columns[:, None] - columns + side - 1
    places = down * (2 * side - 1) + right
    if length == side * side:
        return places
    last = int(places.max())
    places = np.pad(places, ((1, 0), (1, 0)))
    places[0], places[:, 0], places[0, 0] = last + 1, last + 2, last + 3
    return places


def _norm(x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-6)(x)


def _mlp(x: Any, width: int) -> Any:
    return layers.Dense(x.shape[-1])(layers.Dense(width, "gelu")(x))


def _gated_mlp(x: Any, width: int) -> Any:
    """SwiGLU with a normalization inside, as in EVA-02."""
    gated = layers.Multiply()([layers.Dense(width, "silu")(x), layers.Dense(width)(x)])
    return layers.Dense(x.shape[-1])(_norm(gated))


def image_transformer(
    width: int,
    num_heads: int,
    num_blocks: int = 12,
    *,
    patch: int = 16,
    scaled: bool = False,
    biased: bool = False,
    rotary: bool = False,
) -> keras.Model:
    """ViT; with `scaled` DeiT III, with `biased` too BEiT, and with `rotary` EVA-02, whose MLP is gated."""
    inputs = keras.Input((224, 224, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = _Tokens()(layers.Reshape((-1, width))(x))

    def added(x: Any, branch: Any) -> Any:
        return layers.Add()([x, _Scale()(branch) if scaled else branch])

    for _ in range(num_blocks):
        x = added(x, _Attention(num_heads, biased=biased, rotary=rotary)(_norm(x)))
        x = added(x, _gated_mlp(_norm(x), width * 8 // 3) if rotary else _mlp(_norm(x), 4 * width))
    return keras.Model(inputs, layers.Dense(1000)(_norm(x)[:, 0]))


def xcit(width: int = 192, num_heads: int = 4, num_blocks: int = 12) -> keras.Model:
    """XCiT: attention among channels, convolutions among patches, and two blocks for the class at the end."""
    inputs = x = keras.Input((224, 224, 3))
    for filters in (width // 8, width // 4, width // 2, width):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("gelu")(x) if filters < width else x
    x = layers.Reshape((196, width))(x)
    for _ in range(num_blocks):
        x = layers.Add()([x, _Scale()(_Attention(num_heads, channels=True)(_norm(x)))])
        local = layers.Reshape((14, 14, width))(_norm(x))
        local = layers.Activation("gelu")(layers.DepthwiseConv2D(3, padding="same")(local))
        local = layers.DepthwiseConv2D(3, padding="same")(layers.BatchNormalization()(local))
        x = layers.Add()([x, _Scale()(layers.Reshape((196, width))(local))])
        x = layers.Add()([x, _Scale()(_mlp(_norm(x), 4 * width))])
    x = _Tokens()(x)
    for _ in range(2):
        normalized = _norm(x)
        token = layers.MultiHeadAttention(num_heads, width // num_heads)(normalized[:, :1], normalized)
        x = layers.Concatenate(axis=1)([layers.Add()([x[:, :1], _Scale()(token)]), x[:, 1:]])
        token = layers.Add()([x[:, :1], _Scale()(_mlp(_norm(x[:, :1]), 4 * width))])
        x = layers.Concatenate(axis=1)([token, x[:, 1:]])
    return keras.Model(inputs, layers.Dense(1000)(_norm(x)[:, 0]))


def coatnet(depths: tuple[int, ...] = (2, 6, 14, 2), widths: tuple[int, ...] = (128, 256, 512, 1024)) -> keras.Model:
    """CoAtNet: two stages of inverted bottlenecks, two of transformer blocks with biased attention."""
    inputs = keras.Input((224, 224, 3))
    x = layers.Conv2D(widths[0] // 2, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.Activation("gelu")(layers.BatchNormalization()(x))
    x = layers.Conv2D(widths[0] // 2, 3, padding="same")(x)
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        block = _bottleneck if stage < 2 else _pooled_attention
        for index in range(depth):
            x = block(x, width, strides=1 if index else 2)
    return keras.Model(inputs, layers.Dense(1000)(layers.GlobalAveragePooling2D()(layers.LayerNormalization()(x))))


def _shortcut(x: Any, width: int, strides: int) -> Any:
    return x if strides == 1 else layers.Conv2D(width, 1)(layers.AveragePooling2D(2, padding="same")(x))


def _bottleneck(x: Any, width: int, strides: int) -> Any:
    def activated(y: Any) -> Any:
        return layers.Activation("gelu")(layers.BatchNormalization()(y))

    y = layers.BatchNormalization()(x)
    y = activated(layers.Conv2D(4 * width, 1, strides=strides, use_bias=False)(y))
    y = activated(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y))
    gate = layers.Dense(width // 4, "gelu")(layers.GlobalAveragePooling2D(keepdims=True)(y))
    y = layers.Multiply()([y, layers.Dense(4 * width, "sigmoid")(gate)])
    return layers.Add()([_shortcut(x, width, strides), layers.Conv2D(width, 1)(y)])


def _pooled_attention(x: Any, width: int, strides: int) -> Any:
    y = _norm(x)
    y = layers.Conv2D(width, 1)(layers.AveragePooling2D(2, padding="same")(y)) if strides > 1 else y
    size = y.shape[1]
    y = _Attention(width // 32, biased=True)(layers.Reshape((size * size, width))(y))
    x = layers.Add()([_shortcut(x, width, strides), layers.Reshape((size, size, width))(y)])
    return layers.Add()([x, _mlp(_norm(x), 4 * width)])


def convnext_v2(
    depths: tuple[int, ...] = (3, 3, 27, 3), widths: tuple[int, ...] = (192, 384, 768, 1536)
) -> keras.Model:
    """ConvNeXt V2: blocks of a depthwise convolution and an MLP with global response normalization."""
    inputs = x = keras.Input((224, 224, 3))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        x = layers.Conv2D(width, 2, strides=2)(_norm(x)) if stage else _norm(layers.Conv2D(width, 4, strides=4)(x))
        for _ in range(depth):
            y = _norm(layers.DepthwiseConv2D(7, padding="same")(x))
            y = _ResponseNorm()(layers.Dense(4 * width, "gelu")(y))
            x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(1000)(_norm(layers.GlobalAveragePooling2D()(x))))


def vgg11() -> keras.Model:
    """VGG with eight convolutions."""
    inputs = x = keras.Input((224, 224, 3))
    for filters in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if filters == "pool":
            x = layers.MaxPooling2D()(x)
        else:
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(x)
    for width in (4096, 4096):
        x = layers.Dense(width, "relu")(x)
    return keras.Model(inputs, layers.Dense(1000)(x), name="vgg11")


def _application(name: str) -> keras.Model:
    return getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3), classifier_activation=None)


def text_classifier(family: str, length: int, *, segments: bool = False, **sizes: Any) -> keras.Model:
    """A backbone of KerasHub, with a head for two classes on one token."""
    import keras_hub

    backbone = getattr(keras_hub.models, f"{family}Backbone")(**sizes)
    names = ("token_ids", "padding_mask", "segment_ids") if segments else ("token_ids", "padding_mask")
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name in names}
    encoded = backbone(inputs)
    tokens = encoded["sequence_output"] if isinstance(encoded, dict) else encoded
    model = keras.Model(inputs, layers.Dense(2)(tokens[:, 0]), name=family)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _bert(family: str, num_layers: int = 12, width: int = 768, num_heads: int = 12, **sizes: Any) -> keras.Model:
    vocabulary = {"vocab_size" if family == "Electra" else "vocabulary_size": 30_522}
    return text_classifier(
        family, TEXT_LENGTH, segments=family != "DistilBert", num_layers=num_layers, num_heads=num_heads,
        hidden_dim=width, intermediate_dim=4 * width, max_sequence_length=TEXT_LENGTH, **vocabulary | sizes,
    )  # fmt: skip


def _causal(
    family: str, num_layers: int, width: int, num_heads: int, *, length: int = LONG_LENGTH, **sizes: Any
) -> keras.Model:
    heads = {"num_heads": num_heads, "intermediate_dim": 4 * width}
    if family == "Llama":
        heads = {"num_query_heads": num_heads, "num_key_value_heads": num_heads, "intermediate_dim": 43 * width // 16}
    if family in ("GPT2", "OPT"):
        sizes["max_sequence_length"] = length
    return text_classifier(family, length, num_layers=num_layers, hidden_dim=width, **heads | sizes)


NETWORKS = {
    "convnext_tiny": Network("convnext_tiny", IMAGES, lambda: _application("ConvNeXtTiny")),
    "convnextv2_large": Network("convnextv2_large", IMAGES, convnext_v2),
    "eva02_large": Network(
        "eva02_large_patch14_224", IMAGES, lambda: image_transformer(1024, 16, 24, patch=14, rotary=True)
    ),
    "vit_large": Network("vit_large_patch16_224", IMAGES, lambda: image_transformer(1024, 16, 24)),
    "vit_small": Network("vit_small_patch16_224", IMAGES, lambda: image_transformer(384, 6)),
    "mobilenetv3_large": Network("mobilenetv3_large_100", IMAGES, lambda: _application("MobileNetV3Large")),
    "efficientnet_b0": Network("efficientnet_b0", IMAGES, lambda: _application("EfficientNetB0")),
    "deit3_base": Network("deit3_base_patch16_224", IMAGES, lambda: image_transformer(768, 12, scaled=True)),
    "xcit_tiny": Network("xcit_tiny_12_p16_224", IMAGES, xcit),
    "beit_base": Network("beit_base_patch16_224", IMAGES, lambda: image_transformer(768, 12, scaled=True, biased=True)),
    "coatnet_2": Network("coatnet_2_rw_224", IMAGES, coatnet),
    "vgg11": Network("vgg11", IMAGES, vgg11),
    "resnet18": Network("resnet18", IMAGES, lambda: resnet(18)),
    "albert_base": Network("albert-base-v2", TEXTS, lambda: _bert("Albert", embedding_dim=128, vocabulary_size=30_000)),
    "bert_base": Network("bert-base-uncased", TEXTS, lambda: _bert("Bert")),
    "distilbert": Network("distilbert-base-uncased", TEXTS, lambda: _bert("DistilBert", 6)),
    "electra_small": Network(
        "google/electra-small-discriminator", TEXTS, lambda: _bert("Electra", 12, 256, 4, embedding_dim=128)
    ),
    "gpt2": Network("gpt2", LONG_TEXTS, lambda: _causal("GPT2", 12, 768, 12, length=1024, vocabulary_size=50_257)),
    "gpt_neo_125m": Network(
        "EleutherAI/gpt-neo-125m", LONG_TEXTS, lambda: _causal("GPT2", 12, 768, 12, vocabulary_size=50_257)
    ),
    "gpt_neo_2.7b": Network(
        "EleutherAI/gpt-neo-2.7B", LONG_TEXTS, lambda: _causal("GPT2", 32, 2560, 20, vocabulary_size=50_257)
    ),
    "bloom_560m": Network(
        "bigscience/bloom-560m", LONG_TEXTS, lambda: _causal("Bloom", 24, 1024, 16, vocabulary_size=250_880)
    ),
    "bloom_3b": Network(
        "bigscience/bloom-3b", LONG_TEXTS, lambda: _causal("Bloom", 30, 2560, 32, vocabulary_size=250_880)
    ),
    "opt_350m": Network("facebook/opt-350m", LONG_TEXTS, lambda: _causal("OPT", 24, 1024, 16, vocabulary_size=50_272)),
    "opt_6.7b": Network(
        "facebook/opt-6.7b", LONG_TEXTS, lambda: _causal("OPT", 32, 4096, 32, vocabulary_size=50_272)
    ),
    "llama_7b": Network(
        "LLaMA 7B of the default configuration", LONG_TEXTS,
        lambda: _causal("Llama", 32, 4096, 32, vocabulary_size=32_000),
    ),
}  # fmt: skip
