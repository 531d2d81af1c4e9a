"""MOCCASIN, Table 1: variables and constraints of both formulations as built, beside its formulas.

Checkmate's program is that of the paper, over the whole triangle of stages, before any presolve; MOCCASIN's has C_v = 2
and the reservoir, in stages (section 2.3) and over one sequence (section 2.1).

    python -m experiments.moccasin.sizes
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Problem
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.stage_space import full_space
from checkmate_tf.solvers.moccasin.builder import build
from checkmate_tf.solvers.moccasin.candidates import (
    all_windows,
    repeat_limits,
    sequence_candidates,
    stage_candidates,
)
from checkmate_tf.solvers.moccasin.scaling import scaled
from experiments.layer_graphs import num_edges
from experiments.moccasin.page import sizes_table, write_page
from experiments.moccasin.points import graph_of, is_here
from experiments.running import RESULTS_FOLDER, Point, Runner, run_points

GRAPHS = (
    "vgg16-b256-train",
    "fcn8-b32-train",
    "rl-g1-n100",
    "rl-g2-n250",
    "resnet50-b256-train",
    "rl-g3-n500",
    "rl-g4-n1000",
)
COMPUTATIONS = 2  # C_v
PERCENT = 80
# Checkmate's program of a larger graph takes more memory than a search may.
MOST_CHECKMATE_VARIABLES = 2_000_000


def compute(point: Point) -> dict[str, Any]:
    graph = graph_of(point["graph"])
    nodes, edges = len(graph.nodes), num_edges(graph)
    budget_bytes = simulate_stock(graph).peak_bytes * PERCENT // 100
    repeatable = [node.recomputable for node in graph.nodes]
    limits = repeat_limits(graph, COMPUTATIONS)
    candidates = {
        "stages": stage_candidates(graph, limits, all_windows(repeatable)),
        "sequence": sequence_candidates(graph, limits, presolve=False),
    }
    units = scaled(Problem(graph, budget_bytes))
    sizes: dict[str, Any] = {
        name: build(graph, units, chosen, precedence="reservoir").size() for name, chosen in candidates.items()
    }
    if nodes * (nodes + edges) <= MOST_CHECKMATE_VARIABLES:
        model = build_model(graph, budget_bytes, full_space(graph), form=Formulation(tight=False))
        sizes["checkmate"] = {
            "booleans": int(model.integer.sum()),
            "continuous": int((~model.integer).sum()),
            "constraints": model.matrix.shape[0],
        }
    return {"nodes": nodes, "edges": edges, **sizes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    points = [{"graph": graph, "computations": COMPUTATIONS} for graph in GRAPHS if is_here(graph)]
    done = run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part="sizes", runner=Runner(1))
    print(tabulate(*sizes_table(done)))
    write_page()


if __name__ == "__main__":
    main()
