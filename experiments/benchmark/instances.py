"""The graphs of the benchmark: built from Keras models, kept as JSON files, and listed in a manifest."""

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkmate_tf.errors import CheckmateError
from checkmate_tf.graph import Graph
from checkmate_tf.serialization import load_graph, save_graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from experiments.layer_graphs import committed_graph, num_edges
from experiments.running import computed_apart, write_text

FORMAT = "checkmate-benchmark/1"
MANIFEST = "manifest.json"
BUDGETS_PERCENT = (80, 50, 25)
NETWORKS = ("layers", "ops", "fastsa")


class BenchmarkError(CheckmateError):
    """A folder or a file is not what the benchmark needs."""


@dataclass(frozen=True)
class Budget:
    """A budget to solve for, a share of the peak without rematerialization in the input order."""

    percent: int
    bytes: int


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a graph.

    Args:
        file: in the folder of the manifest.
        digest: of what a schedule's score depends on, so of everything but names.
        edges: reads of values by nodes.
        total_bytes: of all values and what is resident.
        retain_all_peak_bytes: without rematerialization, in the input order.
        least_step_bytes: no schedule has a lower peak.
        budgets: those that are not below the least step.
    """

    name: str
    networks: str
    file: str
    digest: str
    nodes: int
    edges: int
    total_bytes: int
    resident_bytes: int
    retain_all_peak_bytes: int
    least_step_bytes: int
    baseline_cost: int
    cost_unit: str
    budgets: tuple[Budget, ...]


def digest_of(graph: Graph) -> str:
    """A digest of structure, sizes and costs; names do not matter."""
    nodes = [
        [node.inputs, node.outputs, node.cost, node.workspace_bytes, node.recomputable, node.inplace]
        for node in graph.nodes
    ]
    sizes = [value.size_bytes for value in graph.values]
    content = json.dumps([nodes, sizes, graph.outputs, graph.resident_bytes], separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def entry_of(graph: Graph, *, name: str, networks: str, file: str) -> Entry:
    peak_bytes, least_bytes = simulate_stock(graph).peak_bytes, find_peak_bound(graph).peak_bytes
    budgets = [Budget(percent, peak_bytes * percent // 100) for percent in BUDGETS_PERCENT]
    return Entry(
        name=name,
        networks=networks,
        file=file,
        digest=digest_of(graph),
        nodes=len(graph.nodes),
        edges=num_edges(graph),
        total_bytes=sum(value.size_bytes for value in graph.values) + graph.resident_bytes,
        resident_bytes=graph.resident_bytes,
        retain_all_peak_bytes=peak_bytes,
        least_step_bytes=least_bytes,
        baseline_cost=graph.baseline_cost,
        cost_unit=graph.cost_unit,
        budgets=tuple(budget for budget in budgets if budget.bytes >= least_bytes),
    )


def names_of(networks: str) -> tuple[str, ...]:
    """The graphs of one kind; the last two need TensorFlow."""
    if networks == "layers":
        from experiments.layer_graphs import BATCH_SIZES

        return tuple(f"{name}-b{batch_size}" for name, batch_size in BATCH_SIZES.items())
    if networks == "ops":
        from experiments.solver_benchmark.op_level import MODELS

        return tuple(MODELS)
    from experiments.fastsa.networks import NETWORKS as fastsa_networks

    return tuple(fastsa_networks)


def compute(point: dict[str, Any]) -> None:
    """Builds a graph and writes its file."""
    networks, name = point["networks"], point["name"]
    if networks == "layers":
        graph = committed_graph(name.rpartition("-b")[0])
    elif networks == "ops":
        from experiments.solver_benchmark.op_level import graph_of

        graph = graph_of(name)
    else:
        from experiments.fastsa.networks import network_graph

        graph = network_graph(name)
    save_graph(graph, point["path"])


def build(folder: Path, networks: Iterable[str] = NETWORKS, names: Sequence[str] = ()) -> list[Entry]:
    """Writes the graphs that the folder lacks, each built in a process of its own, and the manifest of all there.

    Args:
        names: only these graphs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {entry.name: entry for entry in load_manifest(folder)} if (folder / MANIFEST).exists() else {}
    for kind in networks:
        for name in names_of(kind):
            if name in known or (names and name not in names):
                continue
            path, began = folder / f"{name}.json", time.perf_counter()
            computed_apart(
                "experiments.benchmark.instances:compute", {"networks": kind, "name": name, "path": str(path.resolve())}
            )
            known[name] = entry_of(load_graph(path), name=name, networks=kind, file=path.name)
            write_manifest(folder, known.values())
            took_s = time.perf_counter() - began
            print(f"{name}: {known[name].nodes} nodes, {took_s:.0f} s", file=sys.stderr, flush=True)
    return list(known.values())


def write_manifest(folder: Path, entries: Iterable[Entry]) -> None:
    graphs = [asdict(entry) for entry in entries]
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT, "graphs": graphs}, indent=1) + "\n")


def load_manifest(folder: Path) -> list[Entry]:
    """Reads the manifest of a folder. Raises BenchmarkError where there is none of this version."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"cannot read {path}: {error}; build the folder first") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise BenchmarkError(f"{path} has the format {found!r}; this version reads {FORMAT!r}: build the folder anew")
    return [Entry(**{**graph, "budgets": tuple(Budget(**one) for one in graph["budgets"])}) for graph in data["graphs"]]
