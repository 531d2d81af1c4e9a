"""Checkmate, Figures 1 and 7: memory over time of a 32-layer network, and R matrices of VGG19.

Figure 1: a 32-layer linear network that needs 30 GB, stock and rematerialized within 9 GB (21 GB less). Its layers are
equal, 30 GB / 33 for each value; the published network is not named. Figure 7: VGG19 on a 16 GB device, without
rematerialization, by Chen's sqrt(n) and by Checkmate, each at the largest batch that its schedule fits.

    python -m experiments.checkmate.schedules
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, to_stages
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.solvers import solve
from experiments.checkmate.integrality import linear_network
from experiments.checkmate.page import write_page
from experiments.layer_graphs import BATCH_SIZES, committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, in_order, run_points, runner_of

DEVICE_BYTES = 16 * 2**30
BATCHES = range(100, 641)
PUBLISHED_BATCHES = {"retain_all": 167, "chen_sqrt": 197, "checkmate_milp": 289}
VGG19_RESIDENT_PARAMETERS = 2 * 4 * 143_667_240


def at_batch(graph: Graph, batch_size: int) -> Graph:
    """VGG19's committed graph at another batch: everything but the parameters is proportional to it."""
    old = BATCH_SIZES["vgg19"]
    values = tuple(replace(value, size_bytes=value.size_bytes // old * batch_size) for value in graph.values)
    nodes = tuple(replace(node, cost=node.cost // old * batch_size) for node in graph.nodes)
    inputs = (graph.resident_bytes - VGG19_RESIDENT_PARAMETERS) // old * batch_size
    return replace(graph, nodes=nodes, values=values, resident_bytes=VGG19_RESIDENT_PARAMETERS + inputs)


def thirty_two_layers() -> Graph:
    graph = linear_network(32, "input, output, gradient")
    size_bytes = 30 * 10**9 // 33
    return replace(graph, values=tuple(replace(value, size_bytes=size_bytes) for value in graph.values))


def one_more_forward(graph: Graph) -> int:
    """Equation 10: the cost of one more forward pass."""
    return graph.baseline_cost + sum(node.cost for node in graph.nodes if not node.is_backward)


def compute(point: Point) -> dict[str, Any]:
    if point["figure"] == 1:
        graph = thirty_two_layers()
        solution = solve(graph, point["budget_bytes"], solver="checkmate_milp", time_limit_s=60)
        return _described(graph, solution.schedule, solution.status.value)
    return _largest_batch(committed_graph("vgg19"), point["method"])


def _largest_batch(graph: Graph, method: str) -> dict[str, Any]:
    """The largest batch within the device, by bisection, and the method's schedule there."""
    low, high = BATCHES.start, BATCHES.stop
    best: dict[str, Any] = {}
    while low < high:
        batch_size = (low + high) // 2
        larger = at_batch(graph, batch_size)
        solution = solve(larger, DEVICE_BYTES, solver=method, time_limit_s=30)
        if solution.simulation is not None and solution.simulation.cost <= one_more_forward(larger):
            best = {"batch_size": batch_size, **_described(larger, solution.schedule, solution.status.value)}
            low = batch_size + 1
        else:
            high = batch_size
    return best


def _described(graph: Graph, schedule: Schedule | None, status: str) -> dict[str, Any]:
    if schedule is None:
        return {"status": status}
    simulation = simulate(graph, schedule)
    return {
        "status": status,
        "order": list(schedule.order),
        "peak_bytes": simulation.peak_bytes,
        "overhead": simulation.overhead,
        "memory_bytes": simulation.memory_bytes.tolist(),
    }


def table(done: list[dict[str, Any]]) -> str:
    (first,) = in_order(done, figure=(1,))
    by_method = {entry["point"]["method"]: entry["result"] for entry in in_order(done, figure=(7,))}
    stock = simulate_stock(thirty_two_layers())
    figure_1 = [
        ("stock", stock.peak_bytes / 1e9, 0.0),
        ("rematerialized", first["result"]["peak_bytes"] / 1e9, first["result"]["overhead"]),
    ]
    figure_7 = [
        (method, published, result["batch_size"], result["overhead"], result["status"])
        for method, published in PUBLISHED_BATCHES.items()
        for result in [by_method[method]]
    ]
    text = tabulate(figure_1, ("Figure 1", "peak, GB", "overhead"), floatfmt=".3f") + "\n\n"
    head = ("Figure 7", "published batch", "batch", "overhead", "status")
    return text + tabulate(figure_7, head, floatfmt=".3f") + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args(arguments)
    points: list[Point] = [{"figure": 1, "budget_bytes": 9 * 10**9}]
    points += [{"figure": 7, "method": method} for method in PUBLISHED_BATCHES]
    folder = RESULTS_FOLDER / "checkmate"
    first, *vgg = run_points(points, compute, CHECKMATE, part="schedules", runner=runner_of(options))
    stock = simulate_stock(thirty_two_layers())
    write_page()
    print(table([first, *vgg]))
    _plot_memory(stock.memory_bytes.tolist(), first["result"]["memory_bytes"], folder / "figure1.png")
    _plot_matrices(vgg, folder / "figure7.png")


def _plot_memory(stock: list[int], rematerialized: list[int], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for label, memory in (("retain all", stock), ("rematerialized", rematerialized)):
        axes.step(range(len(memory)), np.array(memory) / 1e9, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("memory, GB")
    axes.legend()
    figure.savefig(path, dpi=120)


def _plot_matrices(entries: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    graph = committed_graph("vgg19")
    figure = Figure(figsize=(4 * len(entries), 4), layout="constrained")
    for axes, entry in zip(figure.subplots(1, len(entries)), entries, strict=True):
        matrices = to_stages(graph, Schedule.of(entry["result"]["order"]))
        axes.imshow(~matrices.recompute, cmap="gray", interpolation="nearest")
        axes.set_title(f"{entry['point']['method']}, batch {entry['result']['batch_size']}")
        axes.set_xlabel("node")
        axes.set_ylabel("stage")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
