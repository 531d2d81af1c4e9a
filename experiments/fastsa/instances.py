"""The graphs of the experiments: published, generated, and op-level graphs of Keras models."""

from collections.abc import Callable
from pathlib import Path

from checkmate_tf.graph import Graph
from checkmate_tf.serialization import load_graph, save_graph
from experiments.layered_graphs import layered_graph
from experiments.published_graphs import published_graph

PUBLISHED = (
    "rl-g1-n100",
    "rl-g2-n250",
    "rl-g3-n500",
    "rl-g4-n1000",
    "fcn8-b32-train",
    "resnet50-b256-train",
    "vgg16-b256-train",
)
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
# Those of the paper's figure 9 (models below 2,300 nodes) that can be had here.
SMALL = ("resnet18", "vgg11", "vit-small", "mobilenet-v3", "convnext-tiny", "distilbert")
MEASURED = ("resnet152", "efficientnet-b7", "transformer-82")
# Activations must be most of the peak: the paper has 512 for vision models, 8 for language models, 128 for short text.
BATCH_SIZES = {"vgg11": 256, "resnet18": 256, "efficientnet-b7": 32, "convnext-base": 64, "mobilenet-v3": 256}
BATCH_SIZES["distilbert"] = 128
MEASURED_BATCH_SIZES = {"resnet152": 16, "efficientnet-b7": 4}
BATCH_SIZE = 64
LANGUAGE_BATCH_SIZE = 16


def instance(name: str, *, cache: Path, measured: bool = False) -> Graph:
    """A graph by name; op-level graphs are traced once (TensorFlow, up to a minute) and kept in `cache`.

    With `measured`, each distinct node of an op-level graph is timed on this device, by MEASURED_BATCH_SIZES.
    """
    if name in GENERATED:
        return layered_graph(GENERATED[name], seed=0)
    if name in PUBLISHED:
        return published_graph(name)
    path = cache / f"{name}{'-measured' if measured else ''}.json"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        save_graph(_traced(name, cache / "profile.sqlite" if measured else None), path)
    return load_graph(path)


def _traced(name: str, profile_path: Path | None) -> Graph:
    import keras

    from checkmate_tf.profiling.costs import MeasuredCosts
    from experiments.fastsa.networks import vgg11
    from experiments.op_graphs import op_graph, resnet, transformer
    from experiments.solver_benchmark import op_level

    if name in op_level.MODELS:
        return op_level.graph_of(name)

    def convolutional(model: Callable[..., keras.Model], size: int) -> Callable[[], keras.Model]:
        return lambda: model(weights=None, input_shape=(size, size, 3))

    applications = keras.applications
    models: dict[str, Callable[[], keras.Model]] = {
        "vgg11": vgg11,
        "resnet18": lambda: resnet(18),
        "resnet152": lambda: resnet(152),
        "efficientnet-b7": convolutional(applications.EfficientNetB7, 600),
        "convnext-base": convolutional(applications.ConvNeXtBase, 224),
        "convnext-tiny": convolutional(applications.ConvNeXtTiny, 224),
        "mobilenet-v3": convolutional(applications.MobileNetV3Large, 224),
        "vit-small": _vit_small,
        "distilbert": _distilbert,
        "transformer-20": lambda: transformer(20),
        "transformer-82": lambda: transformer(82),
    }
    common = LANGUAGE_BATCH_SIZE if name.startswith("transformer") else BATCH_SIZE
    batch_size = BATCH_SIZES.get(name, common)
    if profile_path is None:
        return op_graph(models[name](), batch_size=batch_size, name=name)
    batch_size = MEASURED_BATCH_SIZES.get(name, batch_size)
    return op_graph(models[name](), batch_size=batch_size, name=name, costs=MeasuredCosts(profile_path))


def _vit_small():
    """ViT-S/16 on 224 x 224 images: 196 patches, mean pooling instead of a class token."""
    import keras

    inputs = keras.Input((224, 224, 3))
    patches = keras.layers.Reshape((196, 384))(keras.layers.Conv2D(384, 16, strides=16)(inputs))
    return keras.Model(inputs, _classified(patches, num_blocks=12, num_heads=6, num_classes=1000), name="vit_small")


def _distilbert():
    """Six blocks of BERT's width on 512 tokens, and a head for two classes."""
    import keras

    tokens = keras.Input((512,), dtype="int32")
    embedded = keras.layers.Embedding(30_522, 768)(tokens)
    return keras.Model(tokens, _classified(embedded, num_blocks=6, num_heads=12, num_classes=2), name="distilbert")


def _classified(x, *, num_blocks: int, num_heads: int, num_classes: int):
    """Pre-norm transformer blocks without dropout on [batch, length, width], and a linear head on the mean."""
    import keras

    width = x.shape[-1]
    for _ in range(num_blocks):
        normalized = keras.layers.LayerNormalization()(x)
        x = keras.layers.Add()(
            [x, keras.layers.MultiHeadAttention(num_heads, width // num_heads)(normalized, normalized)]
        )
        hidden = keras.layers.Dense(4 * width, "gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(width)(hidden)])
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.layers.Dense(num_classes)(pooled)
