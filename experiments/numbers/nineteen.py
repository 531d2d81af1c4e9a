"""Nineteen architectures, emitted and run: do stock, identity and rematerialized steps agree?

    python -m experiments.numbers.nineteen [--only NAME ...]

Each small model in a process of its own. `identity` follows the input order, node after node; `rematerialized` repeats
three in four forward nodes. Differences from stock are the largest over gradients, loss, predictions and the
state after the step, relative to each tensor's largest entry; gradients below 1e-5 of the largest one are rounding
and left out. A step that differs from its own repetition (`stock again`) cannot be compared closer than that.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "nineteen.csv"
BATCH_SIZE = 8
_DIFFERENCES = ("stock_again", "identity", "rematerialized")
COLUMNS = ("name", "batch_size", "ops", "nodes", "copied_ops", "control_edges", *_DIFFERENCES, "seed")
_APPLICATIONS = {
    "MobileNetV2": 64,
    "ResNet50": 64,
    "DenseNet121": 64,
    "EfficientNetB0": 64,
    "InceptionV3": 96,
    "Xception": 96,
    "NASNetMobile": 64,
    "ConvNeXtTiny": 64,
    "VGG16": 64,
}


def image_net(body: Callable[[Any], Any], *, channels: int = 3, size: int = 32, volume: bool = False) -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((size, size, size, channels) if volume else (size, size, channels))
    hidden = body(inputs)
    pooled = (layers.GlobalAveragePooling3D if volume else layers.GlobalAveragePooling2D)()(hidden)
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(pooled))


def token_net(body: Callable[[Any], Any]) -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((32,), dtype="int32")
    hidden = body(layers.Embedding(10, 32)(inputs))
    return keras.Model(inputs, layers.Dense(10)(hidden))


def _unit(hidden: Any, channels: int, **options: Any) -> Any:
    from keras import layers

    hidden = layers.Conv2D(channels, 3, padding="same", **options)(hidden)
    return layers.ReLU(**{k: v for k, v in options.items() if k == "dtype"})(
        layers.BatchNormalization(**{k: v for k, v in options.items() if k == "dtype"})(hidden)
    )


def _unet(hidden: Any) -> Any:
    from keras import layers

    first = _unit(hidden, 16)
    second = _unit(layers.MaxPooling2D()(first), 32)
    hidden = _unit(layers.MaxPooling2D()(second), 48)
    hidden = _unit(layers.Concatenate()([layers.UpSampling2D()(hidden), second]), 32)
    return _unit(layers.Concatenate()([layers.Conv2DTranspose(16, 2, strides=2)(hidden), first]), 16)


def _transformer(hidden: Any) -> Any:
    from keras import layers

    for _ in range(2):
        hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 16)(hidden, hidden))
        hidden = layers.LayerNormalization()(hidden + layers.Dense(32)(layers.Dense(64, activation="gelu")(hidden)))
    return layers.GlobalAveragePooling1D()(hidden)


def _regularized(hidden: Any) -> Any:
    from keras import layers

    for _ in range(3):
        hidden = layers.Dropout(0.3)(_unit(hidden, 16, kernel_regularizer="l2"))
    return hidden


def _half(dtype: str) -> Callable[[Any], Any]:
    return lambda hidden: _unit(_unit(_unit(hidden, 16, dtype=dtype), 16, dtype=dtype), 16, dtype=dtype)


def _volume(hidden: Any) -> Any:
    from keras import layers

    for _ in range(3):
        hidden = layers.Conv3D(8, 3, padding="same", activation="relu")(hidden)
    return hidden


def _branching(hidden: Any) -> Any:
    from keras import layers

    from experiments.training_steps import Branch

    hidden = layers.GroupNormalization(4)(layers.Conv2D(16, 3, padding="same")(hidden))
    return layers.Conv2D(16, 3, padding="same")(Branch()(hidden))


def _recurrent(name: str) -> Callable[[Any], Any]:
    def body(hidden: Any) -> Any:
        from keras import layers

        return getattr(layers, name)(16)(getattr(layers, name)(16, return_sequences=True)(hidden))

    return body


_OTHERS: dict[str, Callable[[], Any]] = {
    "U-Net": lambda: image_net(_unet),
    "transformer": lambda: token_net(_transformer),
    "LSTM": lambda: token_net(_recurrent("LSTM")),
    "GRU": lambda: token_net(_recurrent("GRU")),
    "BatchNorm, Dropout, L2": lambda: image_net(_regularized),
    "bfloat16": lambda: image_net(_half("mixed_bfloat16")),
    "float16": lambda: image_net(_half("mixed_float16")),
    "Conv3D": lambda: image_net(_volume, size=12, volume=True),
    "Split, If, GroupNorm": lambda: image_net(_branching),
    "plain convolutions": lambda: image_net(lambda hidden: _unit(_unit(hidden, 16), 16)),
}
NAMES = (*_APPLICATIONS, *_OTHERS)


def build(name: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    if name not in _APPLICATIONS:
        return _OTHERS[name]()
    size = _APPLICATIONS[name]
    make = getattr(keras.applications, name)
    return make(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)


def points(names: Sequence[str] = NAMES) -> list[Point]:
    return [{"name": name} for name in names]


def compute(point: Point) -> dict[str, Any]:
    """The differences of an architecture."""
    from checkmate_tf.executors.graph.writer import emit
    from checkmate_tf.simulator import make_retain_all_schedule
    from checkmate_tf.tracing.extraction import extract
    from experiments.numbers.differences import are_compared, largest_difference
    from experiments.training_steps import batch_of, recompute_all, run, trace

    name = point["name"]
    model = build(name)
    function = trace(model, batch_size=BATCH_SIZE)
    training_graph = extract(function, name=name)
    batch, variables = batch_of(function), [variable.value for variable in model.variables]
    identity = emit(training_graph, make_retain_all_schedule(training_graph.graph), ordering="chain")
    repeated = emit(training_graph, recompute_all(training_graph.graph), ordering="chain")
    stock = run(function, batch, variables)
    steps = {"stock_again": function, "identity": identity.function, "rematerialized": repeated.function}
    compared = are_compared(stock, len(model.trainable_variables))
    row = {
        "batch_size": BATCH_SIZE,
        "seed": 0,
        "ops": len(training_graph.ops.ops),
        "nodes": len(training_graph.graph.nodes),
        "copied_ops": repeated.num_copied_ops,
        "control_edges": repeated.num_control_edges,
    }
    return row | {key: largest_difference(run(step, batch, variables), stock, compared) for key, step in steps.items()}


def table(rows: Sequence[Row]) -> str:
    """A line an architecture."""
    from tabulate import tabulate

    columns = ("name", "ops", "nodes", "copied_ops", "control_edges")
    lines = [
        [*(row[column] for column in columns), *(f"{float(row[key]):.1e}" if row[key] else "" for key in _DIFFERENCES)]
        + [row["error"]]
        for row in sorted(rows, key=lambda row: NAMES.index(row["name"]))
    ]
    headers = [column.replace("_", " ") for column in (*columns, *_DIFFERENCES, "error")]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart("experiments.numbers.nineteen", points(options.only), options.output, COLUMNS)))


if __name__ == "__main__":
    main()
