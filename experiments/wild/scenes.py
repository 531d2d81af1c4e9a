"""Models after public examples that say something of each place: boxes, masks, points, better images, volumes."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, classes, compile_classifier, normal


def _normed_convolution(hidden: Any, filters: int, kernel: int = 3, **settings: Any) -> Any:
    hidden = layers.Conv2D(filters, kernel, padding="same", use_bias=False, **settings)(hidden)
    return layers.ReLU()(layers.BatchNormalization()(hidden))


def build_deeplab() -> keras.Model:
    images = keras.Input((64, 64, 3))
    shallow = _normed_convolution(_normed_convolution(images, 24, strides=2), 24)
    deep = _normed_convolution(shallow, 48, strides=2)
    pooled = layers.AveragePooling2D(deep.shape[1:3])(deep)
    pooled = layers.UpSampling2D(deep.shape[1:3], interpolation="bilinear")(_normed_convolution(pooled, 32, 1))
    dilated = [_normed_convolution(deep, 32, 1 if rate == 1 else 3, dilation_rate=rate) for rate in (1, 2, 4, 6)]
    joined = _normed_convolution(layers.Concatenate()([pooled, *dilated]), 32, 1)
    joined = layers.UpSampling2D(2, interpolation="bilinear")(joined)
    hidden = layers.Concatenate()([joined, _normed_convolution(shallow, 16, 1)])
    hidden = _normed_convolution(_normed_convolution(hidden, 32), 32)
    hidden = layers.UpSampling2D(2, interpolation="bilinear")(hidden)
    return compile_classifier(keras.Model(images, layers.Conv2D(6, 1)(hidden)))


def _masks(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 64, 64, 3), classes(random, 6, rows, 64, 64)


class FocalLoss(keras.losses.Loss):
    """Weighs down boxes that are told apart already; targets of -1 are left out."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true = ops.squeeze(y_true, -1) if len(y_true.shape) == 3 else y_true
        wanted = ops.one_hot(ops.maximum(ops.cast(y_true, "int32"), 0), y_pred.shape[-1])
        entropy = ops.binary_crossentropy(wanted, y_pred, from_logits=True)
        chance = ops.sigmoid(y_pred)
        chance = ops.where(wanted == 1, chance, 1 - chance)
        each = ops.sum((1 - chance) ** 2 * entropy, axis=-1)
        return ops.sum(ops.where(y_true < 0, 0.0, each), axis=-1)


class BoxLoss(keras.losses.Loss):
    """The absolute difference, squared where it is small."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        apart = ops.abs(y_true - y_pred)
        return ops.sum(ops.where(apart < 1, 0.5 * apart**2, apart - 0.5), axis=(1, 2))


_NUM_BOXES = 9 * (16**2 + 8**2)


def build_detector() -> keras.Model:
    images = keras.Input((64, 64, 3))
    fine = _normed_convolution(_normed_convolution(images, 32, strides=2), 48, strides=2)
    coarse = _normed_convolution(fine, 64, strides=2)
    top = layers.Conv2D(48, 1)(coarse)
    levels = (layers.Add()([layers.Conv2D(48, 1)(fine), layers.UpSampling2D(2)(top)]), top)

    def head(outputs: int) -> keras.Sequential:
        within = [layers.Conv2D(48, 3, padding="same", activation="relu") for _ in range(3)]
        return keras.Sequential([keras.Input((None, None, 48)), *within, layers.Conv2D(9 * outputs, 3, padding="same")])

    heads = {"kind": (head(8), 8), "box": (head(4), 4)}
    outputs = {
        name: layers.Concatenate(axis=1, name=name)([layers.Reshape((-1, size))(part(level)) for level in levels])
        for name, (part, size) in heads.items()
    }
    model = keras.Model(images, outputs)
    optimizer = keras.optimizers.SGD(1e-4, momentum=0.9, clipnorm=10.0)
    model.compile(optimizer, {"kind": FocalLoss(), "box": BoxLoss()})
    return model


def _boxes(random: np.random.Generator, rows: int) -> Arrays:
    targets = {
        "kind": (classes(random, 9, rows, _NUM_BOXES) - 1).astype("float32"),
        "box": normal(random, rows, _NUM_BOXES, 4),
    }
    return normal(random, rows, 64, 64, 3), targets


def build_keypoints() -> keras.Model:
    images = hidden = keras.Input((96, 96, 3))
    hidden = layers.Rescaling(1 / 127.5, offset=-1)(hidden)
    for filters in (24, 32, 48):
        for strides in (1, 2):
            hidden = layers.SeparableConv2D(filters, 3, strides=strides, padding="same", use_bias=False)(hidden)
            hidden = layers.ReLU(max_value=6)(layers.BatchNormalization()(hidden))
    hidden = layers.SeparableConv2D(48, 12, activation="relu")(layers.Dropout(0.3)(hidden))
    model = keras.Model(images, layers.Reshape((1, 1, 48))(layers.Dense(48, activation="sigmoid")(hidden)))
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


def _points(random: np.random.Generator, rows: int) -> Arrays:
    return classes(random, 256, rows, 96, 96, 3).astype("uint8"), random.random((rows, 1, 1, 48))


def build_super_resolution() -> keras.Model:
    images = keras.Input((None, None, 1))
    hidden = layers.Conv2D(48, 5, padding="same", activation="relu")(images)
    for _ in range(3):  # dense blocks: each reads all before it
        before = [hidden]
        for _ in range(2):
            joined = layers.Concatenate()(before) if len(before) > 1 else before[0]
            before.append(layers.Conv2D(16, 3, padding="same", activation="relu")(joined))
        hidden = layers.Add()([hidden, layers.Conv2D(48, 1)(layers.Concatenate()(before))])
    fine = layers.Conv2D(9, 3, padding="same")(hidden)
    model = keras.Model(images, layers.Lambda(lambda each: tf.nn.depth_to_space(each, 3))(fine))
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def _coarse_and_fine(random: np.random.Generator, rows: int) -> Arrays:
    return random.random((rows, 40, 40, 1), dtype="float32"), random.random((rows, 120, 120, 1), dtype="float32")


def _charbonnier(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.sqrt((y_true - y_pred) ** 2 + 1e-6))


def build_low_light() -> keras.Model:
    """Two resolutions that are joined by shares which their sum chooses, with attention to channels and places."""
    images = keras.Input((64, 64, 3))
    hidden = layers.Conv2D(24, 3, padding="same")(images)
    for _ in range(2):
        coarse = layers.Conv2D(24, 3, padding="same", activation="relu")(layers.MaxPooling2D()(hidden))
        streams = [layers.Conv2D(24, 3, padding="same", activation="relu")(hidden), layers.UpSampling2D()(coarse)]
        squeezed = layers.GlobalAveragePooling2D(keepdims=True)(layers.Add()(streams))
        squeezed = layers.Conv2D(8, 1, activation="relu")(squeezed)
        shares = [layers.Conv2D(24, 1, activation="softmax")(squeezed) for _ in streams]
        joined = layers.Add()([layers.Multiply()(pair) for pair in zip(streams, shares, strict=True)])
        places = ops.concatenate([ops.max(joined, -1, keepdims=True), ops.mean(joined, -1, keepdims=True)], axis=-1)
        attended = layers.Multiply()([joined, layers.Conv2D(1, 1, activation="sigmoid")(places)])
        hidden = layers.Add()([hidden, layers.Conv2D(24, 3, padding="same")(attended)])
    model = keras.Model(images, layers.Add()([images, layers.Conv2D(3, 3, padding="same")(hidden)]))
    model.compile(keras.optimizers.Adam(1e-4), _charbonnier, metrics=["mae"])
    return model


def _dark_and_bright(random: np.random.Generator, rows: int) -> Arrays:
    bright = random.random((rows, 64, 64, 3), dtype="float32")
    return bright / 4, bright


class LightCurves(keras.Model):
    """Brightens an image by eight curves a place, from losses that need no brighter image."""

    def __init__(self) -> None:
        super().__init__()
        images = keras.Input((96, 96, 3))
        found = [images]
        for _ in range(4):
            found.append(layers.Conv2D(24, 3, padding="same", activation="relu")(found[-1]))
        for other in (3, 2):
            joined = layers.Concatenate()([found[-1], found[other]])
            found.append(layers.Conv2D(24, 3, padding="same", activation="relu")(joined))
        self.curves = keras.Model(images, layers.Conv2D(24, 3, padding="same", activation="tanh")(found[-1]))

    def compute_losses(self, images: Any, curves: Any) -> dict[str, Any]:
        bright = images
        for curve in tf.split(curves, 8, axis=-1):
            bright = bright + curve * (bright**2 - bright)
        means = tf.reduce_mean(bright, (1, 2))
        exposure = tf.nn.avg_pool2d(tf.reduce_mean(bright, -1, keepdims=True), 16, 16, "VALID")
        rough = [tf.reduce_mean((curves[:, 1:] - curves[:, :-1]) ** 2)]
        rough.append(tf.reduce_mean((curves[:, :, 1:] - curves[:, :, :-1]) ** 2))
        return {
            "colour": 5 * tf.reduce_mean((means - tf.roll(means, 1, -1)) ** 2),
            "exposure": 10 * tf.reduce_mean((exposure - 0.6) ** 2),
            "smoothness": 200 * tf.add_n(rough),
        }

    def train_step(self, data: Any) -> dict[str, Any]:
        images = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            losses = self.compute_losses(images, self.curves(images, training=True))
            loss = tf.add_n(list(losses.values()))
        weights = self.curves.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss, **losses}


def build_light_curves() -> keras.Model:
    model = LightCurves()
    model.compile(keras.optimizers.Adam(1e-4))
    return model


def _dark(random: np.random.Generator, rows: int) -> Arrays:
    return (random.random((rows, 96, 96, 3), dtype="float32") / 4,)


def build_scans() -> keras.Model:
    volumes = hidden = keras.Input((40, 40, 24, 1))
    for filters in (16, 16, 32):
        hidden = layers.Conv3D(filters, 3, activation="relu")(hidden)
        hidden = layers.BatchNormalization()(layers.MaxPooling3D(2 if filters < 32 else 1)(hidden))
    hidden = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling3D()(hidden))
    model = keras.Model(volumes, layers.Dense(1, activation="sigmoid")(layers.Dropout(0.3)(hidden)))
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.96, staircase=True)
    model.compile(keras.optimizers.Adam(schedule), "binary_crossentropy", metrics=["accuracy"])
    return model


def _volumes(random: np.random.Generator, rows: int) -> Arrays:
    return random.random((rows, 40, 40, 24, 1), dtype="float32"), classes(random, 2, rows, 1)


class NearOrthogonal(keras.regularizers.Regularizer):
    """Draws square matrices towards those that turn only."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, matrices: Any) -> Any:
        square = ops.reshape(matrices, (-1, self.size, self.size))
        products = ops.matmul(square, ops.transpose(square, (0, 2, 1)))
        return 1e-3 * ops.sum((products - ops.eye(self.size)) ** 2)


def _turned(points: Any, size: int) -> Any:
    """Multiplies each cloud of points by a matrix that is made from it."""
    hidden = points
    for filters in (32, 64):
        hidden = layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(filters, 1)(hidden)))
    hidden = layers.Dense(64, activation="relu")(layers.GlobalMaxPooling1D()(hidden))
    matrix = layers.Dense(
        size**2,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(size).flatten()),
        activity_regularizer=NearOrthogonal(size),
    )(hidden)
    return layers.Dot(axes=(2, 1))([points, layers.Reshape((size, size))(matrix)])


def build_point_segments() -> keras.Model:
    points = keras.Input((512, 3))
    found = [_turned(points, 3)]
    for filters in (32, 64, 64):
        found.append(layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(filters, 1)(found[-1]))))
    found.append(_turned(found[-1], 64))
    whole = layers.GlobalMaxPooling1D()(layers.Conv1D(512, 1, activation="relu")(found[-1]))
    found.append(layers.RepeatVector(512)(whole))
    hidden = layers.Conv1D(64, 1, activation="relu")(layers.Concatenate()(found))
    model = keras.Model(points, layers.Conv1D(5, 1, activation="softmax")(hidden))
    model.compile(keras.optimizers.Adam(1e-3), "categorical_crossentropy", metrics=["accuracy"])
    return model


def _clouds(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 512, 3), np.eye(5, dtype="float32")[classes(random, 5, rows, 512)]


class RadianceField(keras.Model):
    """Renders rays: colours and densities along each are summed by how much light comes through."""

    num_samples = 24

    def __init__(self) -> None:
        super().__init__()
        encoded = hidden = keras.Input((None, 27))
        for number in range(5):
            hidden = layers.Dense(64, activation="relu")(hidden)
            if number == 2:
                hidden = layers.Concatenate()([hidden, encoded])
        self.field = keras.Model(encoded, layers.Dense(4)(hidden))
        self.depths = tf.linspace(2.0, 6.0, self.num_samples)
        self.seeds = keras.random.SeedGenerator(21)

    def call(self, rays: Any, training: bool = False) -> Any:
        """Colours [rows, rays, 3] of rays [rows, rays, 6]."""
        origins, directions = rays[..., None, :3], rays[..., None, 3:]
        shift = keras.random.uniform((*tf.unstack(tf.shape(rays)[:2]), self.num_samples), seed=self.seeds)
        depths = self.depths + shift * 4 / self.num_samples
        points = origins + directions * depths[..., None]
        waves = [points]
        for power in range(4):
            waves += [tf.sin(2.0**power * points), tf.cos(2.0**power * points)]
        flat = tf.reshape(tf.concat(waves, -1), (tf.shape(rays)[0], -1, 27))
        found = tf.reshape(self.field(flat, training=training), (*tf.unstack(tf.shape(depths)), 4))
        gaps = tf.concat([depths[..., 1:] - depths[..., :-1], tf.fill(tf.shape(depths[..., :1]), 1e3)], -1)
        opaque = 1 - tf.exp(-tf.nn.relu(found[..., 3]) * gaps)
        shares = opaque * tf.math.cumprod(1 - opaque + 1e-10, axis=-1, exclusive=True)
        return tf.reduce_sum(shares[..., None] * tf.sigmoid(found[..., :3]), axis=-2)

    def train_step(self, data: Any) -> dict[str, Any]:
        rays, colours, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(rays, training=True) - colours) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss, "psnr": -10 * tf.math.log(loss) / tf.math.log(10.0)}


def build_radiance_field() -> keras.Model:
    model = RadianceField()
    model(tf.zeros((1, 4, 6)))
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def _rays(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 256, 6), random.random((rows, 256, 3), dtype="float32")


def build_next_frames() -> keras.Model:
    frames = hidden = keras.Input((6, 32, 32, 1))
    for kernel in (5, 3):
        hidden = layers.ConvLSTM2D(12, kernel, padding="same", return_sequences=True, activation="relu")(hidden)
        hidden = layers.BatchNormalization()(hidden)
    model = keras.Model(frames, layers.Conv3D(1, 3, padding="same", activation="sigmoid")(hidden))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "binary_crossentropy")
    return model


def _films(random: np.random.Generator, rows: int) -> Arrays:
    frames = random.random((rows, 7, 32, 32, 1), dtype="float32")
    return frames[:, :-1], frames[:, 1:]


def build_video_classes() -> keras.Model:
    """Frames are coded each by itself, then read in turn; a mask says which ones are there."""
    frames, there = keras.Input((10, 48, 48, 3), name="frames"), keras.Input((10,), dtype="bool", name="there")
    coder = keras.Sequential([keras.Input((48, 48, 3))])
    for filters in (16, 32, 48):
        coder.add(layers.Conv2D(filters, 3, strides=2 if filters > 16 else 1, padding="same", activation="relu"))
        coder.add(layers.LayerNormalization())
    coder.add(layers.GlobalAveragePooling2D())
    hidden = layers.GRU(64, return_sequences=True)(layers.TimeDistributed(coder)(frames), mask=there)
    hidden = layers.GRU(32)(hidden)
    hidden = layers.Dropout(0.4)(hidden)
    return compile_classifier(keras.Model({"frames": frames, "there": there}, layers.Dense(5)(hidden)))


def _masked_films(random: np.random.Generator, rows: int) -> Arrays:
    there = np.arange(10) < random.integers(4, 11, size=(rows, 1))
    return {"frames": normal(random, rows, 10, 48, 48, 3), "there": there}, classes(random, 5, rows)


_VISION = "keras.io/examples/vision/"
MODELS = (
    WildModel(
        "deeplab",
        "dilated convolutions, bilinear resizing, a class for each pixel",
        build_deeplab,
        _masks,
        16,
        "batch_size",
        after=_VISION + "deeplabv3_plus",
    ),
    WildModel(
        "detector",
        "heads shared by levels, dict targets, losses of classes, clipnorm",
        build_detector,
        _boxes,
        32,
        after=_VISION + "retinanet",
    ),
    WildModel(
        "keypoints",
        "images of bytes, separable convolutions, points in float64",
        build_keypoints,
        _points,
        12,
        after=_VISION + "keypoint_detection",
    ),
    WildModel(
        "super_resolution",
        "open height and width, dense blocks, depth to space in a Lambda",
        build_super_resolution,
        _coarse_and_fine,
        12,
        after=_VISION + "super_resolution_sub_pixel and edsr",
    ),
    WildModel(
        "low_light",
        "two resolutions, softmax gates, a loss of its own",
        build_low_light,
        _dark_and_bright,
        12,
        after=_VISION + "mirnet",
    ),
    WildModel(
        "light_curves",
        "three losses without labels, curves applied eight times",
        build_light_curves,
        _dark,
        6,
        after=_VISION + "zero_dce",
    ),
    WildModel(
        "scans",
        "3D convolutions and pooling, a schedule of rates",
        build_scans,
        _volumes,
        8,
        after=_VISION + "3D_image_classification",
    ),
    WildModel(
        "point_segments",
        "matrices made for each cloud, activity regularizers",
        build_point_segments,
        _clouds,
        16,
        after=_VISION + "pointnet_segmentation",
    ),
    WildModel(
        "radiance_field",
        "random depths, exclusive cumulative products",
        build_radiance_field,
        _rays,
        4,
        after=_VISION + "nerf",
    ),
    WildModel(
        "next_frames",
        "convolutions in a loop",
        build_next_frames,
        _films,
        12,
        after=_VISION + "conv_lstm",
    ),
    WildModel(
        "video_classes",
        "frames coded by a model inside, then read by masked loops",
        build_video_classes,
        _masked_films,
        8,
        after=_VISION + "video_classification",
    ),
)
