"""Converts the graphs that MOCCASIN's authors published, Checkmate's among them, from a clone of their repository.

    git clone https://github.com/haoming-codes/moccasin.git
    python -m experiments.published_graphs moccasin

They are under another licence (GPL-3.0) and so no part of this repository. The tests and experiments that use them look
in `build/published_graphs`, where this command writes, or else in `shared/graphs` beside this repository; without them
the tests skip and the experiments leave them out. Random layered graphs come in the input order that they were
published with, Checkmate's in networkx's topological order. What is resident was not published and counts as 0.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.serialization import load_graph, save_graph
from experiments.running import ROOT

FOLDERS = (ROOT / "build" / "published_graphs", ROOT.parent / "shared" / "graphs")
# Name here -> file in the folder `data` of the clone.
FILES = {
    "rl-g1-n100": "random_layered_n100_w0.27_nlv0.75_ed0.2_scd0.14.json",
    "rl-g2-n250": "random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14.json",
    "rl-g3-n500": "random_layered_n500_w0.36_nlv0.75_ed0.2_scd0.14.json",
    "rl-g4-n1000": "random_layered_n1000_w0.31_nlv0.75_ed0.2_scd0.14.json",
    "vgg16-b256-train": "VGG16 (MLSys)_256_(224, 224, 3)_train_nx.json",
    "vgg19-b256-train": "VGG19 (MLSys)_256_(224, 224, 3)_train_nx.json",
    "mobilenet-b512-train": "MobileNet (MLSys)_512_(224, 224, 3)_train_nx.json",
    "resnet50-b256-train": "ResNet50 (MLSys)_256_(224, 224, 3)_train_nx.json",
    "fcn8-b32-train": "fcn_8_vgg (MLSys)_32_(416, 608, 3)_train_nx.json",
    "segnet-b32-train": "segnet (MLSys)_32_(416, 608, 3)_train_nx.json",
    "vgg-unet-b32-train": "vgg_unet (MLSys)_32_(416, 608, 3)_train_nx.json",
}
# Forward passes alone.
INFERENCE_FILES = {
    name.replace("-train", "-test"): file.replace("_train_", "_test_")
    for name, file in FILES.items()
    if name.endswith("-train")
}
_SOURCE = "github.com/haoming-codes/moccasin data/ (GPL-3.0 repository)"


def find_published(name: str) -> Path | None:
    """Finds the file of a converted graph; None where it is not here."""
    paths = (folder / f"{name}.json" for folder in FOLDERS)
    return next((path for path in paths if path.exists()), None)


def published_graph(name: str) -> Graph:
    """Reads a converted graph. Raises FileNotFoundError where it is not here."""
    path = find_published(name)
    if path is None:
        raise FileNotFoundError(f"published graph {name} is not here: {__file__} says how to get it")
    return load_graph(path)


def convert(published: Mapping[str, Any], name: str) -> Graph:
    """Makes a graph of what a published file says, in networkx's node-link form; each node has one value."""
    nodes = {node.get("id", node["name"]): node for node in published["nodes"]}
    drawn = nx.DiGraph()
    drawn.add_nodes_from(nodes)
    drawn.add_edges_from((_end(link, "source", "0"), _end(link, "target", "1")) for link in published["links"])
    order = published["graph"].get("order") or list(nx.topological_sort(drawn))
    place = {node: index for index, node in enumerate(order)}
    return Graph(
        tuple(
            Node(
                f"n{node}:{nodes[node]['name']}",
                "layer",
                tuple(sorted(place[before] for before in drawn.predecessors(node))),
                (index,),
                _figure(nodes[node], "cost_cpu", "duration"),
                is_backward=bool(nodes[node].get("backward")),
            )
            for index, node in enumerate(order)
        ),
        tuple(Value(f"n{node}:0", _figure(nodes[node], "cost_ram", "out_cost")) for node in order),
        cost_unit="as published",
        name=name,
        source=_SOURCE,
    )


def _end(link: Mapping[str, int], name: str, other: str) -> int:
    return link[name] if name in link else link[other]


def _figure(node: Mapping[str, Any], name: str, other: str) -> int:
    return int(node[name] if name in node else node[other])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="of the authors' repository")
    parser.add_argument("--output", type=Path, default=FOLDERS[0])
    options = parser.parse_args(arguments)
    data = options.clone / "data"
    files = FILES | INFERENCE_FILES
    missing = [file for file in files.values() if not (data / file).exists()]
    if missing:
        parser.error(f"{data} has no {missing[0]!r}: give the folder of a clone of the authors' repository")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        graph = convert(json.loads((data / file).read_text(encoding="utf-8")), name)
        save_graph(graph, options.output / f"{name}.json")
        print(f"{name}: {len(graph.nodes)} nodes")


if __name__ == "__main__":
    main()
