"""Models that learn by a training step of their own: generators, and encoders that need no labels."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, batched, classes, normal

_IMAGE = (32, 32, 1)


def _pixels(random: np.random.Generator, rows: int) -> Arrays:
    return (random.random((rows, *_IMAGE), dtype="float32"),)


def _flat_image(data: Any) -> Any:
    """The images of a batch, which comes bare from `fit` and as a tuple from `train_on_batch`."""
    return data[0] if isinstance(data, tuple) else data


def _apply(model: keras.Model, tape: tf.GradientTape, loss: Any) -> None:
    weights = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


class DrawnLatent(layers.Layer):
    """A sample of the normal distribution that mean and log variance describe."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(11)

    def call(self, mean: Any, log_variance: Any) -> Any:
        return mean + ops.exp(log_variance / 2) * keras.random.normal(ops.shape(mean), seed=self.seeds)


class Vae(keras.Model):
    """A variational autoencoder that has a training step and no `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = _vae_encoder(8), _vae_decoder(8)
        self.error, self.divergence = keras.metrics.Mean(name="error"), keras.metrics.Mean(name="divergence")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.error, self.divergence]

    def train_step(self, images: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_variance, latent = self.encoder(images, training=True)
            decoded = self.decoder(latent, training=True)
            error = ops.mean(ops.sum(ops.square(images - decoded), axis=(1, 2, 3)))
            divergence = ops.mean(ops.sum(mean**2 + ops.exp(log_variance) - log_variance - 1, axis=1)) / 2
            loss = error + divergence
        _apply(self, tape, loss)
        self.error.update_state(error)
        self.divergence.update_state(divergence)
        return {"loss": loss, "error": self.error.result(), "divergence": self.divergence.result()}


def _vae_encoder(latent_size: int) -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(images)
    for filters in (32, 64):
        hidden = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(hidden)
    hidden = layers.Dense(32, activation="relu")(layers.Flatten()(hidden))
    mean, log_variance = layers.Dense(latent_size)(hidden), layers.Dense(latent_size)(hidden)
    return keras.Model(images, (mean, log_variance, DrawnLatent()(mean, log_variance)))


def _vae_decoder(latent_size: int) -> keras.Model:
    latent = keras.Input((latent_size,))
    hidden = layers.Reshape((8, 8, 64))(layers.Dense(8 * 8 * 64, activation="relu")(latent))
    for filters in (32, 16):
        hidden = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(hidden)
    return keras.Model(latent, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(hidden))


def build_vae() -> keras.Model:
    model = Vae()
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9))
    return model


class Gan(keras.Model):
    """Two networks that train against each other, each with its own tape and optimizer."""

    noise_size = 32

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = _generator(self.noise_size), _discriminator()
        self.seeds = keras.random.SeedGenerator(12)

    def compile(self, generator_optimizer: Any, discriminator_optimizer: Any) -> None:
        super().compile(optimizer=generator_optimizer)
        self.discriminator_optimizer = discriminator_optimizer
        self.judge = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        real = _flat_image(data)
        rows = tf.shape(real)[0]
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            made = self.generator(keras.random.normal((rows, self.noise_size), seed=self.seeds), training=True)
            of_made, of_real = self.discriminator(made, training=True), self.discriminator(real, training=True)
            fooled = self.judge(tf.ones_like(of_made), of_made)
            told_apart = self.judge(tf.zeros_like(of_made), of_made) + self.judge(tf.ones_like(of_real), of_real)
        for tape, loss, part, optimizer in (
            (generator_tape, fooled, self.generator, self.optimizer),
            (discriminator_tape, told_apart, self.discriminator, self.discriminator_optimizer),
        ):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
        return {"loss": fooled, "discriminator_loss": told_apart}


def _generator(noise_size: int) -> keras.Model:
    noise = keras.Input((noise_size,))
    hidden = layers.Reshape((8, 8, 64))(layers.Dense(8 * 8 * 64)(noise))
    for filters in (64, 32):
        hidden = layers.Conv2DTranspose(filters, 4, strides=2, padding="same")(hidden)
        hidden = layers.LeakyReLU(negative_slope=0.2)(hidden)
    return keras.Model(noise, layers.Conv2D(1, 5, padding="same", activation="sigmoid")(hidden))


def _discriminator() -> keras.Model:
    images = hidden = keras.Input(_IMAGE)
    for filters in (32, 64):
        hidden = layers.Conv2D(filters, 4, strides=2, padding="same")(hidden)
        hidden = layers.LeakyReLU(negative_slope=0.2)(hidden)
    hidden = layers.Dropout(0.2)(layers.Flatten()(hidden))
    return keras.Model(images, layers.Dense(1)(hidden))


def build_gan() -> keras.Model:
    model = Gan()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.5), keras.optimizers.SGD(0.01, momentum=0.5))
    return model


class NearestCode(layers.Layer):
    """Replaces each vector by the nearest one of a table, through which gradients pass straight."""

    def __init__(self, num_codes: int) -> None:
        super().__init__()
        self.num_codes = num_codes

    def build(self, shape: Any) -> None:
        self.codes = self.add_weight(shape=(shape[-1], self.num_codes), initializer="random_uniform", name="codes")

    def call(self, vectors: Any) -> Any:
        flat = ops.reshape(vectors, (-1, vectors.shape[-1]))
        products = ops.matmul(flat, self.codes)
        distances = ops.sum(flat**2, axis=1, keepdims=True) + ops.sum(self.codes**2, axis=0) - 2 * products
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.num_codes)
        nearest = ops.reshape(ops.matmul(chosen, ops.transpose(self.codes)), ops.shape(vectors))
        self.add_loss(ops.mean((nearest - ops.stop_gradient(vectors)) ** 2))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(nearest) - vectors) ** 2))
        return vectors + ops.stop_gradient(nearest - vectors)


class QuantizedAutoencoder(keras.Model):
    """An autoencoder whose code is of table entries; its training step adds the losses that layers reported."""

    def __init__(self) -> None:
        super().__init__()
        images = hidden = keras.Input(_IMAGE)
        for filters in (32, 64):
            hidden = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(hidden)
        hidden = NearestCode(128)(layers.Conv2D(16, 1)(hidden))
        for filters in (64, 32):
            hidden = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(hidden)
        self.network = keras.Model(images, layers.Conv2D(1, 3, padding="same")(hidden))
        self.mean_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.mean_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        images = _flat_image(data)
        with tf.GradientTape() as tape:
            decoded = self.network(images, training=True)
            loss = ops.mean((images - decoded) ** 2) / 0.08 + sum(self.network.losses)
        _apply(self, tape, loss)
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def build_vq_vae() -> keras.Model:
    model = QuantizedAutoencoder()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9))
    return model


class MaskedAutoencoder(keras.Model):
    """Encodes a random quarter of the patches of an image and tells the others from them."""

    patch, num_patches, num_seen, width = 4, 256, 64, 64

    def __init__(self) -> None:
        super().__init__()
        self.embed = layers.Dense(self.width)
        self.positions = layers.Embedding(self.num_patches, self.width)
        self.encoder = _blocks(self.num_seen, self.width, depth=2)
        self.decoder = _blocks(self.num_patches, self.width, depth=3)
        self.pixels = layers.Dense(self.patch**2)
        self.seeds = keras.random.SeedGenerator(13)

    def build(self, shape: Any) -> None:
        self.unseen = self.add_weight(shape=(self.width,), initializer="random_normal", name="unseen")
        self.call(tf.zeros((1, self.num_patches, self.patch**2)))
        self.built = True

    def call(self, patches: Any) -> Any:
        """The loss of patches [rows, num_patches, patch ** 2]."""
        rows = ops.shape(patches)[0]
        order = ops.argsort(keras.random.uniform((rows, self.num_patches), seed=self.seeds), axis=-1)
        seen, hidden = order[:, : self.num_seen], order[:, self.num_seen :]
        positions = self.positions(order)
        embedded = self.embed(tf.gather(patches, seen, batch_dims=1)) + positions[:, : self.num_seen]
        encoded = self.encoder(embedded)
        unseen = self.unseen + positions[:, self.num_seen :]
        decoded = self.decoder(ops.concatenate([encoded, unseen], axis=1))
        told = self.pixels(decoded[:, self.num_seen :])
        return ops.mean((told - tf.gather(patches, hidden, batch_dims=1)) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        images = _flat_image(data)
        patches = tf.image.extract_patches(
            images, [1, self.patch, self.patch, 1], [1, self.patch, self.patch, 1], [1, 1, 1, 1], "VALID"
        )
        with tf.GradientTape() as tape:
            loss = self(tf.reshape(patches, (-1, self.num_patches, self.patch**2)), training=True)
        _apply(self, tape, loss)
        return {"loss": loss}


def _blocks(length: int, width: int, depth: int) -> keras.Model:
    tokens = hidden = keras.Input((length, width))
    for _ in range(depth):
        normed = layers.LayerNormalization()(hidden)
        hidden = layers.Add()([hidden, layers.MultiHeadAttention(4, width // 4)(normed, normed)])
        widened = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden = layers.Add()([hidden, layers.Dense(width)(widened)])
    return keras.Model(tokens, layers.LayerNormalization()(hidden))


def build_masked_autoencoder() -> keras.Model:
    model = MaskedAutoencoder()
    model.build((None, model.num_patches, model.patch**2))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9))
    return model


def _large_pixels(random: np.random.Generator, rows: int) -> Arrays:
    return (random.random((rows, 64, 64, 1), dtype="float32"),)


class Contrastive(keras.Model):
    """Learns that two changed copies of an image are of the same image, and that all others are not."""

    temperature = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.change = keras.Sequential(
            [layers.RandomFlip("horizontal", seed=1), layers.RandomTranslation(0.2, 0.2, seed=2)]
        )
        self.encoder = _encoder((32, 32, 3), (16, 32, 48))
        self.projection = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(32)])

    def call(self, images: Any, training: bool = False) -> Any:
        """Vectors of length 1."""
        changed = self.change(images, training=training)
        vectors = self.projection(self.encoder(changed, training=training))
        return vectors / ops.maximum(ops.norm(vectors, axis=-1, keepdims=True), 1e-6)

    def train_step(self, data: Any) -> dict[str, Any]:
        images = _flat_image(data)
        with tf.GradientTape() as tape:
            one, other = self(images, training=True), self(images, training=True)
            likeness = ops.matmul(one, ops.transpose(other)) / self.temperature
            own = tf.range(tf.shape(images)[0])
            losses = [
                keras.losses.sparse_categorical_crossentropy(own, each, from_logits=True)
                for each in (likeness, ops.transpose(likeness))
            ]
            loss = ops.mean(sum(losses))
        _apply(self, tape, loss)
        return {"loss": loss}


def _encoder(shape: tuple[int, ...], filters: tuple[int, ...]) -> keras.Model:
    images = hidden = keras.Input(shape)
    for number in filters:
        for _ in range(3):
            hidden = layers.Conv2D(number, 3, padding="same", use_bias=False)(hidden)
            hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
        hidden = layers.MaxPooling2D()(hidden)
    return keras.Model(images, layers.GlobalAveragePooling2D()(hidden))


def build_contrastive() -> keras.Model:
    model = Contrastive()
    model(tf.zeros((2, 32, 32, 3)))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9))
    return model


def _coloured(random: np.random.Generator, rows: int) -> Arrays:
    return (random.random((rows, 32, 32, 3), dtype="float32"),)


class Distiller(keras.Model):
    """A student that learns from labels and from what a frozen teacher says of the same images."""

    temperature = 4.0

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = _classifier((16, 32, 48)), _classifier((24, 48))
        self.teacher.trainable = False

    def call(self, images: Any, training: bool = False) -> Any:
        return self.student(images, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        softened = ops.softmax(self.teacher(x, training=False) / self.temperature)
        likeness = keras.losses.kl_divergence(softened, ops.softmax(y_pred / self.temperature))
        return super().compute_loss(x, y, y_pred, sample_weight, training) + self.temperature**2 * ops.mean(likeness)


def _classifier(filters: tuple[int, ...]) -> keras.Model:
    images = keras.Input((32, 32, 3))
    return keras.Model(images, layers.Dense(10)(_encoder((32, 32, 3), filters)(images)))


def build_distillation() -> keras.Model:
    model = Distiller()
    model.compile(
        keras.optimizers.Adam(1e-3, epsilon=1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _labelled(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 32, 32, 3), classes(random, 10, rows)


MODELS = (
    WildModel("vae", "train_step on bare x, no call", build_vae, _pixels, 128, has_bare_batches=True),
    WildModel("gan", "train_step with two tapes and two optimizers", build_gan, _pixels, 96, dataset=batched),
    WildModel("vq_vae", "straight-through gradients, losses of layers in a train_step", build_vq_vae, _pixels, 192),
    WildModel("masked_autoencoder", "random masks, gather, loss from call", build_masked_autoencoder, _large_pixels, 8),
    WildModel("contrastive", "two random views of a batch in a train_step", build_contrastive, _coloured, 64),
    WildModel("distillation", "compute_loss with a frozen teacher", build_distillation, _labelled, 64),
)
