"""TWRemat's figures 2, 3 and 4 and tables 1 and 2, and its schedules beside others' at equal budgets.

    python -m experiments.twremat.figures [--part depth budgets paths] [--workers 1]
    python -m experiments.twremat.plot

Graphs are op-level training graphs of Keras models (`experiments/op_graphs.py`); lengths count nodes, at unit cost,
as in the paper. A family whose name ends in "unfused" has every operation of TensorFlow's trace as a node, as the
paper's graphs have. Peaks leave out what is resident; beside the bytes that are live at once, there are those of an
arena that holds them all (`static_allocation.py`), the paper's measure. Every point is kept: run it again to go on
where it stopped.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.serialization import load_graph, save_graph
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.twremat.solver import Twremat, separator_tree, twremat_schedule
from checkmate_tf.solvers.twremat.tree_decomposition import (
    Adjacency,
    TreeDecomposition,
    path_decomposition,
    tree_decomposition,
    undirected,
    with_spine,
)
from checkmate_tf.solvers.xla_greedy import greedy_schedule
from experiments.running import RESULTS_FOLDER, Point, add_options, run_points, runner_of
from experiments.twremat.static_allocation import count_arena_bytes

DEPTHS = {
    "feed_forward": tuple(range(10, 101, 10)),
    "resnet": (18, 34, 50, 101, 152, 200),
    "transformer": (6, 12),
    "transformer_base": (6,),
    "transformer_big": (6,),
    "feed_forward_unfused": (100,),
    "resnet_unfused": (200,),
    "transformer_base_unfused": (6,),
    "transformer_big_unfused": (6,),
}
BATCH_SIZES = {"feed_forward": 1024, "resnet": 32, "transformer": 16, "transformer_base": 8, "transformer_big": 16}
AT_BUDGETS = (
    ("feed_forward", 100),
    ("resnet", 50),
    ("resnet", 200),
    ("transformer", 12),
    ("transformer_base", 6),
    ("transformer_big", 6),
    ("feed_forward_unfused", 100),
    ("resnet_unfused", 200),
    ("transformer_base_unfused", 6),
    ("transformer_big_unfused", 6),
)
OF_PATHS = (
    ("feed_forward", 50),
    ("feed_forward", 100),
    ("resnet", 18),
    ("resnet", 50),
    ("transformer", 6),
    ("transformer", 12),
)
PEAK_OF_PAPER = "peak of TWRemat(1)"
BUDGETS = (80, 60, 40, PEAK_OF_PAPER)  # in percent of the peak without rematerialization
PAPER = "twremat, as published"
DECOMPOSITIONS: dict[str, Callable[[Adjacency], TreeDecomposition]] = {
    "tree": tree_decomposition,
    "path": lambda adjacency: path_decomposition(with_spine(adjacency)),
}
SOLVERS = (PAPER, "twremat", "xla_greedy", "auto")
MAX_LENGTH = 30
GREEDY_LIMIT_S = 120.0  # without a budget
RESULTS = RESULTS_FOLDER / "twremat.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", nargs="*", default=["depth", "budgets", "paths"])
    parser.add_argument("--time-limit-s", type=float, default=20.0, help="of each solver at equal budgets")
    parser.add_argument("--cache", type=Path, default=Path("build/twremat_graphs"), help="traced graphs are kept here")
    add_options(parser)
    options = parser.parse_args()
    parts: dict[str, tuple[list[Point], Callable[[Point], Any]]] = {
        "depth": (
            [{"family": family, "depth": depth} for family in DEPTHS for depth in DEPTHS[family]],
            partial(unbudgeted, folder=options.cache),
        ),
        "budgets": (
            [
                {"family": family, "depth": depth, "budget": budget, "solver": solver, "limit_s": options.time_limit_s}
                for family, depth in AT_BUDGETS
                for budget in BUDGETS
                for solver in SOLVERS
            ],
            partial(at_budget, folder=options.cache),
        ),
        "paths": (
            [{"family": family, "depth": depth} for family, depth in OF_PATHS],
            partial(by_decomposition, folder=options.cache),
        ),
    }
    for part in options.part:
        points, compute = parts[part]
        for row in run_points(points, compute, RESULTS, part=part, runner=runner_of(options)):
            print(row["point"], row["result"])


@cache
def training_graph(family: str, depth: int, folder: Path) -> Graph:
    """The model's graph at unit costs; gradients are not held to the end, as the paper's graphs apply them.

    It is traced once (TensorFlow, seconds) and kept in `folder`.
    """
    path = folder / f"{family}{depth}.json"
    if not path.exists():
        from experiments import op_graphs

        network = family.removesuffix("_unfused")
        trace = op_graphs.op_graph if network == family else op_graphs.unfused_graph
        traced = trace(getattr(op_graphs, network)(depth), batch_size=BATCH_SIZES[network], name=f"{family}{depth}")
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(replace(op_graphs.unit_costs(traced), outputs=()), path)
    return load_graph(path)


def unbudgeted(point: Point, *, folder: Path) -> dict[str, Any]:
    """Tables 1 and 2, figures 2 to 4: peaks and lengths without a budget, for TWRemat(k) at every k."""
    graph = training_graph(point["family"], point["depth"], folder)
    started = process_time()
    decomposition = tree_decomposition(undirected(graph))
    separators = separator_tree(graph, decomposition)
    schedules = {
        "no_remat": make_retain_all_schedule(graph),
        "greedy": greedy_schedule(graph, find_peak_bound(graph).peak_bytes, deadline_s=perf_counter() + GREEDY_LIMIT_S),
    }
    result: dict[str, Any] = {
        "num_nodes": len(graph.nodes),
        "num_edges": sum(map(len, graph.predecessors)),
        "treewidth": decomposition.width,
        "least_step_bytes": find_peak_bound(graph).peak_bytes - graph.resident_bytes,
        **{name: schedule and _figures(graph, schedule) for name, schedule in schedules.items()},
    }
    limit = 1
    while limit < len(decomposition.bags):
        schedule = twremat_schedule(graph, separators, recursion_limit=limit, max_length=MAX_LENGTH * len(graph.nodes))
        if schedule is not None:
            figures = _figures(graph, schedule)
            peak_bytes = figures["peak_bytes"] + graph.resident_bytes
            pruned = _figures(graph, prune(graph, schedule, peak_bytes))
            result[f"twremat_{limit}"] = {**figures, "pruned_length": pruned["length"]}
            if limit == 1:
                schedules["twremat_1"] = schedule
        limit *= 4
    result["cpu_s"] = process_time() - started
    result["arena_bytes"] = {name: count_arena_bytes(graph, s) for name, s in schedules.items() if s is not None}
    return result


def by_decomposition(point: Point, *, folder: Path) -> dict[str, Any]:
    """Section 5: width, and TWRemat(k)'s peak and length by tree and by path decomposition, at every fourth power k."""
    graph = training_graph(point["family"], point["depth"], folder)
    adjacency = undirected(graph)
    found: dict[str, Any] = {
        "num_nodes": len(graph.nodes),
        "no_remat": _figures(graph, make_retain_all_schedule(graph)),
    }
    for name, make in DECOMPOSITIONS.items():
        started = process_time()
        decomposition = make(adjacency)
        separators, by_limit, limit = separator_tree(graph, decomposition), {}, 1
        while limit < len(decomposition.bags):
            longest = MAX_LENGTH * len(graph.nodes)
            schedule = twremat_schedule(graph, separators, recursion_limit=limit, max_length=longest)
            if schedule is not None:
                figures = _figures(graph, schedule)
                pruned = prune(graph, schedule, int(figures["peak_bytes"]) + graph.resident_bytes)
                by_limit[limit] = {**figures, "pruned_length": _figures(graph, pruned)["length"]}
            limit *= 4
        found[name] = {"width": decomposition.width, "by_limit": by_limit, "cpu_s": process_time() - started}
    return found


def at_budget(point: Point, *, folder: Path) -> dict[str, Any]:
    """A solver's length within a share of the peak without rematerialization, what is resident left out, or within
    the peak of TWRemat(1).
    """
    graph = training_graph(point["family"], point["depth"], folder)
    held = simulate_stock(graph).peak_bytes - graph.resident_bytes
    if point["budget"] == PEAK_OF_PAPER:
        separators = separator_tree(graph, tree_decomposition(undirected(graph)))
        schedule = twremat_schedule(graph, separators, recursion_limit=1)
        budget_bytes = simulate(graph, schedule).peak_bytes
    else:
        budget_bytes = graph.resident_bytes + held * point["budget"] // 100
    solver = Twremat.paper() if point["solver"] == PAPER else point["solver"]
    solution = solve(graph, budget_bytes, solver=solver, order="free", time_limit_s=point["limit_s"])
    found = {} if solution.schedule is None else _figures(graph, solution.schedule)
    return {
        "status": str(solution.status),
        "solve_time_s": solution.solve_time_s,
        "budget_share": (budget_bytes - graph.resident_bytes) / held,
        **found,
    }


def _figures(graph: Graph, schedule: Schedule) -> dict[str, float]:
    simulation = simulate(graph, schedule)
    return {
        "peak_bytes": simulation.peak_bytes - graph.resident_bytes,
        "length": simulation.cost / simulation.baseline_cost,
    }


if __name__ == "__main__":
    main()
