"""Models that Keras users train, and data for them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from experiments.keras_users.compare import BATCH_SIZE, NUM_STEPS

NUM_ROWS = BATCH_SIZE * NUM_STEPS


def random_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def images(channels: int = 3, rows: int = NUM_ROWS) -> dict[str, Any]:
    return {"x": random_array(rows, 8, 8, channels), "y": np.arange(rows) % 4}


def tokens() -> dict[str, Any]:
    return {"x": np.random.default_rng(3).integers(1, 20, (NUM_ROWS, 6)), "y": np.arange(NUM_ROWS) % 4}


def vectors() -> dict[str, Any]:
    return {"x": random_array(NUM_ROWS, 8), "y": np.arange(NUM_ROWS) % 4}


def compiled(model: keras.Model, optimizer: Any = None, **options: Any) -> keras.Model:
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]} | options
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), **options)
    return model


def image_model(*stack: Any, optimizer: Any = None, **options: Any) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    hidden = inputs
    for layer in stack:
        hidden = layer(hidden)
    outputs = layers.Dense(4, activation="softmax")(layers.Flatten()(hidden))
    return compiled(keras.Model(inputs, outputs), optimizer, **options)


def conv_net(optimizer: Any = None, **options: Any) -> keras.Model:
    """BatchNorm, Dropout and L2 on convolutions; no bias before BatchNorm, whose gradient would be rounding alone."""
    return image_model(
        layers.Conv2D(6, 3, padding="same", kernel_regularizer="l2", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.3),
        layers.Conv2D(6, 3, padding="same", activation="tanh"),
        optimizer=optimizer,
        **options,
    )


def dense_net(optimizer: Any = None, **options: Any) -> keras.Model:
    stack = [keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(16, activation="tanh")]
    return compiled(keras.Sequential([*stack, layers.Dense(4, activation="softmax")]), optimizer, **options)


def token_model(*stack: Any, mask_zero: bool = False, optimizer: Any = None, **options: Any) -> keras.Model:
    inputs = keras.Input((6,), dtype="int64")
    hidden = layers.Embedding(20, 8, mask_zero=mask_zero)(inputs)
    for layer in stack:
        hidden = layer(hidden)
    return compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(hidden)), optimizer, **options)


class Subclassed(keras.Model):
    """A model without symbolic inputs; a nested model, a shared layer and a `training` argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dropout(0.2)])
        self.shared = layers.Dense(8, activation="tanh")
        self.last = layers.Dense(4, activation="softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.shared(self.inner(inputs, training=training))
        return self.last(self.shared(hidden))


class AddsLoss(layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(inputs)))
        return keras.ops.tanh(inputs)


class Branches(layers.Layer):
    """A tf.cond, a tf.map_fn and an einsum on tensors."""

    def call(self, inputs: Any) -> Any:
        chosen = tf.cond(tf.reduce_sum(inputs) > 0, lambda: tf.tanh(inputs), lambda: tf.sigmoid(inputs))
        mapped = tf.map_fn(lambda row: row * 2.0 + tf.reduce_mean(row), chosen)
        return tf.einsum("bi,bj->bij", mapped, chosen)


@tf.custom_gradient
def _clipped_identity(inputs: tf.Tensor) -> Any:
    return tf.identity(inputs), lambda upstream: tf.clip_by_value(upstream, -0.01, 0.01)


class CustomGradient(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return tf.tanh(_clipped_identity(tf.tanh(inputs)))


class IntegersAndBools(layers.Layer):
    def call(self, inputs: Any) -> Any:
        positive = inputs > 0
        count = tf.reduce_sum(tf.cast(positive, tf.int32), axis=-1, keepdims=True)
        return tf.where(positive, inputs, tf.tanh(inputs)) * tf.cast(count, inputs.dtype)


def several_inputs_and_outputs() -> keras.Model:
    image, vector = keras.Input((8, 8, 3), name="image"), keras.Input((8,), name="vector")
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3, activation="tanh")(image))
    joined = layers.Concatenate()([pooled, layers.Dense(6, activation="tanh")(vector)])
    outputs = {
        "label": layers.Dense(4, activation="softmax", name="label")(joined),
        "score": layers.Dense(1, name="score")(joined),
    }
    return compiled(
        keras.Model({"image": image, "vector": vector}, outputs),
        loss={"label": "sparse_categorical_crossentropy", "score": "mse"},
        loss_weights={"label": 1.0, "score": 0.3},
        metrics={"label": ["accuracy"], "score": ["mae"]},
    )


def transformer_block() -> keras.Model:
    inputs = keras.Input((6,), dtype="int64")
    hidden = layers.Embedding(20, 8)(inputs)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(layers.Add()([hidden, attended]))
    hidden = layers.Dense(16, activation="gelu")(hidden)
    return compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.GlobalMaxPooling1D()(hidden))))


def masked() -> keras.Model:
    """A mask that reaches the loss and the metrics with the predictions."""
    inputs = keras.Input((6,), dtype="int64")
    hidden = layers.Embedding(20, 8, mask_zero=True)(inputs)
    outputs = layers.Dense(4, activation="softmax")(layers.LSTM(6, return_sequences=True)(hidden))
    return compiled(keras.Model(inputs, outputs), weighted_metrics=["accuracy"], metrics=None)


def masked_tokens() -> dict[str, Any]:
    x = np.random.default_rng(3).integers(1, 20, (NUM_ROWS, 6))
    x[:, 4:] = 0
    return {"x": x, "y": np.random.default_rng(4).integers(0, 4, (NUM_ROWS, 6))}


def volumes() -> keras.Model:
    inputs = keras.Input((4, 4, 4, 2))
    hidden = layers.Conv3D(4, 3, padding="same", activation="tanh")(inputs)
    hidden = layers.Conv3DTranspose(3, 2, activation="tanh")(hidden)
    return compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.Flatten()(hidden))))


def sequences() -> keras.Model:
    inputs = keras.Input((8, 3))
    hidden = layers.Conv1D(4, 3, padding="same", activation="tanh")(inputs)
    hidden = layers.Conv1DTranspose(4, 3, activation="tanh")(hidden)
    hidden = layers.SeparableConv1D(4, 3, activation="tanh")(hidden)
    return compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.Flatten()(hidden))))


def mobile_net() -> keras.Model:
    return compiled(keras.applications.MobileNet((32, 32, 3), alpha=0.25, weights=None, classes=4))


def bert() -> keras.Model:
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=20, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=6
    )
    outputs = layers.Dense(4, activation="softmax")(backbone.output["pooled_output"])
    return compiled(keras.Model(backbone.input, outputs))


def bert_tokens() -> dict[str, Any]:
    ids = tokens()["x"].astype("int32")
    x = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": (ids > 3).astype("int32")}
    return {"x": x, "y": np.arange(NUM_ROWS) % 4}


def schedule_free() -> keras.Model:
    """Built before training: stock Keras, where `fit` builds it, resets its momentum in every step."""
    model = dense_net(keras.optimizers.ScheduleFreeAdamW())
    model.optimizer.build(model.trainable_variables)
    return model


def frozen() -> keras.Model:
    model = conv_net()
    model.layers[1].trainable = False
    model.layers[2].trainable = False
    return compiled(model)


def under_policy(policy: str) -> keras.Model:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return conv_net()
    finally:
        keras.config.set_dtype_policy(before)


class OwnStep(keras.Model):
    """A `train_step` of the user's own, with a gradient penalty."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions) + 0.01 * tf.reduce_sum(tf.square(predictions))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


def own_step() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    hidden = layers.Dropout(0.2)(layers.BatchNormalization()(layers.Conv2D(6, 3, activation="tanh")(inputs)))
    return compiled(OwnStep(inputs, layers.Dense(4, activation="softmax")(layers.Flatten()(hidden))))


class Gan(keras.Model):
    """Two networks and two optimizers in one model, as Keras's own examples write a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((8,)), layers.Dense(8, "tanh"), layers.Dense(8)])
        self.critic = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, "tanh"), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.seed_generator = keras.random.SeedGenerator(5)
        self.critic_loss = keras.metrics.Mean("critic_loss")
        self.built = True

    def compile_both(self, critic_optimizer: Any, generator_optimizer: Any) -> "Gan":
        super().compile()
        self.critic_optimizer, self.generator_optimizer = critic_optimizer, generator_optimizer
        return self

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.critic(inputs, training=training)

    def train_step(self, data: Any) -> Any:
        real = data[0]
        made = self.generator(keras.random.normal(tf.shape(real), seed=self.seed_generator))
        with tf.GradientTape() as tape:
            on_made, on_real = self.critic(made, training=True), self.critic(real, training=True)
            loss = tf.reduce_mean(tf.nn.softplus(on_made)) + tf.reduce_mean(tf.nn.softplus(-on_real))
        gradients = tape.gradient(loss, self.critic.trainable_weights)
        self.critic_optimizer.apply(gradients, self.critic.trainable_weights)
        noise = keras.random.normal(tf.shape(real), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean(tf.nn.softplus(-self.critic(self.generator(noise), training=True)))
        gradients = tape.gradient(fooled, self.generator.trainable_weights)
        self.generator_optimizer.apply(gradients, self.generator.trainable_weights)
        self.critic_loss.update_state(loss)
        return {"critic_loss": self.critic_loss.result(), "fooled": fooled}


def gan() -> keras.Model:
    return Gan().compile_both(keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1, momentum=0.9))


def one_optimizer_a_layer() -> Any:
    map_ = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.05), {".*bias": keras.optimizers.SGD(0.01)})
    return keras.optimizers.MultiOptimizer(map_)


def decayed_sgd() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9)
