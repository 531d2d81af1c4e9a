"""How much memory each solver takes: every registered one on graphs of 500, 5,000 and 50,000 nodes, in its own process.

    python -m experiments.solver_memory [--solver NAME ...] [--nodes N ...] [--time-limit 5] [--output FILE.csv]

The graphs are chains of layers with skips and their way back, each written to a file and loaded from it. Each solver
gets a budget of 60 % of the memory without rematerialization. A row says what the process took at its
highest, with the graph and the libraries that the solver loads, what it took before the solver began, the same of the
largest process that the solver started, and what the solver said. Times are of processor and of clock: where they
differ, the machine had other work.
"""

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.process_memory import find_peak_bytes
from checkmate_tf.serialization import load_graph, save_graph
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import SOLVER_NAMES, solve
from experiments.running import RESULTS_FOLDER, Point, run_apart

COLUMNS = (
    "solver", "nodes", "time_limit_s", "load_cpu_s", "simulate_cpu_s", "before_mib", "peak_mib", "workers_mib",
    "status", "overhead", "cpu_s", "solve_s", "gave_up",
)  # fmt: skip
NODES = (500, 5_000, 50_000)
_BUDGET = "60%"
# A solver that would take the whole machine fails instead.
_MOST_BYTES = 12 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solver", nargs="*", default=list(SOLVER_NAMES), choices=SOLVER_NAMES)
    parser.add_argument("--nodes", nargs="*", type=int, default=list(NODES))
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "solver_memory.csv")
    options = parser.parse_args()
    points = [
        {"solver": name, "nodes": nodes, "time_limit_s": options.time_limit}
        for nodes in options.nodes
        for name in options.solver
    ]
    run_apart("experiments.solver_memory", points, options.output, COLUMNS)


def compute(point: Point) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    with TemporaryDirectory() as folder:
        path = Path(folder, "graph.json")
        save_graph(training_graph(point["nodes"]), path)
        began = time.process_time()
        graph = load_graph(path)
    loaded = time.process_time()
    simulate_stock(graph)
    simulated, before = time.process_time(), find_peak_bytes() or 0
    clock = time.perf_counter()
    solution = solve(graph, _BUDGET, solver=point["solver"], time_limit_s=point["time_limit_s"])
    stats = solution.stats
    return {
        "load_cpu_s": loaded - began,
        "simulate_cpu_s": simulated - loaded,
        "before_mib": before >> 20,
        "peak_mib": int(stats.get("peak_memory_bytes", 0)) >> 20,
        "workers_mib": int(stats.get("workers_peak_memory_bytes", 0)) >> 20,
        "status": str(solution.status),
        "overhead": None if solution.simulation is None else solution.simulation.overhead,
        "cpu_s": time.process_time() - simulated,
        "solve_s": time.perf_counter() - clock,
        "gave_up": stats.get("gave_up"),
    }


def training_graph(num_nodes: int) -> Graph:
    """A chain of layers, three in ten of which read an earlier one too, and its way back."""
    random = np.random.default_rng(num_nodes)
    num_layers = num_nodes // 2
    nodes, values = [], []
    for layer in range(num_layers):
        skip = int(random.integers(2, 9))
        reads = {layer - 1, *([layer - skip] if layer >= skip and random.random() < 0.3 else [])} if layer else set()
        cost, size_bytes = int(random.integers(1, 1000)), 1024 * int(random.integers(1, 100))
        nodes.append(Node(f"layer_{layer}", "Conv2D", tuple(sorted(reads)), (layer,), cost))
        values.append(Value(f"layer_{layer}", size_bytes))
    for layer in reversed(range(num_layers)):
        index = len(nodes)
        reads = {layer, *nodes[layer].inputs, *([index - 1] if index > num_layers else [])}
        name, cost = f"gradient_{layer}", 2 * nodes[layer].cost
        nodes.append(Node(name, "Conv2DGradient", tuple(sorted(reads)), (index,), cost, is_backward=True))
        values.append(Value(f"gradient_{layer}", values[layer].size_bytes))
    return Graph(tuple(nodes), tuple(values), (len(values) - 1,), name=f"chain-{num_nodes}")


if __name__ == "__main__":
    main()
