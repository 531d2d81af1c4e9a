"""Training steps of their own, after public examples: learning without labels, and further generators."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, classes, normal

_IMAGE = (32, 32, 3)
_WIDTH = 64


def _first(data: Any) -> Any:
    """Returns the images of a batch, which comes bare from a data set and as a tuple from `train_on_batch`."""
    return data[0] if isinstance(data, tuple) else data


def _apply(optimizer: Any, tape: tf.GradientTape, loss: Any, weights: list[Any]) -> None:
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def _encoder(filters: tuple[int, ...] = (24, 48)) -> keras.Model:
    """A small residual network that gives a vector for each image."""
    images = hidden = keras.Input(_IMAGE)
    for number in filters:
        hidden = layers.Conv2D(number, 3, strides=1 if number == filters[0] else 2, padding="same")(hidden)
        branch = layers.ReLU()(layers.BatchNormalization()(hidden))
        branch = layers.BatchNormalization()(layers.Conv2D(number, 3, padding="same", use_bias=False)(branch))
        hidden = layers.ReLU()(layers.Add()([hidden, branch]))
    return keras.Model(images, layers.Dense(_WIDTH)(layers.GlobalAveragePooling2D()(hidden)))


def _augmentation(seed: int) -> keras.Sequential:
    return keras.Sequential(
        [
            layers.RandomFlip("horizontal", seed=seed),
            layers.RandomTranslation(0.1, 0.1, seed=seed + 1),
            layers.RandomContrast(0.2, value_range=(0, 1), seed=seed + 2),
        ]
    )


class TwoViews(keras.Model):
    """Codes two changed copies of each image; a subclass says how alike the codes shall be."""

    def __init__(self) -> None:
        super().__init__()
        self.change, self.encoder = _augmentation(31), _encoder()
        self.predictor = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(_WIDTH)])
        self.predictor.build((None, _WIDTH))

    def loss_of(self, one: Any, other: Any) -> Any:
        raise NotImplementedError

    def train_step(self, data: Any) -> dict[str, Any]:
        images = _first(data)
        one, other = (self.change(images, training=True) for _ in range(2))
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.encoder(one, training=True), self.encoder(other, training=True))
        _apply(self.optimizer, tape, loss, self.encoder.trainable_weights + self.predictor.trainable_weights)
        return {"loss": loss}


class SimSiam(TwoViews):
    """Each view predicts the code of the other, which no gradient reaches."""

    def loss_of(self, one: Any, other: Any) -> Any:
        def likeness(seen: Any, aim: Any) -> Any:
            aim = ops.normalize(ops.stop_gradient(aim), axis=1)
            return -ops.mean(ops.sum(ops.normalize(self.predictor(seen, training=True), axis=1) * aim, axis=1))

        return (likeness(one, other) + likeness(other, one)) / 2


class BarlowTwins(TwoViews):
    """The correlations between the two codes shall be the identity matrix."""

    def loss_of(self, one: Any, other: Any) -> Any:
        codes = [self.predictor(view, training=True) for view in (one, other)]
        codes = [(code - ops.mean(code, 0)) / (ops.std(code, 0) + 1e-3) for code in codes]
        number = ops.cast(ops.shape(one)[0], "float32")
        apart = ops.square(ops.matmul(ops.transpose(codes[0]), codes[1]) / number - ops.eye(_WIDTH))
        return ops.sum(ops.where(ops.eye(_WIDTH) == 1, apart, 5e-3 * apart))


class NearestNeighbours(TwoViews):
    """Each code is told from others by its nearest one in a queue of earlier codes, which every step moves on."""

    def __init__(self) -> None:
        super().__init__()
        start = keras.initializers.RandomNormal(seed=32)
        self.queue = self.add_weight(shape=(512, _WIDTH), initializer=start, trainable=False)

    def loss_of(self, one: Any, other: Any) -> Any:
        one, other = (ops.normalize(self.predictor(view, training=True), axis=1) for view in (one, other))
        own = ops.arange(ops.shape(one)[0])
        losses = []
        for left, right in ((one, other), (other, one)):
            nearest = ops.take(self.queue, ops.argmax(ops.matmul(left, ops.transpose(self.queue)), axis=1), axis=0)
            near = left + ops.stop_gradient(nearest - left)
            alike = ops.matmul(near, ops.transpose(right)) / 0.1
            losses.append(ops.sparse_categorical_crossentropy(own, alike, from_logits=True))
        self.queue.assign(ops.concatenate([ops.stop_gradient(one), self.queue[: -ops.shape(one)[0]]], axis=0))
        return ops.mean(losses[0] + losses[1])


class MomentumEncoder(TwoViews):
    """Predicts the codes of a second encoder, which follows the first one slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = keras.models.clone_model(self.encoder)
        self.slow.set_weights(self.encoder.get_weights())
        self.slow.trainable = False

    def train_step(self, data: Any) -> dict[str, Any]:
        images = _first(data)
        one, other = (self.change(images, training=True) for _ in range(2))
        aim = ops.normalize(self.slow(other, training=False), axis=1)
        with tf.GradientTape() as tape:
            seen = ops.normalize(self.predictor(self.encoder(one, training=True), training=True), axis=1)
            loss = ops.mean(2 - 2 * ops.sum(seen * aim, axis=1))
        _apply(self.optimizer, tape, loss, self.encoder.trainable_weights + self.predictor.trainable_weights)
        for slow, fast in zip(self.slow.weights, self.encoder.weights, strict=True):
            slow.assign(0.99 * slow + 0.01 * fast)
        return {"loss": loss}


def _compiled_views(model: TwoViews) -> keras.Model:
    model.compile(keras.optimizers.SGD(0.03, momentum=0.9))
    return model


def build_sim_siam() -> keras.Model:
    return _compiled_views(SimSiam())


def build_barlow_twins() -> keras.Model:
    return _compiled_views(BarlowTwins())


def build_nearest_neighbours() -> keras.Model:
    return _compiled_views(NearestNeighbours())


def build_momentum_encoder() -> keras.Model:
    return _compiled_views(MomentumEncoder())


def _views(random: np.random.Generator, rows: int) -> Arrays:
    return (random.random((rows, *_IMAGE), dtype="float32"),)


class Triplets(keras.Model):
    """Draws an image nearer to one of its kind than to another."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()

    def call(self, images: Any, training: bool = False) -> Any:
        anchor, same, other = (self.encoder(part, training=training) for part in images)
        return ops.sum((anchor - same) ** 2, -1), ops.sum((anchor - other) ** 2, -1)

    def train_step(self, data: Any) -> dict[str, Any]:
        images, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            near, far = self(images, training=True)
            loss = ops.mean(ops.maximum(near - far + 0.5, 0.0))
        _apply(self.optimizer, tape, loss, self.encoder.trainable_weights)
        return {"loss": loss}


def build_triplets() -> keras.Model:
    model = Triplets()
    model.compile(keras.optimizers.Adam(1e-4))
    return model


def _threes(random: np.random.Generator, rows: int) -> Arrays:
    return (tuple(random.random((rows, *_IMAGE), dtype="float32") for _ in range(3)),)


class Metric(keras.Model):
    """Compares all anchors with all positives of a batch; the compiled loss is called in the training step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()

    def train_step(self, data: Any) -> dict[str, Any]:
        (anchors, positives), _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            codes = [ops.normalize(self.encoder(part, training=True), axis=-1) for part in (anchors, positives)]
            alike = ops.einsum("ae,pe->ap", *codes) / 0.2
            loss = self.compute_loss(y=ops.arange(ops.shape(alike)[0]), y_pred=alike)
        _apply(self.optimizer, tape, loss, self.encoder.trainable_weights)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else None
        return {"loss": loss}


def build_metric() -> keras.Model:
    model = Metric()
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _anchors(random: np.random.Generator, rows: int) -> Arrays:
    anchors = random.random((rows, *_IMAGE), dtype="float32")
    return ((anchors, anchors[::-1].copy()),)


class PenalizedGan(keras.Model):
    """The critic learns twice a step, with a penalty on the gradient of its answer with respect to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = _painter(), _critic()
        self.seeds = keras.random.SeedGenerator(33)

    def compile(self, generator_optimizer: Any, critic_optimizer: Any) -> None:
        super().compile(optimizer=generator_optimizer)
        self.critic_optimizer = critic_optimizer

    def _noise(self, rows: Any) -> Any:
        return keras.random.normal((rows, 32), seed=self.seeds)

    def _penalty(self, real: Any, made: Any) -> Any:
        share = keras.random.uniform((tf.shape(real)[0], 1, 1, 1), seed=self.seeds)
        between = real + share * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            answer = self.critic(between, training=True)
        steepness = tf.sqrt(tf.reduce_sum(tape.gradient(answer, between) ** 2, axis=(1, 2, 3)) + 1e-12)
        return 10 * tf.reduce_mean((steepness - 1) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        real = _first(data)
        for _ in range(2):
            with tf.GradientTape() as tape:
                made = self.generator(self._noise(tf.shape(real)[0]), training=True)
                apart = tf.reduce_mean(self.critic(made, training=True)) - tf.reduce_mean(
                    self.critic(real, training=True)
                )
                critic_loss = apart + self._penalty(real, made)
            _apply(self.critic_optimizer, tape, critic_loss, self.critic.trainable_variables)
        with tf.GradientTape() as tape:
            made = self.generator(self._noise(tf.shape(real)[0]), training=True)
            loss = -tf.reduce_mean(self.critic(made, training=True))
        _apply(self.optimizer, tape, loss, self.generator.trainable_variables)
        return {"loss": loss, "critic_loss": critic_loss}


def _painter() -> keras.Model:
    noise = keras.Input((32,))
    hidden = layers.Reshape((8, 8, 48))(layers.Dense(8 * 8 * 48, use_bias=False)(noise))
    for filters in (48, 24):
        hidden = layers.Conv2D(filters, 3, padding="same", use_bias=False)(layers.UpSampling2D()(hidden))
        hidden = layers.LeakyReLU(0.2)(layers.BatchNormalization()(hidden))
    return keras.Model(noise, layers.Conv2D(3, 3, padding="same", activation="tanh")(hidden))


def _critic() -> keras.Model:
    images = hidden = keras.Input(_IMAGE)
    for filters in (24, 48):
        hidden = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 5, strides=2, padding="same")(hidden))
    return keras.Model(images, layers.Dense(1)(layers.Dropout(0.3)(layers.Flatten()(hidden))))


def build_penalized_gan() -> keras.Model:
    model = PenalizedGan()
    model.compile(*(keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9) for _ in range(2)))
    return model


class Cycle(keras.Model):
    """Two generators turn images of one kind to the other and back; one persistent tape serves four networks."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = _translator(), _translator()
        self.judges = [_patch_judge(), _patch_judge()]

    def compile(self, optimizers: list[Any]) -> None:
        super().compile(optimizer=optimizers[0])
        self.others = optimizers[1:]

    def train_step(self, data: Any) -> dict[str, Any]:
        (horses, zebras), _, _ = keras.utils.unpack_x_y_sample_weight(data)
        first, second = self.judges
        with tf.GradientTape(persistent=True) as tape:
            made_zebras, made_horses = self.there(horses, training=True), self.back(zebras, training=True)
            cycled = self.back(made_zebras, training=True), self.there(made_horses, training=True)
            same = self.back(horses, training=True), self.there(zebras, training=True)
            answers = first(made_horses, training=True), second(made_zebras, training=True)
            kept = [
                tf.reduce_mean(tf.abs(real - each)) for real, each in zip((horses, zebras), cycled, strict=True)
            ] + [0.5 * tf.reduce_mean(tf.abs(real - each)) for real, each in zip((horses, zebras), same, strict=True)]
            cycle = 10 * tf.add_n(kept)
            losses = [tf.reduce_mean((1 - answers[1]) ** 2) + cycle, tf.reduce_mean((1 - answers[0]) ** 2) + cycle]
            for judge, real, made in zip(self.judges, (horses, zebras), answers, strict=True):
                told = tf.reduce_mean((1 - judge(real, training=True)) ** 2) + tf.reduce_mean(made**2)
                losses.append(0.5 * told)
        networks = (self.there, self.back, *self.judges)
        gradients = [tape.gradient(loss, part.trainable_variables) for loss, part in zip(losses, networks, strict=True)]
        del tape
        for found, part, optimizer in zip(gradients, networks, (self.optimizer, *self.others), strict=True):
            optimizer.apply_gradients(zip(found, part.trainable_variables, strict=True))
        return {"loss": losses[0], "back_loss": losses[1]}


def _translator() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = layers.Conv2D(16, 5, padding="same", activation="relu")(images)
    hidden = layers.Conv2D(32, 3, strides=2, padding="same")(hidden)
    for _ in range(2):
        branch = layers.ReLU()(layers.GroupNormalization(groups=-1)(hidden))
        hidden = layers.Add()([hidden, layers.Conv2D(32, 3, padding="same")(branch)])
    hidden = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(hidden)
    return keras.Model(images, layers.Conv2D(3, 5, padding="same", activation="tanh")(hidden))


def _patch_judge() -> keras.Model:
    images = keras.Input(_IMAGE)
    hidden = layers.LeakyReLU(0.2)(layers.Conv2D(24, 4, strides=2, padding="same")(images))
    hidden = layers.LeakyReLU(0.2)(layers.GroupNormalization(groups=-1)(layers.Conv2D(32, 4, padding="same")(hidden)))
    return keras.Model(images, layers.Conv2D(1, 4, padding="same")(hidden))


def build_cycle() -> keras.Model:
    model = Cycle()
    model.compile([keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(4)])
    return model


def _image_pairs(random: np.random.Generator, rows: int) -> Arrays:
    return (tuple(random.random((rows, *_IMAGE), dtype="float32") for _ in range(2)),)


class Diffusion(keras.Model):
    """Learns to take noise away; a second network follows by moving averages, and images are normed first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.Normalization(mean=[0.5] * 3, variance=[0.08] * 3)
        self.norm.build((None, *_IMAGE))
        self.network, self.average = _denoiser(), _denoiser()
        self.average.set_weights(self.network.get_weights())
        self.average.trainable = False
        self.seeds = keras.random.SeedGenerator(34)
        self.noise_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.noise_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        images = self.norm(_first(data), training=True)
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        angles = keras.random.uniform((ops.shape(images)[0], 1, 1, 1), 0.3, 1.5, seed=self.seeds)
        noise_rate, signal_rate = ops.sin(angles), ops.cos(angles)
        with tf.GradientTape() as tape:
            told = self.network([signal_rate * images + noise_rate * noise, noise_rate**2], training=True)
            loss = self.compute_loss(y=noise, y_pred=told)
        _apply(self.optimizer, tape, loss, self.network.trainable_weights)
        for average, weight in zip(self.average.weights, self.network.weights, strict=True):
            average.assign(0.99 * average + 0.01 * weight)
        self.noise_loss.update_state(loss)
        return {"loss": self.noise_loss.result()}


def _denoiser() -> keras.Model:
    images, variances = keras.Input(_IMAGE), keras.Input((1, 1, 1))
    waves = ops.exp(ops.linspace(0.0, 6.0, 8)) * variances
    code = layers.UpSampling2D(32)(ops.concatenate([ops.sin(waves), ops.cos(waves)], axis=-1))
    hidden = layers.Concatenate()([layers.Conv2D(16, 1)(images), code])

    def block(hidden: Any, filters: int) -> Any:
        straight = layers.Conv2D(filters, 1)(hidden)
        branch = layers.BatchNormalization(center=False, scale=False)(hidden)
        branch = layers.Conv2D(filters, 3, padding="same", activation="swish")(branch)
        return layers.Add()([straight, layers.Conv2D(filters, 3, padding="same")(branch)])

    skipped = [hidden := block(hidden, 24), hidden := block(hidden, 24)]
    hidden = block(layers.AveragePooling2D(2)(hidden), 32)
    hidden = layers.UpSampling2D(interpolation="bilinear")(hidden)
    for skip in reversed(skipped):
        hidden = block(layers.Concatenate()([hidden, skip]), 24)
    return keras.Model([images, variances], layers.Conv2D(3, 1, kernel_initializer="zeros")(hidden))


def build_diffusion_model() -> keras.Model:
    model = Diffusion()
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), keras.losses.MeanAbsoluteError())
    return model


class MaskedConvolution(layers.Layer):
    """A convolution that reads only places before its own."""

    def __init__(self, kind: str, filters: int, kernel: int) -> None:
        super().__init__()
        self.kind, self.convolution = kind, layers.Conv2D(filters, kernel, padding="same", activation="relu")

    def build(self, shape: Any) -> None:
        self.convolution.build(shape)
        size = self.convolution.kernel.shape
        mask = np.zeros(size, "float32")
        mask[: size[0] // 2] = mask[size[0] // 2, : size[1] // 2 + (self.kind == "own")] = 1
        self.mask = mask

    def call(self, inputs: Any) -> Any:
        read = ops.conv(inputs, self.convolution.kernel * self.mask, padding="same")
        return ops.relu(read + self.convolution.bias)


def build_pixel_network() -> keras.Model:
    images = keras.Input((28, 28, 1))
    hidden = MaskedConvolution("before", 48, 7)(images)
    for _ in range(3):
        branch = layers.Conv2D(24, 1, activation="relu")(hidden)
        branch = layers.Conv2D(48, 1, activation="relu")(MaskedConvolution("own", 24, 3)(branch))
        hidden = layers.Add()([hidden, branch])
    hidden = MaskedConvolution("own", 48, 1)(hidden)
    model = keras.Model(images, layers.Conv2D(1, 1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(5e-4), "binary_crossentropy")
    return model


def _digits(random: np.random.Generator, rows: int) -> Arrays:
    images = classes(random, 2, rows, 28, 28, 1).astype("float32")
    return images, images


class Flow(keras.Model):
    """A density by couplings that can be turned back: `add_loss`-free, the loss is of the log determinants."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = tf.constant([[0.0, 1.0], [1.0, 0.0]] * 3)
        self.couplings = [_coupling() for _ in range(6)]

    def call(self, points: Any, training: bool = False) -> Any:
        log_determinant = tf.zeros(tf.shape(points)[:1])
        for number, coupling in enumerate(self.couplings):
            mask = self.masks[number]
            shift, scale = coupling(points * mask, training=training)
            shift, scale = shift * (1 - mask), scale * (1 - mask)
            points = (points - shift) * tf.exp(-scale)
            log_determinant -= tf.reduce_sum(scale, 1)
        return points, log_determinant

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            points, log_determinant = self(_first(data), training=True)
            loss = tf.reduce_mean(tf.reduce_sum(points**2, 1) / 2 - log_determinant)
            loss += tf.add_n([tf.cast(each, loss.dtype) for each in self.losses])
        _apply(self.optimizer, tape, loss, self.trainable_variables)
        return {"loss": loss}


def _coupling() -> keras.Model:
    points = keras.Input((2,))
    decayed = {"kernel_regularizer": keras.regularizers.L2(0.01), "activation": "relu"}
    heads = []
    for activation in ("linear", "tanh"):
        hidden = points
        for _ in range(3):
            hidden = layers.Dense(128, **decayed)(hidden)
        heads.append(layers.Dense(2, activation=activation)(hidden))
    return keras.Model(points, heads)


def build_flow() -> keras.Model:
    model = Flow()
    model(tf.zeros((1, 2)))
    model.compile(keras.optimizers.Adam(1e-4))
    return model


def _moons(random: np.random.Generator, rows: int) -> Arrays:
    return (normal(random, rows, 2),)


_EXAMPLES = "keras.io/examples/"
MODELS = (
    WildModel("sim_siam", "no gradient on one side", build_sim_siam, _views, 48, after=_EXAMPLES + "vision/simsiam"),
    WildModel(
        "barlow_twins",
        "correlations over the batch",
        build_barlow_twins,
        _views,
        48,
        after=_EXAMPLES + "vision/barlow_twins",
    ),
    WildModel(
        "nearest_neighbours",
        "a queue of earlier codes, assigned in the step",
        build_nearest_neighbours,
        _views,
        48,
        after=_EXAMPLES + "vision/nnclr",
    ),
    WildModel(
        "momentum_encoder",
        "weights that follow others, assigned in the step",
        build_momentum_encoder,
        _views,
        72,
        after="lightly: BYOL",
    ),
    WildModel(
        "triplets", "one network three times", build_triplets, _threes, 24, after=_EXAMPLES + "vision/siamese_network"
    ),
    WildModel(
        "metric",
        "all pairs of a batch, the compiled loss in a training step",
        build_metric,
        _anchors,
        32,
        after=_EXAMPLES + "vision/metric_learning",
    ),
    WildModel(
        "penalized_gan",
        "gradients of gradients, the critic twice a step",
        build_penalized_gan,
        _views,
        48,
        after=_EXAMPLES + "generative/wgan_gp",
    ),
    WildModel(
        "cycle",
        "four networks, four optimizers, a persistent tape",
        build_cycle,
        _image_pairs,
        40,
        after=_EXAMPLES + "generative/cyclegan",
    ),
    WildModel(
        "diffusion_model",
        "moving averages of weights, noise drawn in the step",
        build_diffusion_model,
        _views,
        32,
        after=_EXAMPLES + "generative/ddim",
    ),
    WildModel(
        "pixel_network",
        "masked kernels",
        build_pixel_network,
        _digits,
        24,
        after=_EXAMPLES + "generative/pixelcnn",
    ),
    WildModel(
        "flow",
        "couplings of two numbers a row, losses of regularizers in a training step",
        build_flow,
        _moons,
        4096,
        after=_EXAMPLES + "generative/real_nvp",
    ),
)
