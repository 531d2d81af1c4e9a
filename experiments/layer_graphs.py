"""Layer-level training graphs of Keras models, by the rule of the Checkmate paper.

One forward node a layer; one loss node; one gradient node a layer, in the opposite order, which reads the layer's
inputs, its output and the gradients that come from the layers after it (from the loss for an output). Model inputs are
no nodes: they are resident, as are the parameters and their gradients (equation 2). A gradient node's value is as large
as its layer's output ("mirrored"), its cost twice the layer's. Values are dense at 4 bytes an element; costs are
multiply-adds where a layer has a kernel, elements read elsewhere, and 0 where data are only moved.

    python -m experiments.layer_graphs [--models vgg16 unet ...]    writes experiments/graphs/NAME.json
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.serialization import load_graph, save_graph

GRAPHS_FOLDER = Path(__file__).resolve().parent / "graphs"
BYTES_PER_ELEMENT = 4

# Batch sizes of the committed graphs: those of Figure 5, and of the published graphs for ResNet50 and FCN8.
BATCH_SIZES = {
    "vgg16": 256,
    "vgg19": 256,
    "mobilenet": 512,
    "resnet50": 256,
    "unet": 32,
    "vgg_unet": 32,
    "fcn8": 32,
    "segnet": 32,
}

_DATA_MOVING = {"Flatten", "Reshape", "Cropping2D", "ZeroPadding2D", "UpSampling2D", "Concatenate", "Dropout"}


def committed_graph(name: str) -> Graph:
    """A graph of experiments/graphs, by model name; needs no TensorFlow."""
    return load_graph(GRAPHS_FOLDER / f"{name}.json")


def layer_graph(model: Any, *, batch_size: int, name: str = "") -> Graph:
    """The layer-level training graph of a functional Keras model with known shapes."""
    calls = [call for layer in model.layers for call in layer._inbound_nodes if call.input_tensors]
    made_by = {id(tensor): index for index, call in enumerate(calls) for tensor in call.output_tensors}
    reads = [sorted({made_by[id(t)] for t in call.input_tensors if id(t) in made_by}) for call in calls]
    wanted = sorted(made_by[id(tensor)] for tensor in model.outputs)
    nodes, values = [], []
    for index, call in enumerate(calls):
        elements = batch_size * sum(_elements(tensor) for tensor in call.output_tensors)
        values.append(Value(call.operation.name, elements * BYTES_PER_ELEMENT))
        kind = type(call.operation).__name__
        nodes.append(Node(call.operation.name, kind, tuple(reads[index]), (index,), batch_size * _operations(call)))
    loss = len(calls)
    values.append(Value("loss", batch_size * BYTES_PER_ELEMENT))
    read_by_loss = batch_size * sum(_elements(tensor) for tensor in model.outputs)
    nodes.append(Node("loss", "Loss", tuple(wanted), (loss,), read_by_loss))
    users: list[list[int]] = [[] for _ in calls]
    for index, inputs in enumerate(reads):
        for source in inputs:
            users[source].append(index)
    gradient = {index: 2 * loss - index for index in range(loss)}
    for index in reversed(range(loss)):
        incoming = [gradient[user] for user in users[index]] + ([loss] if index in wanted else [])
        forward = nodes[index]
        values.append(Value(f"{forward.name}_gradient", values[index].size_bytes))
        inputs = tuple(sorted({*reads[index], index, *incoming}))
        nodes.append(
            Node(
                f"{forward.name}_gradient",
                f"{forward.op_type}Gradient",
                inputs,
                (gradient[index],),
                2 * forward.cost,
                is_backward=True,
            )
        )
    input_bytes = batch_size * BYTES_PER_ELEMENT * sum(_elements(tensor) for tensor in model.inputs)
    resident_bytes = input_bytes + 2 * BYTES_PER_ELEMENT * model.count_params()
    source = f"layer graph of {name or model.name} at batch {batch_size}"
    return Graph(
        tuple(nodes), tuple(values), (), resident_bytes, "multiply-add", f"{name or model.name}-b{batch_size}", source
    )


def named_layer_graph(name: str, *, batch_size: int) -> Graph:
    """The layer-level graph of one of experiments/checkmate/models.py, which is built afresh; needs TensorFlow."""
    import keras

    from experiments.checkmate.models import MODELS

    keras.utils.clear_session()
    return layer_graph(MODELS[name](), batch_size=batch_size, name=name)


def num_edges(graph: Graph) -> int:
    """Reads of values by nodes."""
    return sum(len(node.inputs) for node in graph.nodes)


def _elements(tensor: Any) -> int:
    """Elements of one example."""
    if any(size is None for size in tensor.shape[1:]):
        raise ValueError(f"tensor {tensor.name} has the open shape {tensor.shape}; give the model a fixed input shape")
    return math.prod(tensor.shape[1:])


def _operations(call: Any) -> int:
    """Multiply-adds or elements read by one call of a layer, for one example."""
    layer, (output, *_) = call.operation, call.output_tensors
    kind = type(layer).__name__
    if kind in ("Conv2D", "Dense"):
        return _elements(output) * math.prod(layer.kernel.shape[:-1])
    if kind == "DepthwiseConv2D":
        return _elements(output) * math.prod(layer.kernel.shape[:2])
    if kind == "Conv2DTranspose":
        return sum(map(_elements, call.input_tensors)) * math.prod(layer.kernel.shape[:-1])
    if kind in _DATA_MOVING:
        return 0
    return sum(map(_elements, call.input_tensors))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(BATCH_SIZES), choices=list(BATCH_SIZES))
    GRAPHS_FOLDER.mkdir(exist_ok=True)
    for name in parser.parse_args(arguments).models:
        graph = named_layer_graph(name, batch_size=BATCH_SIZES[name])
        save_graph(graph, GRAPHS_FOLDER / f"{name}.json")
        print(f"{graph.name}: {len(graph.nodes)} nodes, {num_edges(graph)} edges")


if __name__ == "__main__":
    main()
