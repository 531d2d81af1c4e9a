"""MOCCASIN, section 1.1: graphs of inference, with the least peak by another order alone and by rematerialization.

The networks are those of Checkmate, as MOCCASIN's authors published their forward passes, and G1 to G4.

    python -m experiments.moccasin.inference [--time-limit 10]
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers.ordering.topological_order import search_order
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory
from experiments.layer_graphs import num_edges
from experiments.moccasin.page import inference_table, write_page
from experiments.moccasin.points import graph_of, is_here
from experiments.published_graphs import FILES, INFERENCE_FILES
from experiments.running import RESULTS_FOLDER, Point, Runner, run_points

GRAPHS = (*INFERENCE_FILES, *(name for name in FILES if name.startswith("rl-")))


def compute(point: Point) -> dict[str, Any]:
    graph, limit_s = graph_of(point["graph"]), point["time_limit_s"]
    reordered = search_order(graph, time_limit_s=limit_s)
    recomputed = minimum_memory(graph, order="fixed", time_limit_s=limit_s)
    return {
        "nodes": len(graph.nodes),
        "edges": num_edges(graph),
        "input_bytes": simulate_stock(graph).peak_bytes,
        "least_step_bytes": find_peak_bound(graph).peak_bytes,
        "reordered_bytes": reordered.peak_bytes,
        "reordered_bound_bytes": reordered.peak_lower_bound_bytes,
        "recomputed_bytes": recomputed.budget_bytes,
        "recomputed_overhead": 100 * recomputed.solution.scheduled.simulation.overhead,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each of the two searches")
    options = parser.parse_args(arguments)
    points = [{"graph": graph, "time_limit_s": options.time_limit} for graph in GRAPHS if is_here(graph)]
    done = run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part="inference", runner=Runner(1))
    print(tabulate(*inference_table(done)))
    write_page()


if __name__ == "__main__":
    main()
