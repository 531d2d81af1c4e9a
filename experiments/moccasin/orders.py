"""MOCCASIN, section 1: how much the peak without rematerialization differs among 50 random topological orders.

Published: not at all on Checkmate's graphs, which is why the paper keeps one input order throughout. An order is drawn
by picking each next node uniformly among those whose inputs are there.

    python -m experiments.moccasin.orders
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate, simulate_stock
from experiments.layered_graphs import random_topological_order
from experiments.moccasin.page import orders_table, write_page
from experiments.moccasin.points import graph_of, is_here
from experiments.published_graphs import FILES
from experiments.running import RESULTS_FOLDER, Point, Runner, run_points

ORDERS = 50


def compute(point: Point) -> dict[str, Any]:
    graph, random = graph_of(point["graph"]), np.random.default_rng(point["seed"])
    edges = [(before, node) for node, inputs in enumerate(graph.predecessors) for before in inputs]
    orders = [random_topological_order(len(graph.nodes), edges, random) for _ in range(point["orders"])]
    peaks = [simulate(graph, Schedule.of(order)).peak_bytes for order in orders]
    return {
        "nodes": len(graph.nodes),
        "edges": len(edges),
        "orders": len({tuple(order) for order in orders}),
        "peaks": len(set(peaks)),
        "input_bytes": simulate_stock(graph).peak_bytes,
        "least_bytes": min(peaks),
        "most_bytes": max(peaks),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    points = [{"graph": graph, "orders": ORDERS, "seed": 0} for graph in FILES if is_here(graph)]
    print(orders_table(run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part="orders", runner=Runner(1))))
    write_page()


if __name__ == "__main__":
    main()
