"""The graphs of the experiments: published, generated, and op-level graphs of Keras models."""

from collections.abc import Callable
from pathlib import Path

from checkmate_tf.graph import Graph
from checkmate_tf.serialization import load_graph, save_graph
from experiments.layered_graphs import layered_graph

PUBLISHED = ("rl-g1-n100", "rl-g2-n250", "fcn8-b32-train", "resnet50-b256-train", "vgg16-b256-train")
GENERATED = {"layered-500": 500, "layered-1000": 1000, "layered-5000": 5000}
OP_LEVEL = (
    "efficientnetb0-op",
    "densenet121-op",
    "convnext-base",
    "transformer-20",
    "resnet152",
    "resnet200-unit",
    "efficientnet-b7",
    "transformer-82",
)
# Activations must be most of the peak: the paper has 512 for vision models, 8 for language models.
BATCH_SIZES = {"vgg11": 256, "resnet18": 256, "efficientnet-b7": 32, "convnext-base": 64}
BATCH_SIZE = 64
LANGUAGE_BATCH_SIZE = 16


def instance(name: str, *, published: Path, cache: Path) -> Graph:
    """A graph by name; op-level graphs are traced once (TensorFlow, up to a minute) and kept in `cache`."""
    if name in GENERATED:
        return layered_graph(GENERATED[name], seed=0)
    if name in PUBLISHED:
        return load_graph(published / f"{name}.json")
    path = cache / f"{name}.json"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        save_graph(_traced(name), path)
    return load_graph(path)


def _traced(name: str) -> Graph:
    import keras

    from experiments.op_graphs import op_graph, resnet, transformer
    from experiments.solver_benchmark import op_level

    if name in op_level.MODELS:
        return op_level.graph_of(name)

    def convolutional(model: Callable[..., keras.Model], size: int) -> Callable[[], keras.Model]:
        return lambda: model(weights=None, input_shape=(size, size, 3))

    applications = keras.applications
    models: dict[str, Callable[[], keras.Model]] = {
        "vgg11": _vgg11,
        "resnet18": lambda: resnet(18),
        "resnet152": lambda: resnet(152),
        "efficientnet-b7": convolutional(applications.EfficientNetB7, 600),
        "convnext-base": convolutional(applications.ConvNeXtBase, 224),
        "transformer-20": lambda: transformer(20),
        "transformer-82": lambda: transformer(82),
    }
    common = LANGUAGE_BATCH_SIZE if name.startswith("transformer") else BATCH_SIZE
    return op_graph(models[name](), batch_size=BATCH_SIZES.get(name, common), name=name)


def _vgg11():
    import keras

    inputs = x = keras.Input((224, 224, 3))
    for filters in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if filters == "pool":
            x = keras.layers.MaxPooling2D()(x)
        else:
            x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(x)
    for width in (4096, 4096):
        x = keras.layers.Dense(width, "relu")(x)
    return keras.Model(inputs, keras.layers.Dense(1000)(x), name="vgg11")
