"""What Keras users do, row by row: models, optimizers and ways to train."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from experiments.keras_users.compare import BATCH_SIZE, NUM_STEPS, Row, fit
from experiments.keras_users.models import (
    NUM_ROWS,
    AddsLoss,
    Branches,
    CustomGradient,
    IntegersAndBools,
    Subclassed,
    bert,
    bert_tokens,
    compiled,
    conv_net,
    decayed_sgd,
    dense_net,
    frozen,
    gan,
    image_model,
    images,
    masked,
    masked_tokens,
    mobile_net,
    one_optimizer_a_layer,
    own_step,
    random_array,
    schedule_free,
    sequences,
    several_inputs_and_outputs,
    token_model,
    tokens,
    transformer_block,
    under_policy,
    vectors,
    volumes,
)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, index: int) -> Any:
        data, rows = images(), slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return data["x"][rows], data["y"][rows]


def _generated() -> Any:
    return (Batches()[index] for index in range(NUM_STEPS))


def _dataset(*, drop_remainder: bool = False) -> tf.data.Dataset:
    data = images()
    return tf.data.Dataset.from_tensor_slices((data["x"], data["y"])).batch(BATCH_SIZE, drop_remainder=drop_remainder)


def _on_batches(model: keras.Model, data: dict[str, Any]) -> dict[str, Any]:
    logs = [model.train_on_batch(x, y, return_dict=True) for x, y in data["x"]]
    return {key: [log[key] for log in logs] for key in logs[0]}


def _with_validation(model: keras.Model, data: dict[str, Any]) -> dict[str, Any]:
    history = fit(model, data | {"validation_data": (data["x"][:12], data["y"][:12])})
    evaluated = model.evaluate(data["x"], data["y"], batch_size=5, verbose=0)
    return history | {"evaluate": evaluated, "predict": model.predict(data["x"], verbose=0)}


TRAINING = [
    Row("training loop", "arrays", conv_net, images),
    Row("training loop", "last batch of another size", conv_net, lambda: images(rows=NUM_ROWS - 3)),
    Row(
        "training loop",
        "steps_per_execution",
        lambda: conv_net(steps_per_execution=2),
        lambda: images(rows=NUM_ROWS - 3),
    ),
    Row("training loop", "sample_weight", conv_net, lambda: images() | {"sample_weight": np.linspace(0, 2, NUM_ROWS)}),
    Row(
        "training loop", "class_weight", conv_net, lambda: images() | {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}}
    ),
    Row("training loop", "masks", masked, masked_tokens, planned_data=lambda: tuple(masked_tokens().values())),
    Row("training loop", "validation_data, evaluate, predict", conv_net, images, train=_with_validation),
    Row("training loop", "tf.data", conv_net, lambda: {"x": _dataset()}),
    Row("training loop", "tf.data, drop_remainder", conv_net, lambda: {"x": _dataset(drop_remainder=True)}),
    # Without steps_per_epoch stock Keras advances seeds and the iteration once more while it finds the generator empty.
    Row("training loop", "generator", conv_net, lambda: {"x": _generated(), "steps_per_epoch": NUM_STEPS}),
    Row("training loop", "PyDataset", conv_net, lambda: {"x": Batches()}, planned_data=Batches),
    Row("training loop", "train_on_batch", conv_net, lambda: {"x": _generated()}, train=_on_batches),
]

MODELS = [
    Row(
        "models",
        "several inputs and outputs, named losses, loss_weights",
        several_inputs_and_outputs,
        lambda: {
            "x": {"image": images()["x"], "vector": vectors()["x"]},
            "y": {"label": np.arange(NUM_ROWS) % 4, "score": random_array(NUM_ROWS, 1)},
        },
    ),
    Row(
        "models",
        "add_loss, activity regularizer",
        lambda: image_model(layers.Conv2D(6, 3, activity_regularizer="l2"), AddsLoss()),
        images,
    ),
    Row(
        "models",
        "subclassed, nested, shared layers",
        lambda: compiled(Subclassed()),
        vectors,
        planned_data=lambda: tuple(vectors().values()),
    ),
    Row(
        "models",
        "BatchNormalization, synchronized",
        lambda: image_model(layers.Conv2D(6, 3), layers.BatchNormalization(synchronized=True), layers.ReLU()),
        images,
    ),
    Row(
        "models",
        "SpectralNormalization",
        lambda: image_model(layers.SpectralNormalization(layers.Conv2D(6, 3, activation="tanh"))),
        images,
    ),
    Row(
        "models",
        "GaussianNoise, SpatialDropout, data augmentation",
        lambda: image_model(
            layers.RandomFlip(), layers.GaussianNoise(0.1), layers.Conv2D(6, 3), layers.SpatialDropout2D(0.2)
        ),
        images,
    ),
    Row("models", "SimpleRNN", lambda: token_model(layers.SimpleRNN(6)), tokens),
    Row("models", "LSTM", lambda: token_model(layers.LSTM(6, return_sequences=True), layers.LSTM(6)), tokens),
    Row("models", "GRU, Bidirectional", lambda: token_model(layers.Bidirectional(layers.GRU(6))), tokens),
    Row("models", "Embedding (IndexedSlices)", lambda: token_model(layers.Flatten(), layers.Dense(8, "tanh")), tokens),
    Row("models", "transformer block", transformer_block, tokens),
    Row(
        "models",
        "tf.cond, tf.map_fn, einsum",
        lambda: compiled(
            keras.Sequential(
                [keras.Input((8,)), layers.Dense(6), Branches(), layers.Flatten(), layers.Dense(4, "softmax")]
            )
        ),
        vectors,
    ),
    Row(
        "models",
        "custom_gradient, integer and bool tensors",
        lambda: compiled(
            keras.Sequential(
                [keras.Input((8,)), layers.Dense(6), CustomGradient(), IntegersAndBools(), layers.Dense(4, "softmax")]
            )
        ),
        vectors,
    ),
    Row(
        "models",
        "Conv1D, transposed, separable",
        sequences,
        lambda: {"x": random_array(NUM_ROWS, 8, 3), "y": np.arange(NUM_ROWS) % 4},
    ),
    Row(
        "models",
        "Conv2D transposed, depthwise, separable, grouped",
        lambda: image_model(
            layers.Conv2DTranspose(6, 3, activation="tanh"),
            layers.DepthwiseConv2D(3, activation="tanh"),
            layers.SeparableConv2D(6, 3, activation="tanh"),
            layers.Conv2D(6, 3, groups=2, activation="tanh"),
        ),
        images,
    ),
    Row(
        "models",
        "Conv3D, transposed",
        volumes,
        lambda: {"x": random_array(NUM_ROWS, 4, 4, 4, 2), "y": np.arange(NUM_ROWS) % 4},
    ),
    Row(
        "models",
        "LayerNormalization, GroupNormalization, UnitNormalization",
        lambda: image_model(
            layers.Conv2D(6, 3), layers.LayerNormalization(), layers.GroupNormalization(3), layers.UnitNormalization()
        ),
        images,
    ),
    # In float32 five steps amplify a difference in the last bit to one of everything (experiments/numbers/rounding.py).
    Row(
        "models",
        "keras.applications.MobileNet, float64",
        mobile_net,
        lambda: {"x": random_array(NUM_ROWS, 32, 32, 3).astype("float64"), "y": np.arange(NUM_ROWS) % 4},
        precision="float64",
    ),
    Row(
        "models",
        "keras-hub: BERT",
        bert,
        bert_tokens,
        planned_data=lambda: tuple(bert_tokens().values()),
        package="keras_hub",
    ),
]

# Adaptive optimizers divide by the size of the gradient: rounding of near-zero gradients becomes a full step.
_ADAPTIVE = 1e-3
OPTIMIZERS = [
    Row("optimizers", name, lambda optimizer=optimizer: dense_net(optimizer()), vectors, tolerance=tolerance)
    for name, optimizer, tolerance in [
        ("SGD, nesterov", lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), 1e-5),
        ("SGD, weight_decay", lambda: keras.optimizers.SGD(0.05, weight_decay=0.01), 1e-5),
        ("learning-rate schedule", decayed_sgd, 1e-5),
        ("clipnorm", lambda: keras.optimizers.SGD(0.05, clipnorm=0.01), 1e-5),
        ("clipvalue", lambda: keras.optimizers.SGD(0.05, clipvalue=0.01), 1e-5),
        ("global_clipnorm", lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.01), 1e-5),
        ("EMA", lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2), 1e-5),
        ("gradient accumulation", lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), 1e-5),
        ("MultiOptimizer", one_optimizer_a_layer, 1e-5),
        ("LossScaleOptimizer", lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), 1e-5),
        *(
            (name, getattr(keras.optimizers, name), _ADAPTIVE)
            for name in (
                "RMSprop",
                "Adam",
                "AdamW",
                "Adadelta",
                "Adagrad",
                "Adamax",
                "Adafactor",
                "Nadam",
                "Ftrl",
                "Lion",
                "Lamb",
                "Muon",
            )
        ),
    ]
]
OPTIMIZERS += [
    Row("optimizers", "ScheduleFreeAdamW", schedule_free, vectors, tolerance=_ADAPTIVE),
    Row("optimizers", "mixed_float16", lambda: under_policy("mixed_float16"), images, tolerance=2e-2),
    Row("optimizers", "mixed_bfloat16", lambda: under_policy("mixed_bfloat16"), images, tolerance=1e-1),
    Row("optimizers", "frozen layers", frozen, images),
]

CUSTOM = [
    Row("custom training", "own train_step", own_step, images),
    Row(
        "custom training",
        "own train_step with two optimizers (GAN), measured",
        gan,
        vectors,
        planned_data=lambda: tuple(vectors().values()),
        measure=True,
    ),
]

ROWS = TRAINING + MODELS + OPTIMIZERS + CUSTOM
