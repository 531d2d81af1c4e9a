"""Op-level training graphs for the benchmark, extracted from Keras models once and kept as files.

    python -m experiments.solver_benchmark.op_level FOLDER [--models resnet50 unet ...]

Costs are floating-point operations, so that the graphs are the same on every machine; those whose name ends in "-unit"
cost 1 a node, as in the experiments of TWRemat. Batch sizes make activations most of the peak.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import keras

from checkmate_tf.graph import Graph
from checkmate_tf.profiling.costs import FlopsCosts, replace_costs
from checkmate_tf.serialization import save_graph
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.step_part import make_gradient_part
from experiments import op_graphs
from experiments.checkmate.models import MODELS as LAYER_MODELS


def _application(name: str) -> Callable[[], keras.Model]:
    return lambda: getattr(keras.applications, name)(weights=None, classifier_activation=None)


# name -> (model, batch size)
MODELS: dict[str, tuple[Callable[[], keras.Model], int]] = {
    "resnet50-op": (_application("ResNet50"), 64),
    "efficientnetb0-op": (_application("EfficientNetB0"), 64),
    "densenet121-op": (_application("DenseNet121"), 64),
    "unet-op": (LAYER_MODELS["unet"], 16),
    "transformer12-op": (lambda: op_graphs.transformer(12), 16),
    "transformer48-op": (lambda: op_graphs.transformer(48), 16),
    "transformer104-op": (lambda: op_graphs.transformer(104), 16),
    "resnet200-unit": (lambda: op_graphs.resnet(200), 32),
}


def graph_of(name: str) -> Graph:
    """The graph of one training step of a model of MODELS."""
    make, batch_size = MODELS[name]
    keras.utils.clear_session()
    model = make()
    if not model.compiled:
        model.compile("sgd", keras.losses.MeanSquaredError())
    spec = guess_spec(model, batch_size)
    build_for(model, spec)
    training_graph = extract(make_gradient_part(model).trace(spec), name=name)
    if name.endswith("-unit"):
        return op_graphs.unit_costs(training_graph.graph)
    return replace_costs(training_graph.graph, FlopsCosts().find_node_costs(training_graph))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        path = arguments.folder / f"{name}.json"
        if not path.exists():
            graph = graph_of(name)
            save_graph(graph, path)
            print(f"{name}: {len(graph.nodes)} nodes, {len(graph.values)} values", flush=True)


if __name__ == "__main__":
    main()
