"""Models after public examples of tables, recommendations, series and graphs."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, LearnedPositions, WildModel, classes, compile_classifier, normal

_CATEGORIES = {f"kind_{number}": 20 + 10 * number for number in range(8)}
_NUMBERS = tuple(f"number_{number}" for number in range(5))


def _table_inputs() -> dict[str, Any]:
    kinds = {name: keras.Input((1,), name=name, dtype="int32") for name in _CATEGORIES}
    return kinds | {name: keras.Input((1,), name=name) for name in _NUMBERS}


def _coded_kinds(inputs: dict[str, Any], width: int) -> list[Any]:
    return [layers.Embedding(size, width)(inputs[name]) for name, size in _CATEGORIES.items()]


def _compile_binary(model: keras.Model) -> keras.Model:
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(), metrics=[keras.metrics.BinaryAccuracy()])
    return model


def _table(random: np.random.Generator, rows: int) -> Arrays:
    x = {name: classes(random, size, rows, 1) for name, size in _CATEGORIES.items()}
    x |= {name: normal(random, rows, 1) for name in _NUMBERS}
    return x, classes(random, 2, rows, 1), random.random((rows, 1), dtype="float32")


def build_tab_transformer() -> keras.Model:
    inputs = _table_inputs()
    hidden = LearnedPositions()(layers.Concatenate(axis=1)(_coded_kinds(inputs, 16)))
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 16, dropout=0.2)(hidden, hidden)
        hidden = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([hidden, attended]))
        dense = layers.Dropout(0.2)(layers.Dense(16, activation="gelu")(layers.LayerNormalization()(hidden)))
        hidden = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([hidden, dense]))
    numbers = layers.LayerNormalization()(layers.Concatenate()([inputs[name] for name in _NUMBERS]))
    hidden = layers.Concatenate()([layers.Flatten()(hidden), numbers])
    for factor in (2, 1):
        hidden = layers.Dense(factor * 133, activation="selu")(layers.BatchNormalization()(hidden))
        hidden = layers.Dropout(0.2)(hidden)
    return _compile_binary(keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden)))


def build_deep_and_cross() -> keras.Model:
    inputs = _table_inputs()
    parts = [layers.Flatten()(code) for code in _coded_kinds(inputs, 24)]
    start = crossed = layers.Concatenate()([*parts, *(inputs[name] for name in _NUMBERS)])
    for _ in range(3):
        crossed = layers.Add()([layers.Multiply()([start, layers.Dense(start.shape[-1])(crossed)]), crossed])
    deep = start
    for units in (128, 128):
        deep = layers.Dropout(0.1)(layers.ReLU()(layers.BatchNormalization()(layers.Dense(units)(deep))))
    joined = layers.Concatenate()([layers.BatchNormalization()(crossed), deep])
    return _compile_binary(keras.Model(inputs, layers.Dense(1, activation="sigmoid")(joined)))


class GatedResidual(layers.Layer):
    """Dense layers that a gate lets through beside their input."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.elu, self.dense, self.drop = layers.Dense(units, "elu"), layers.Dense(units), layers.Dropout(0.1)
        self.linear, self.gate = layers.Dense(units), layers.Dense(units, "sigmoid")
        self.norm, self.project = layers.LayerNormalization(), layers.Dense(units)

    def build(self, shape: Any) -> None:
        made = (*shape[:-1], self.dense.units)
        self.elu.build(shape)
        self.project.build(shape)
        for layer in (self.dense, self.linear, self.gate, self.norm):
            layer.build(made)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.drop(self.dense(self.elu(inputs)), training=training)
        return self.norm(self.project(inputs) + self.linear(hidden) * self.gate(hidden))


def build_variable_selection() -> keras.Model:
    inputs = _table_inputs()
    numbers = layers.Dense(64)(layers.Concatenate()([inputs[name] for name in _NUMBERS]))
    codes = [layers.Flatten()(code) for code in _coded_kinds(inputs, 64)[:4]] + [numbers]
    weights = layers.Dense(len(codes), activation="softmax")(GatedResidual(64)(layers.Concatenate()(codes)))
    stacked = ops.stack([GatedResidual(64)(code) for code in codes], axis=1)
    chosen = layers.Dot(axes=1)([layers.Reshape((len(codes), 1))(weights), stacked])
    return _compile_binary(keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Flatten()(chosen))))


class SequentialRecommender(keras.Model):
    """Attends to what a user took before; each next one is compared with one that was drawn by chance."""

    length, num_items, width = 50, 2_000, 64

    def __init__(self) -> None:
        super().__init__()
        self.items = layers.Embedding(self.num_items, self.width, mask_zero=True)
        self.positions = layers.Embedding(self.length, self.width)
        self.attention = [layers.MultiHeadAttention(2, 32, dropout=0.2) for _ in range(2)]
        self.norms = [layers.LayerNormalization() for _ in range(4)]
        self.dense = [keras.Sequential([layers.Dense(self.width, "relu"), layers.Dense(self.width)]) for _ in range(2)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        taken = inputs["taken"]
        there = ops.cast(ops.not_equal(taken, 0), "float32")[..., None]
        hidden = (self.items(taken) * self.width**0.5 + self.positions(ops.arange(self.length))) * there
        for number, attention in enumerate(self.attention):
            normed = self.norms[2 * number](hidden)
            hidden = normed + attention(normed, hidden, use_causal_mask=True, training=training)
            normed = self.norms[2 * number + 1](hidden)
            hidden = (normed + self.dense[number](normed)) * there
        both = [ops.sum(hidden * self.items(inputs[name]), axis=-1) for name in ("next", "drawn")]
        return ops.stack(both, axis=-1)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        there = ops.cast(ops.not_equal(x["next"], 0), "float32")
        losses = ops.softplus(-y_pred[..., 0]) + ops.softplus(y_pred[..., 1])
        return ops.sum(losses * there) / ops.maximum(ops.sum(there), 1)


def build_sequential_recommender() -> keras.Model:
    model = SequentialRecommender()
    model({name: tf.ones((1, model.length), "int32") for name in ("taken", "next", "drawn")})
    model.compile(keras.optimizers.Adam(1e-3, beta_2=0.98))
    return model


def _histories(random: np.random.Generator, rows: int) -> Arrays:
    size = SequentialRecommender
    starts = random.integers(size.length // 2, size=(rows, 1))
    there = np.arange(size.length) >= starts
    return (
        {
            name: np.where(there, 1 + classes(random, size.num_items - 1, rows, size.length), 0)
            for name in ("taken", "next", "drawn")
        },
    )


class TwoTowers(keras.Model):
    """Users and items are coded apart; each user's own item is told from all others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = (
            keras.Sequential([layers.Embedding(4_000, 128), layers.Dense(512, "relu"), layers.Dense(128)])
            for _ in range(2)
        )

    def call(self, inputs: Any) -> Any:
        return ops.matmul(self.users(inputs["user"]), ops.transpose(self.items(inputs["item"])))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        counts = ops.sum(ops.cast(x["item"][:, None] == x["item"][None], "float32"), axis=1)
        logits = y_pred - ops.log(counts)
        own = ops.arange(ops.shape(logits)[0])
        return ops.sum(ops.sparse_categorical_crossentropy(own, logits, from_logits=True))


def build_two_towers() -> keras.Model:
    model = TwoTowers()
    model({name: tf.zeros((2,), "int32") for name in ("user", "item")})
    model.compile(keras.optimizers.Adagrad(0.05))
    return model


def _bought(random: np.random.Generator, rows: int) -> Arrays:
    return ({name: classes(random, 4_000, rows) for name in ("user", "item")},)


def build_weather() -> keras.Model:
    series = keras.Input((120, 7))
    hidden = layers.LSTM(96, return_sequences=True)(series)
    hidden = layers.LSTM(48)(hidden)
    model = keras.Model(series, layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def _weather(random: np.random.Generator, rows: int) -> Arrays:
    return random.standard_normal((rows, 120, 7)), random.standard_normal((rows, 1))  # float64, as NumPy makes them


def build_anomalies() -> keras.Model:
    series = hidden = keras.Input((288, 1))
    for filters in (48, 24):
        hidden = layers.Conv1D(filters, 7, padding="same", strides=2, activation="relu")(hidden)
        hidden = layers.Dropout(0.2)(hidden)
    for filters in (24, 48):
        hidden = layers.Conv1DTranspose(filters, 7, padding="same", strides=2, activation="relu")(hidden)
        hidden = layers.Dropout(0.2)(hidden)
    model = keras.Model(series, layers.Conv1DTranspose(1, 7, padding="same")(hidden))
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def _normal_days(random: np.random.Generator, rows: int) -> Arrays:
    series = normal(random, rows, 288, 1)
    return series, series


class RoadGraph(layers.Layer):
    """Each place of a fixed graph takes in its neighbours at every time, by mean, and then an LSTM reads each."""

    num_places = 64

    def __init__(self, width: int) -> None:
        super().__init__()
        edges = np.random.default_rng(5).integers(self.num_places, size=(2, 6 * self.num_places))
        order = np.argsort(edges[1], kind="stable")
        self.sources, self.targets = edges[:, order].astype("int32")
        self.kernel, self.lstm, self.last = layers.Dense(width), layers.LSTM(width), layers.Dense(9)

    def build(self, shape: Any) -> None:
        self.kernel.build((None, None, None, 2 * shape[-1]))
        self.lstm.build((None, shape[2], self.kernel.units))
        self.last.build((None, self.kernel.units))

    def call(self, inputs: Any) -> Any:
        """Takes [rows, places, times, features]."""
        _, places, times, _ = inputs.shape
        by_place = ops.transpose(inputs, (1, 0, 2, 3))
        taken = tf.math.unsorted_segment_mean(tf.gather(by_place, self.sources), self.targets, places)
        hidden = ops.relu(self.kernel(ops.concatenate([by_place, taken], axis=-1)))
        read = self.lstm(ops.reshape(hidden, (-1, times, self.kernel.units)))
        return ops.transpose(ops.reshape(self.last(read), (places, -1, 9)), (1, 2, 0))


def build_traffic() -> keras.Model:
    series = keras.Input((RoadGraph.num_places, 12, 4))
    model = keras.Model(series, RoadGraph(32)(series))
    model.compile(keras.optimizers.RMSprop(2e-4), "mse")
    return model


def _traffic(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, RoadGraph.num_places, 12, 4), normal(random, rows, 9, RoadGraph.num_places)


class MessagePassing(layers.Layer):
    """Atoms send through bonds what the bond makes of them, and keep what a GRU's cell makes of the sums."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.width, self.steps, self.cell = width, steps, layers.GRUCell(width)

    def build(self, atoms_shape: Any, bonds_shape: Any, pairs_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(bonds_shape[-1], self.width**2), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(self.width**2,), initializer="zeros")
        self.cell.build((None, self.width))

    def call(self, atoms: Any, bonds: Any, pairs: Any) -> Any:
        rows, size = ops.shape(atoms)[0], atoms.shape[1]
        flat = ops.reshape(ops.pad(atoms, [(0, 0), (0, 0), (0, self.width - atoms.shape[-1])]), (-1, self.width))
        pairs = ops.reshape(pairs + size * ops.arange(rows, dtype="int32")[:, None, None], (-1, 2))
        made = ops.matmul(ops.reshape(bonds, (-1, bonds.shape[-1])), self.kernel) + self.bias
        made = ops.reshape(made, (-1, self.width, self.width))
        for _ in range(self.steps):
            sent = tf.gather(flat, pairs[:, 1])[..., None]
            sums = tf.math.unsorted_segment_sum(ops.squeeze(ops.matmul(made, sent), -1), pairs[:, 0], rows * size)
            flat, _ = self.cell(sums, flat)
        return ops.reshape(flat, (rows, size, self.width))


def build_molecules() -> keras.Model:
    atoms, bonds = keras.Input((20, 12), name="atoms"), keras.Input((40, 7), name="bonds")
    pairs = keras.Input((40, 2), dtype="int32", name="pairs")
    hidden = MessagePassing(24, 3)(atoms, bonds, pairs)
    attended = layers.MultiHeadAttention(4, 8)(hidden, hidden)
    hidden = layers.LayerNormalization()(layers.Add()([hidden, attended]))
    hidden = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling1D()(hidden))
    inputs = {"atoms": atoms, "bonds": bonds, "pairs": pairs}
    return _compile_binary(keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden)))


def _molecules(random: np.random.Generator, rows: int) -> Arrays:
    x = {"atoms": normal(random, rows, 20, 12), "bonds": normal(random, rows, 40, 7)}
    return x | {"pairs": classes(random, 20, rows, 40, 2)}, classes(random, 2, rows, 1)


class PaperClasses(keras.Model):
    """Classes of papers by what they cite: a batch is of numbers of papers, the graph is the model's."""

    num_papers, num_words = 3_000, 256

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(6)
        self.papers = tf.constant(normal(random, self.num_papers, self.num_words))
        self.cites = tf.constant(random.integers(self.num_papers, size=(2, 9_000), dtype="int32"))
        self.prepare, self.last = self._dense(64), layers.Dense(7)
        self.sent, self.kept = ([self._dense(64) for _ in range(2)] for _ in range(2))

    def _dense(self, units: int) -> keras.Sequential:
        return keras.Sequential([layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(units, "gelu")])

    def call(self, numbers: Any, training: bool = False) -> Any:
        hidden = self.prepare(self.papers, training=training)
        for sent, kept in zip(self.sent, self.kept, strict=True):
            messages = sent(tf.gather(hidden, self.cites[1]), training=training)
            sums = tf.math.unsorted_segment_sum(messages, self.cites[0], self.num_papers)
            joined = tf.concat([hidden, tf.reshape(sums, (-1, 64))], axis=1)
            hidden = hidden + tf.math.l2_normalize(kept(joined, training=training), axis=-1)
        return self.last(tf.gather(hidden, tf.reshape(numbers, (-1,))))


def build_paper_classes() -> keras.Model:
    model = PaperClasses()
    model(tf.zeros((2,), "int32"))
    return compile_classifier(model)


def _papers(random: np.random.Generator, rows: int) -> Arrays:
    return classes(random, PaperClasses.num_papers, rows), classes(random, 7, rows)


_STRUCTURED, _SERIES = "keras.io/examples/structured_data/", "keras.io/examples/timeseries/"
MODELS = (
    WildModel(
        "tab_transformer",
        "thirteen inputs, attention over columns, selu, weights of rows",
        build_tab_transformer,
        _table,
        1024,
        after=_STRUCTURED + "tabtransformer",
    ),
    WildModel(
        "deep_and_cross",
        "products of the features with the previous layer",
        build_deep_and_cross,
        _table,
        4096,
        after=_STRUCTURED + "wide_deep_cross_networks",
    ),
    WildModel(
        "variable_selection",
        "a gated network for each column; inputs that nothing reads",
        build_variable_selection,
        _table,
        4096,
        after=_STRUCTURED + "classification_with_grn_and_vsn",
    ),
    WildModel(
        "sequential_recommender",
        "compute_loss of inputs, no targets, one table read three times",
        build_sequential_recommender,
        _histories,
        96,
        after="keras.io/examples/keras_rs/sas_rec",
    ),
    WildModel(
        "two_towers",
        "a loss over all pairs of a batch",
        build_two_towers,
        _bought,
        2048,
        after="keras.io/examples/keras_rs/basic_retrieval",
    ),
    WildModel(
        "weather",
        "long LSTMs, data in float64",
        build_weather,
        _weather,
        384,
        after=_SERIES + "timeseries_weather_forecasting",
    ),
    WildModel(
        "anomalies",
        "transposed convolutions of series",
        build_anomalies,
        _normal_days,
        128,
        after=_SERIES + "timeseries_anomaly_detection",
    ),
    WildModel(
        "traffic",
        "a fixed graph, then an LSTM for each place",
        build_traffic,
        _traffic,
        96,
        after=_SERIES + "timeseries_traffic_forecasting",
    ),
    WildModel(
        "molecules",
        "messages over bonds, a GRU's cell, three steps",
        build_molecules,
        _molecules,
        160,
        after="keras.io/examples/graph/mpnn-molecular-graphs",
    ),
    WildModel(
        "paper_classes",
        "activations of a whole graph, whatever the batch",
        build_paper_classes,
        _papers,
        256,
        after="keras.io/examples/graph/gnn_citations",
    ),
)
