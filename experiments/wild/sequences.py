"""Models of text, series and graphs."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, classes, normal

_NUM_WORDS = 500


def _compiled(model: keras.Model, rate: float = 0.01) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


def build_padded_text() -> keras.Model:
    words = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(_NUM_WORDS, 64)(words)
    for _ in range(4):
        hidden = layers.Conv1D(64, 5, padding="same", activation="relu")(hidden)
        hidden = layers.LayerNormalization()(hidden)
    return _compiled(keras.Model(words, layers.Dense(4)(layers.GlobalMaxPooling1D()(hidden))))


def _texts(random: np.random.Generator, rows: int) -> Arrays:
    """Texts of 128, 192 or 256 words; 0 stands where a text has ended."""
    words = 1 + classes(random, _NUM_WORDS - 1, rows, 256)
    lengths = 64 * random.integers(2, 5, size=(rows, 1))
    return np.where(np.arange(256) < lengths, words, 0), classes(random, 4, rows)


def _padded(arrays: Arrays, batch_size: int) -> tf.data.Dataset:
    """Batches of texts of like length, each padded to the longest of its own, the batches in random order."""
    words, labels = arrays
    by_length = np.argsort((words > 0).sum(axis=1), kind="stable")
    rows = tf.data.Dataset.from_tensor_slices((words[by_length], labels[by_length]))
    batches = rows.map(lambda text, label: (tf.boolean_mask(text, text > 0), label)).padded_batch(batch_size)
    return batches.shuffle(16, seed=0, reshuffle_each_iteration=False)


def build_time_series() -> keras.Model:
    series = hidden = keras.Input((256, 1))
    for _ in range(3):
        attended = layers.MultiHeadAttention(4, 32, dropout=0.1)(hidden, hidden)
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(0.1)(attended)]))
        mixed = layers.Conv1D(hidden.shape[-1], 1)(layers.Conv1D(16, 1, activation="relu")(hidden))
        hidden = layers.LayerNormalization()(layers.Add()([hidden, mixed]))
    pooled = layers.GlobalAveragePooling1D(data_format="channels_first")(hidden)
    return _compiled(keras.Model(series, layers.Dense(2)(layers.Dense(64, activation="relu")(pooled))))


def _series(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 256, 1), classes(random, 2, rows)


def build_seq2seq() -> keras.Model:
    given, before = keras.Input((16, 32)), keras.Input((16, 32))
    read = layers.LSTM(256, return_sequences=True)(given)
    _, *state = layers.LSTM(256, return_state=True)(read)
    written = layers.LSTM(256, return_sequences=True)(before, initial_state=state)
    model = keras.Model([given, before], layers.Dense(64)(written))
    return _compiled(model, rate=0.1)


def _pairs(random: np.random.Generator, rows: int) -> Arrays:
    return (normal(random, rows, 16, 32), normal(random, rows, 16, 32)), classes(random, 64, rows, 16)


class WordsAndPositions(layers.Layer):
    """The sum of what a word and its position are coded by."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.words, self.positions = layers.Embedding(_NUM_WORDS, width), layers.Embedding(length, width)

    def build(self, shape: Any) -> None:
        self.words.build(shape)
        self.positions.build((shape[1],))

    def call(self, words: Any) -> Any:
        return self.words(words) + self.positions(ops.arange(ops.shape(words)[1]))


def _feed_forward(hidden: Any, width: int) -> Any:
    widened = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(hidden))
    return layers.Add()([hidden, layers.Dropout(0.1)(layers.Dense(width)(widened))])


def build_decoder() -> keras.Model:
    words = keras.Input((128,), dtype="int32")
    hidden = WordsAndPositions(128, 96)(words)
    for _ in range(3):
        normed = layers.LayerNormalization()(hidden)
        attended = layers.MultiHeadAttention(6, 16)(normed, normed, use_causal_mask=True)
        hidden = _feed_forward(layers.Add()([hidden, attended]), 96)
    return _compiled(keras.Model(words, layers.Dense(_NUM_WORDS)(layers.LayerNormalization()(hidden))))


def _next_words(random: np.random.Generator, rows: int) -> Arrays:
    words = classes(random, _NUM_WORDS, rows, 129)
    return words[:, :-1], words[:, 1:]


class RelativeAttention(layers.Layer):
    """Attention whose scores tell contents from distances: each word weighs how far the other one is."""

    def __init__(self, num_heads: int, reach: int) -> None:
        super().__init__()
        self.num_heads, self.reach = num_heads, reach

    def build(self, shape: Any) -> None:
        length, width = shape[1], shape[2]
        head = width // self.num_heads
        self.query, self.key, self.value = (
            layers.EinsumDense("nlw,whd->nhld", (self.num_heads, length, head)) for _ in range(3)
        )
        self.joined = layers.EinsumDense("nhld,hdw->nlw", (length, width))
        for part in (self.query, self.key, self.value):
            part.build(shape)
        self.joined.build((None, self.num_heads, length, head))
        self.distances = self.add_weight(shape=(self.num_heads, 2 * self.reach, head), initializer="glorot_uniform")
        steps = np.arange(length)
        index = np.clip(steps[:, None] - steps[None, :] + self.reach, 0, 2 * self.reach - 1)
        self.index, self.scale = index.astype("int32")[None, None], (3 * head) ** -0.5

    def call(self, inputs: Any) -> Any:
        query, key, value = self.query(inputs), self.key(inputs), self.value(inputs)
        contents = ops.einsum("nhqd,nhkd->nhqk", query, key)
        from_query = ops.einsum("nhqd,hrd->nhqr", query, self.distances)
        from_key = ops.einsum("nhkd,hrd->nhkr", key, self.distances)
        here = ops.take_along_axis(from_query, self.index, axis=-1)
        there = ops.swapaxes(ops.take_along_axis(from_key, self.index, axis=-1), -1, -2)
        shares = ops.softmax(self.scale * (contents + here + there))
        return self.joined(ops.einsum("nhqk,nhkd->nhqd", shares, value))


def build_relative_attention() -> keras.Model:
    words = keras.Input((128,), dtype="int32")
    hidden = layers.Embedding(_NUM_WORDS, 64)(words)
    for _ in range(3):
        hidden = layers.Add()([hidden, RelativeAttention(4, 32)(layers.LayerNormalization()(hidden))])
        hidden = _feed_forward(hidden, 64)
    return _compiled(keras.Model(words, layers.Dense(4)(layers.LayerNormalization()(hidden)[:, 0])))


def _short_texts(random: np.random.Generator, rows: int) -> Arrays:
    return classes(random, _NUM_WORDS, rows, 128), classes(random, 4, rows)


class Stream(layers.Layer):
    """What one of two token streams does before and after the attention that both share."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head = num_heads, width // num_heads
        self.norms = [layers.LayerNormalization(center=False, scale=False) for _ in range(2)]
        self.modulation = layers.Dense(6 * width, kernel_initializer=keras.initializers.RandomNormal(stddev=0.02))
        self.projected, self.joined = layers.Dense(3 * width), layers.Dense(width)
        self.widened, self.narrowed = layers.Dense(4 * width, activation="gelu"), layers.Dense(width)

    def build(self, tokens_shape: Any, condition_shape: Any) -> None:
        width = tokens_shape[-1]
        self.modulation.build(condition_shape)
        for layer in (*self.norms, self.projected, self.joined, self.widened):
            layer.build(tokens_shape)
        self.narrowed.build((*tokens_shape[:-1], 4 * width))

    def modulations(self, condition: Any) -> list[Any]:
        """Shift, scale and gate of the attention, then of the layers after it, each [rows, 1, width]."""
        return ops.split(self.modulation(ops.silu(condition))[:, None], 6, axis=-1)

    def heads(self, tokens: Any, shift: Any, scale: Any) -> list[Any]:
        """Queries, keys and values, each [rows, tokens, heads, head]."""
        projected = self.projected(self.norms[0](tokens) * (1 + scale) + shift)
        return [
            ops.reshape(part, (-1, tokens.shape[1], self.num_heads, self.head))
            for part in ops.split(projected, 3, axis=-1)
        ]

    def finished(self, tokens: Any, attended: Any, modulations: list[Any]) -> Any:
        """The tokens after the attention's result and the layers of the stream are added."""
        _, _, gate, shift, scale, last_gate = modulations
        tokens = tokens + gate * self.joined(ops.reshape(attended, ops.shape(tokens)))
        widened = self.widened(self.norms[1](tokens) * (1 + scale) + shift)
        return tokens + last_gate * self.narrowed(widened)


class TwoStreamBlock(layers.Layer):
    """Two streams of tokens, each with its own weights, attend to both; a condition modulates them."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.streams = [Stream(width, num_heads) for _ in range(2)]

    def build(self, one_shape: Any, other_shape: Any, condition_shape: Any) -> None:
        for stream, shape in zip(self.streams, (one_shape, other_shape), strict=True):
            stream.build(shape, condition_shape)

    def call(self, one: Any, other: Any, condition: Any) -> tuple[Any, Any]:
        both = (one, other)
        modulations = [stream.modulations(condition) for stream in self.streams]
        heads = [
            stream.heads(tokens, *modulation[:2])
            for stream, tokens, modulation in zip(self.streams, both, modulations, strict=True)
        ]
        query, key, value = (ops.concatenate(parts, axis=1) for parts in zip(*heads, strict=True))
        attended = ops.split(ops.dot_product_attention(query, key, value), [one.shape[1]], axis=1)
        first, second = (
            stream.finished(tokens, part, modulation)
            for stream, tokens, part, modulation in zip(self.streams, both, attended, modulations, strict=True)
        )
        return first, second


def build_two_streams() -> keras.Model:
    inputs = {
        "latent": keras.Input((16, 16, 8), name="latent"),
        "context": keras.Input((64, 32), name="context"),
        "time": keras.Input((1,), name="time"),
    }
    image = layers.Dense(96)(layers.Reshape((256, 8))(inputs["latent"]))
    text = layers.Dense(96)(inputs["context"])
    condition = layers.Dense(96)(layers.Dense(96, activation="silu")(inputs["time"]))
    for _ in range(2):
        image, text = TwoStreamBlock(96, 4)(image, text, condition)
    model = keras.Model(inputs, layers.Reshape((16, 16, 8))(layers.Dense(8)(image)))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def _latents(random: np.random.Generator, rows: int) -> Arrays:
    x = {
        "latent": normal(random, rows, 16, 16, 8),
        "context": normal(random, rows, 64, 32),
        "time": random.random((rows, 1), dtype="float32"),
    }
    return x, normal(random, rows, 16, 16, 8)


class GraphAttention(layers.Layer):
    """Each node takes in its neighbours, by shares that sum to 1 over the edges that end in it."""

    def __init__(self, num_heads: int, head: int) -> None:
        super().__init__()
        self.num_heads, self.head = num_heads, head

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.num_heads, self.head), initializer="glorot_uniform")
        self.score = self.add_weight(shape=(self.num_heads, 2 * self.head), initializer="glorot_uniform")

    def call(self, nodes: Any, sources: Any, targets: Any) -> Any:
        states = ops.einsum("nw,whd->nhd", nodes, self.kernel)
        of_sources, of_targets = tf.gather(states, sources), tf.gather(states, targets)
        joined = ops.concatenate([of_targets, of_sources], axis=-1)
        scores = ops.exp(ops.clip(ops.sum(ops.leaky_relu(joined) * self.score, axis=-1), -4, 4))
        totals = tf.gather(ops.segment_sum(scores, targets, num_segments=nodes.shape[0]), targets)
        sent = of_sources * (scores / totals)[..., None]
        taken_in = ops.segment_sum(sent, targets, num_segments=nodes.shape[0])
        return ops.reshape(taken_in, (nodes.shape[0], self.num_heads * self.head))


class GraphClassifier(keras.Model):
    """Classes of some nodes of one graph, which the model holds: a batch is of node indices."""

    num_nodes, num_edges, num_features = 2_000, 10_000, 32

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        self.features = tf.constant(normal(random, self.num_nodes, self.num_features))
        edges = random.integers(self.num_nodes, size=(2, self.num_edges), dtype="int32")
        self.sources, self.targets = tf.constant(edges[0]), tf.constant(np.sort(edges[1]))
        self.attention = [GraphAttention(4, 16) for _ in range(3)]
        self.last = layers.Dense(5)

    def build(self, shape: Any) -> None:
        self.call(tf.zeros((1,), "int32"))
        self.built = True

    def call(self, indices: Any) -> Any:
        nodes = self.features
        for attention in self.attention:
            nodes = ops.elu(attention(nodes, self.sources, self.targets))
        return tf.gather(self.last(nodes), indices)


def build_graph_attention() -> keras.Model:
    model = GraphClassifier()
    model.build((None,))
    return _compiled(model)


def _node_indices(random: np.random.Generator, rows: int) -> Arrays:
    return classes(random, GraphClassifier.num_nodes, rows), classes(random, 5, rows)


def build_hub_text(num_layers: int = 3) -> keras.Model:
    import keras_hub

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_VOCABULARY]
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(vocabulary=words), sequence_length=128
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(words),
        num_layers=num_layers,
        num_heads=4,
        hidden_dim=96,
        intermediate_dim=384,
        max_sequence_length=128,
    )
    model = keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=3, preprocessor=preprocessor)
    return _compiled(model)


_VOCABULARY = ("we", "saw", "one", "small", "boat", "far", "out", "on", "calm", "green", "water", "and", "it", "went")


def _sentences(random: np.random.Generator, rows: int) -> Arrays:
    texts = [" ".join(random.choice(_VOCABULARY, size=size)) for size in random.integers(60, 120, size=rows)]
    return np.array(texts), classes(random, 3, rows)


MODELS = (
    WildModel(
        "padded_text", "texts padded to the longest of each batch", build_padded_text, _texts, 48, dataset=_padded
    ),
    WildModel("time_series", "attention over a series", build_time_series, _series, 8, "batch_size"),
    WildModel("seq2seq", "loops: an LSTM writes from what others read", build_seq2seq, _pairs, 256),
    WildModel("decoder", "causal attention, logits of each word", build_decoder, _next_words, 12, "batch_size"),
    WildModel("relative_attention", "scores gathered by distance", build_relative_attention, _short_texts, 12),
    WildModel("two_streams", "joint attention of two modulated streams", build_two_streams, _latents, 6, "batch_size"),
    WildModel(
        "graph_attention", "gather and segment_sum over a graph's edges", build_graph_attention, _node_indices, 512
    ),
    WildModel(
        "hub_text",
        "strings, which KerasHub's preprocessor splits in fit",
        build_hub_text,
        _sentences,
        8,
        needs="keras_hub",
    ),
)
