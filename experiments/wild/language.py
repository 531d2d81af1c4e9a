"""Models of text after public examples: masks, padding, several inputs, experts, memory."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, LearnedPositions, WildModel, classes, compile_classifier, normal

_NUM_WORDS = 600
_WIDTH = 64


class Words(layers.Layer):
    """Codes of words and positions; 0 pads and is masked."""

    def __init__(self, length: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.words = layers.Embedding(_NUM_WORDS, width, mask_zero=True)
        self.positions = layers.Embedding(length, width)

    def build(self, shape: Any) -> None:
        self.words.build(shape)
        self.positions.build((None,))

    def call(self, words: Any) -> Any:
        return self.words(words) + self.positions(ops.arange(ops.shape(words)[1]))

    def compute_mask(self, words: Any, mask: Any = None) -> Any:
        return self.words.compute_mask(words)


class Block(layers.Layer):
    """Attention, maybe to another text too, and dense layers; masks of padded words are Keras's own."""

    def __init__(self, *, causal: bool = False, reads_other: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.supports_masking, self.causal = True, causal
        self.attention = layers.MultiHeadAttention(4, _WIDTH // 4, dropout=dropout)
        self.other = layers.MultiHeadAttention(4, _WIDTH // 4) if reads_other else None
        self.dense = keras.Sequential([layers.Dense(4 * _WIDTH, activation="relu"), layers.Dense(_WIDTH)])
        self.norms = [layers.LayerNormalization() for _ in range(3 if reads_other else 2)]
        self.drop = layers.Dropout(dropout)

    def build(self, inputs_shape: Any, other_shape: Any = None) -> None:
        self.attention.build(inputs_shape, inputs_shape)
        if self.other is not None:
            self.other.build(inputs_shape, other_shape)
        self.dense.build(inputs_shape)
        for norm in self.norms:
            norm.build(inputs_shape)

    def call(self, inputs: Any, other: Any = None, mask: Any = None, training: bool = False) -> Any:
        attended = self.attention(inputs, inputs, use_causal_mask=self.causal, training=training)
        hidden = self.norms[0](inputs + attended)
        if self.other is not None:
            hidden = self.norms[1](hidden + self.other(hidden, other, training=training))
        return self.norms[-1](hidden + self.drop(self.dense(hidden), training=training))


def _padded(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Texts of half the length to all of it; 0 stands where a text has ended."""
    words = 1 + classes(random, _NUM_WORDS - 1, rows, length)
    return np.where(np.arange(length) < random.integers(length // 2, length + 1, size=(rows, 1)), words, 0)


class MaskedWords(keras.Model):
    """Learns words that are masked; a training step and a metric of its own, weights for each word."""

    def compile(self, optimizer: Any) -> None:
        super().compile(optimizer=optimizer)
        self.told = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.mean_loss = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        words, wanted, weights = data
        with tf.GradientTape() as tape:
            loss = self.told(wanted, self(words, training=True), sample_weight=weights)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean_loss.update_state(loss, sample_weight=weights)
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.mean_loss]


def build_masked_words() -> keras.Model:
    words = keras.Input((96,), dtype="int64")
    hidden = LearnedPositions()(layers.Embedding(_NUM_WORDS, _WIDTH)(words))
    for _ in range(2):
        hidden = Block()(hidden)
    model = MaskedWords(words, layers.Dense(_NUM_WORDS, activation="softmax")(hidden))
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def _masked(random: np.random.Generator, rows: int) -> Arrays:
    words = classes(random, _NUM_WORDS, rows, 96).astype("int64")
    masked = random.random(words.shape) < 0.15
    return np.where(masked, 0, words), words, masked.astype("float32")


def _loss_of_words(y_true: Any, y_pred: Any) -> Any:
    each = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    there = ops.cast(y_true > 0, each.dtype)
    return ops.sum(each * there) / ops.sum(there)


class NamedEntities(keras.Model):
    """A subclassed tagger; texts are padded to the longest of their batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = Words(128), [Block(dropout=0.1) for _ in range(2)]
        self.drop, self.dense, self.last = layers.Dropout(0.1), layers.Dense(_WIDTH, "relu"), layers.Dense(9)

    def call(self, words: Any, training: bool = False) -> Any:
        hidden = self.words(words)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        hidden = self.dense(self.drop(hidden, training=training))
        return self.last(self.drop(hidden, training=training))


def build_named_entities() -> keras.Model:
    model = NamedEntities()
    model(tf.ones((1, 128), "int32"))
    model.compile(keras.optimizers.Adam(1e-3), _loss_of_words)
    return model


def _tagged(random: np.random.Generator, rows: int) -> Arrays:
    words = _padded(random, rows, 128)
    return words, np.where(words > 0, 1 + classes(random, 8, rows, 128), 0)


def _to_the_longest(arrays: Arrays, batch_size: int) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(arrays)
    cut = rows.map(lambda words, tags: (words[: tf.math.count_nonzero(words)], tags[: tf.math.count_nonzero(words)]))
    return cut.padded_batch(batch_size)


def build_translation() -> keras.Model:
    given = keras.Input((48,), dtype="int32", name="encoder_inputs")
    before = keras.Input((48,), dtype="int32", name="decoder_inputs")
    read, written = Words(48)(given), Words(48)(before)
    for _ in range(2):
        read = Block()(read)
    for _ in range(2):
        written = Block(causal=True, reads_other=True)(written, read)
    model = keras.Model([given, before], layers.Dense(_NUM_WORDS)(layers.Dropout(0.5)(written)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.RMSprop(1e-3), loss, metrics=["accuracy"])
    return model


def _translated(random: np.random.Generator, rows: int) -> Arrays:
    written = _padded(random, rows, 49)
    x = {"encoder_inputs": _padded(random, rows, 48), "decoder_inputs": written[:, :-1]}
    return x, written[:, 1:]


class Captioner(keras.Model):
    """Each image has three captions, which are read one after another in the step; the image's network is frozen."""

    def __init__(self) -> None:
        super().__init__()
        images = hidden = keras.Input((48, 48, 3))
        for filters in (16, 32):
            hidden = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(hidden)
        self.seen = keras.Model(images, layers.Reshape((144, 32))(hidden))
        self.seen.trainable = False
        self.dense, self.words, self.block = layers.Dense(_WIDTH, "relu"), Words(24), Block(reads_other=True)
        self.block.causal = True
        self.last = layers.Dense(_NUM_WORDS)

    def call(self, inputs: Any, training: bool = False) -> Any:
        places, words = inputs
        return self.last(self.block(self.words(words), self.dense(places), training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        images, captions, _ = keras.utils.unpack_x_y_sample_weight(data)
        places, losses, found = self.seen(images), [], []
        for number in range(3):
            words = captions[:, number]
            with tf.GradientTape() as tape:
                loss = _loss_of_words(words[:, 1:], self((places, words[:, :-1]), training=True))
            losses.append(loss)
            found.append(tape.gradient(loss, self.trainable_variables))
        sums = [tf.add_n([tf.convert_to_tensor(part) for part in parts]) for parts in zip(*found, strict=True)]
        self.optimizer.apply_gradients(zip(sums, self.trainable_variables, strict=True))
        return {"loss": tf.add_n(losses) / 3}


def build_captioner() -> keras.Model:
    model = Captioner()
    model((tf.zeros((1, 144, 32)), tf.ones((1, 24), "int32")))
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def _captions(random: np.random.Generator, rows: int) -> Arrays:
    captions = np.stack([_padded(random, rows, 25) for _ in range(3)], axis=1)
    return normal(random, rows, 48, 48, 3), captions


def build_memory_network() -> keras.Model:
    story, question = keras.Input((68,), dtype="int32"), keras.Input((8,), dtype="int32")
    memory = layers.Dropout(0.3)(layers.Embedding(_NUM_WORDS, 64)(story))
    answers = layers.Dropout(0.3)(layers.Embedding(_NUM_WORDS, 8)(story))
    asked = layers.Dropout(0.3)(layers.Embedding(_NUM_WORDS, 64)(question))
    found = layers.Activation("softmax")(layers.Dot(axes=(2, 2))([memory, asked]))
    answer = layers.Concatenate()([layers.Permute((2, 1))(layers.Add()([found, answers])), asked])
    hidden = layers.Dropout(0.3)(layers.LSTM(32)(answer))
    return compile_classifier(keras.Model([story, question], layers.Dense(_NUM_WORDS)(hidden)))


def _stories(random: np.random.Generator, rows: int) -> Arrays:
    x = classes(random, _NUM_WORDS, rows, 68), classes(random, _NUM_WORDS, rows, 8)
    return x, classes(random, _NUM_WORDS, rows)


class Experts(layers.Layer):
    """Sends each word to the likeliest of four networks, as many as each can take; adds a loss for even shares."""

    num_experts, capacity = 4, 600

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.route = self.add_weight(shape=(width, self.num_experts), initializer="glorot_uniform")
        self.first = self.add_weight(shape=(self.num_experts, width, 2 * width), initializer="glorot_uniform")
        self.second = self.add_weight(shape=(self.num_experts, 2 * width, width), initializer="glorot_uniform")

    def call(self, inputs: Any) -> Any:
        words = ops.reshape(inputs, (-1, inputs.shape[-1]))
        chances = ops.softmax(ops.matmul(words, self.route))
        chance, expert = ops.top_k(chances, k=1)
        chosen = ops.one_hot(ops.squeeze(expert, -1), self.num_experts)
        self.add_loss(0.01 * self.num_experts**2 * ops.mean(ops.mean(chosen, 0) * ops.mean(chances, 0)))
        place = ops.cumsum(chosen, axis=0) * chosen
        chosen = chosen * ops.cast(place <= self.capacity, "float32")
        sent = chosen[:, :, None] * ops.one_hot(ops.cast(ops.sum(place, -1) - 1, "int32"), self.capacity)[:, None]
        taken = ops.einsum("wec,wd->ecd", sent, words)
        made = ops.matmul(ops.relu(ops.matmul(taken, self.first)), self.second)
        back = ops.einsum("wec,ecd->wd", sent * chance[:, :, None], made)
        return ops.reshape(back, ops.shape(inputs))


def build_switch() -> keras.Model:
    words = keras.Input((64,), dtype="int32")
    hidden = layers.Embedding(_NUM_WORDS, 32)(words)
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 16)(hidden, hidden)
        hidden = layers.LayerNormalization()(layers.Add()([hidden, attended]))
        hidden = layers.LayerNormalization()(layers.Add()([hidden, layers.Dropout(0.1)(Experts()(hidden))]))
    pooled = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(hidden))
    return compile_classifier(keras.Model(words, layers.Dense(2)(layers.Dense(32, activation="relu")(pooled))))


def _reviews(random: np.random.Generator, rows: int) -> Arrays:
    return classes(random, _NUM_WORDS, rows, 64), classes(random, 2, rows)


class KnownWords(keras.Model):
    """Only words that are there go through the dense layers: how many is known in the step alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words = layers.Embedding(_NUM_WORDS, 128)
        self.dense = [layers.Dense(128, activation="gelu") for _ in range(6)]
        self.last = layers.Dense(3)

    def call(self, words: Any) -> Any:
        there = words > 0
        hidden = tf.boolean_mask(self.words(words), there)
        for dense in self.dense:
            hidden = dense(hidden)
        rows = tf.boolean_mask(tf.repeat(tf.range(tf.shape(words)[0])[:, None], tf.shape(words)[1], axis=1), there)
        pooled = tf.math.unsorted_segment_mean(hidden, rows, tf.shape(words)[0])
        return self.last(tf.reshape(pooled, (-1, 128)))


def build_known_words() -> keras.Model:
    model = KnownWords()
    model(tf.ones((1, 128), "int32"))
    return compile_classifier(model)


def _open_texts(random: np.random.Generator, rows: int) -> Arrays:
    return _padded(random, rows, 128), classes(random, 3, rows)


def build_text_vectors() -> keras.Model:
    texts = keras.Input((1,), dtype="string")
    vectorize = layers.TextVectorization(max_tokens=500, output_sequence_length=160)
    vectorize.adapt(np.array([f"word{number}" for number in range(400)]))
    hidden = layers.Embedding(500, 96)(vectorize(texts))
    for rate in (1, 2, 4):
        hidden = layers.Conv1D(96, 5, padding="causal", dilation_rate=rate, activation="relu")(hidden)
        hidden = layers.SpatialDropout1D(0.2)(hidden)
    hidden = layers.Dense(64, activation="relu")(layers.GlobalMaxPooling1D()(hidden))
    return compile_classifier(keras.Model(texts, layers.Dense(2)(hidden)))


def _strings(random: np.random.Generator, rows: int) -> Arrays:
    texts = [" ".join(f"word{number}" for number in random.integers(400, size=150)) for _ in range(rows)]
    return tf.constant(texts)[:, None], classes(random, 2, rows)


def _sliced(arrays: Arrays, batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


_NLP = "keras.io/examples/nlp/"
MODELS = (
    WildModel(
        "masked_words",
        "a training step and weights for each word",
        build_masked_words,
        _masked,
        12,
        after=_NLP + "masked_language_modeling",
    ),
    WildModel(
        "named_entities",
        "texts padded to the longest of a batch, Keras's masks, dropout",
        build_named_entities,
        _tagged,
        16,
        dataset=_to_the_longest,
        after=_NLP + "ner_transformers",
    ),
    WildModel(
        "translation",
        "one text written from another, both padded and masked",
        build_translation,
        _translated,
        24,
        after=_NLP + "neural_machine_translation_with_transformer",
    ),
    WildModel(
        "captioner",
        "three tapes after another, their gradients added, a frozen network",
        build_captioner,
        _captions,
        40,
        after="keras.io/examples/vision/image_captioning",
    ),
    WildModel(
        "memory_network",
        "products of embeddings, an LSTM",
        build_memory_network,
        _stories,
        1024,
        after="keras.io/examples (babi_memnn)",
    ),
    WildModel(
        "switch",
        "words sent to experts, cumulative sums, add_loss",
        build_switch,
        _reviews,
        24,
        after=_NLP + "text_classification_with_switch_transformer",
    ),
    WildModel(
        "known_words",
        "sizes that the step alone knows: boolean_mask",
        build_known_words,
        _open_texts,
        64,
        after="tensorflow.org: boolean_mask in call",
    ),
    WildModel(
        "text_vectors",
        "strings, looked up within the model",
        build_text_vectors,
        _strings,
        96,
        dataset=_sliced,
        after=_NLP + "text_classification_from_scratch",
    ),
)
