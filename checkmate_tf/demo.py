"""Trains two small models on real data, stock and within memory budgets, and measures the extra time."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from checkmate_tf.measurement.step_meter import StepMeter
from checkmate_tf.reports.plan import Plan
from checkmate_tf.training.rematerialize import rematerialize, restore

# This many steps are not measured. The first one traces the step, and runs operations that run only once.
_WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Task:
    """A compiled model and its training data."""

    name: str
    model: keras.Model
    x: np.ndarray
    y: np.ndarray
    batch_size: int


@dataclass(frozen=True)
class TrainingRun:
    """One `fit` of a task, with its measurements.

    Args:
        peak_above_bytes: the most that the allocator had in use during a step, including the batch, less the bytes in
            use before.
        step_time_s: median.
        weights: after the last step, in the model's order.
    """

    peak_above_bytes: int
    step_time_s: float
    weights: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Result:
    """One model at one budget, compared with its stock step, for which `plan` is None and `budget` "stock"."""

    task: str
    budget: str
    plan: Plan | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    step_time_s: float
    weight_difference: float


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Loads 1,797 handwritten digits of 8x8 pixels from 0 to 16, and the number that each shows.

    They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine
    Learning Repository, CC BY 4.0), which is also part of scikit-learn.
    """
    with resources.files(__package__).joinpath("digits.npz").open("rb") as file, np.load(file) as digits:
        return digits["images"], digits["labels"]


def make_tasks(*, image_size: int = 64, width: int = 16, batch_size: int = 32, num_batches: int = 5) -> Iterator[Task]:
    """Makes two tasks: a U-Net-like model removes noise from a digit, and a ResNet-like one classifies the digit.

    Both see handwritten digits, enlarged from 8x8 to `image_size` (a multiple of 8).
    """
    images, labels = load_digits()
    num_images = batch_size * num_batches
    enlarge = np.ones((1, image_size // 8, image_size // 8))
    clean = np.kron(images[:num_images] / 16, enlarge)[..., np.newaxis].astype(np.float32)
    noise = np.random.default_rng(0).normal(scale=0.5, size=clean.shape)
    noisy = (clean + noise).astype(np.float32)
    ink = (clean > 0.5).astype(np.float32)
    yield Task("U-Net", _build_unet(image_size, width), noisy, ink, batch_size)
    yield Task("ResNet", _build_resnet(image_size, width), clean, labels[:num_images], batch_size)


def run_task(task: Task, budgets: Sequence[str], *, epochs: int = 2, time_limit_s: float = 20.0) -> Iterator[Result]:
    """Trains at each budget and then stock, from the same weights on the same batches. Returns the stock result first.

    Raises InfeasibleBudgetError if a budget cannot be met.
    """
    start = [variable.numpy() for variable in task.model.variables]
    runs = []
    for budget in budgets:
        _reset(task.model, start)
        plan = rematerialize(
            task.model, batch_size=task.batch_size, budget=budget, time_limit_s=time_limit_s, progress=False
        )
        runs.append((budget, plan, _train(task, start, epochs)))
        restore(task.model)
    stock = _train(task, start, epochs)
    yield _compare_with_stock(task, "stock", runs[0][1], stock, stock)
    for budget, plan, trained in runs:
        yield _compare_with_stock(task, budget, plan, trained, stock)


def _compare_with_stock(task: Task, budget: str, plan: Plan, trained: TrainingRun, stock: TrainingRun) -> Result:
    difference = max(
        float(np.abs(mine - theirs).max()) for mine, theirs in zip(trained.weights, stock.weights, strict=True)
    )
    return Result(
        task.name,
        budget,
        None if trained is stock else plan,
        plan.stock_peak_bytes if trained is stock else plan.predicted_peak_bytes,
        plan.graph.resident_bytes - plan.resident.batch + trained.peak_above_bytes,
        trained.step_time_s,
        difference,
    )


def _reset(model: keras.Model, start: Sequence[np.ndarray]) -> None:
    """Sets the weights to `start`, and clears the optimizer's state."""
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    for variable in model.optimizer.variables:
        if variable is not model.optimizer.learning_rate:
            variable.assign(keras.ops.zeros_like(variable))


def _train(task: Task, start: Sequence[np.ndarray], epochs: int) -> TrainingRun:
    _reset(task.model, start)
    meter = StepMeter()
    # Keras prefetches batches of arrays, which would count in a step's peak. A dataset avoids that.
    data = tf.data.Dataset.from_tensor_slices((task.x, task.y)).batch(task.batch_size, drop_remainder=True)
    task.model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=[meter])
    weights = tuple(variable.numpy() for variable in task.model.weights)
    return TrainingRun(
        max(meter.peaks_bytes[_WARM_UP_STEPS:]), statistics.median(meter.times_s[_WARM_UP_STEPS:]), weights
    )


def _compile(model: keras.Model, loss: str) -> keras.Model:
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss=loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    return model


def _apply_conv(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def _build_unet(image_size: int, width: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = layers.Input((image_size, image_size, 1))
    x, skips = inputs, []
    for filters in (width, 2 * width):
        x = _apply_conv(_apply_conv(x, filters), filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = _apply_conv(_apply_conv(x, 4 * width), 4 * width)
    for skip in reversed(skips):
        x = layers.Concatenate()([layers.Conv2DTranspose(skip.shape[-1], 2, strides=2)(x), skip])
        x = _apply_conv(_apply_conv(x, skip.shape[-1]), skip.shape[-1])
    outputs = layers.Conv2D(1, 1, activation="sigmoid")(x)
    return _compile(keras.Model(inputs, outputs, name="unet"), "binary_crossentropy")


def _build_resnet(image_size: int, width: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = layers.Input((image_size, image_size, 1))
    x = _apply_conv(inputs, width)
    for _ in range(5):
        inner = layers.Conv2D(width, 3, padding="same", use_bias=False)(_apply_conv(x, width))
        x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(inner)]))
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return _compile(keras.Model(inputs, outputs, name="resnet"), "sparse_categorical_crossentropy")
