"""TWRemat's figures 2, 3 and 4 and tables 1 and 2, and its schedules beside others' at equal budgets.

    python -m experiments.twremat.figures [--family feed_forward resnet transformer] [--workers 1]

Graphs are op-level training graphs of Keras models (`experiments/op_graphs.py`); lengths count nodes, at unit cost,
as in the paper. Peaks leave out what is resident. Every point is kept: run it again to go on where it stopped.
"""

import argparse
from dataclasses import replace
from functools import cache
from time import process_time
from typing import Any

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.tree_decomposition import tree_decomposition, undirected
from checkmate_tf.solvers.twremat import separator_tree, twremat_schedule
from checkmate_tf.solvers.xla_greedy import greedy_schedule
from experiments.running import RESULTS_FOLDER, Point, add_options, run_points, runner_of

DEPTHS = {
    "feed_forward": tuple(range(10, 101, 10)),
    "resnet": (18, 34, 50, 101, 152, 200),
    "transformer": (6, 12),
}
BATCH_SIZES = {"feed_forward": 1024, "resnet": 32, "transformer": 16}
BUDGETS = (80, 60, 40)
MAX_LENGTH = 30
FOLDER = RESULTS_FOLDER / "twremat"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", nargs="*", default=list(DEPTHS), choices=list(DEPTHS))
    parser.add_argument("--time-limit-s", type=float, default=20.0, help="of each solver at equal budgets")
    add_options(parser)
    options = parser.parse_args()
    sizes = [(family, depth) for family in options.family for depth in DEPTHS[family]]
    schedules = [{"family": family, "depth": depth} for family, depth in sizes]
    rows = run_points(schedules, unbudgeted, FOLDER / "depth.json", runner=runner_of(options))
    largest = [{"family": family, "depth": DEPTHS[family][-1]} for family in options.family]
    points = [
        {**point, "budget": budget, "solver": solver, "time_limit_s": options.time_limit_s}
        for point in largest
        for budget in BUDGETS
        for solver in ("twremat", "xla_greedy", "auto")
    ]
    rows += run_points(points, at_budget, FOLDER / "budgets.json", runner=runner_of(options))
    for row in rows:
        print(row["point"], row["result"])


@cache
def training_graph(family: str, depth: int) -> Graph:
    """The model's graph at unit costs; gradients are not held to the end, as the paper's graphs apply them."""
    from experiments import op_graphs

    model = getattr(op_graphs, family)(depth)
    graph = op_graphs.op_graph(model, batch_size=BATCH_SIZES[family], name=f"{family}{depth}")
    return replace(op_graphs.unit_costs(graph), outputs=())


def unbudgeted(point: Point) -> dict[str, Any]:
    """Tables 1 and 2, figures 2 to 4: peaks and lengths without a budget, for TWRemat(k) at every k."""
    graph = training_graph(point["family"], point["depth"])
    started = process_time()
    decomposition = tree_decomposition(undirected(graph))
    separators = separator_tree(graph, decomposition)
    stock = retain_all_schedule(graph)
    result = {
        "num_nodes": len(graph.nodes),
        "num_edges": sum(map(len, graph.predecessors)),
        "treewidth": decomposition.width,
        "least_step_bytes": least_step(graph).peak_bytes - graph.resident_bytes,
        "no_remat": _figures(graph, stock),
        "greedy": _figures(graph, greedy_schedule(graph, least_step(graph).peak_bytes)),
    }
    limit = 1
    while limit < len(decomposition.bags):
        schedule = twremat_schedule(graph, separators, recursion_limit=limit, max_length=MAX_LENGTH * len(graph.nodes))
        if schedule is not None:
            figures = _figures(graph, schedule)
            peak_bytes = figures["peak_bytes"] + graph.resident_bytes
            pruned = _figures(graph, prune(graph, schedule, peak_bytes))
            result[f"twremat_{limit}"] = {**figures, "pruned_length": pruned["length"]}
        limit *= 4
    return {**result, "cpu_s": process_time() - started}


def at_budget(point: Point) -> dict[str, Any]:
    """A solver's length within a share of the peak without rematerialization, what is resident left out."""
    graph = training_graph(point["family"], point["depth"])
    held = simulate(graph, retain_all_schedule(graph)).peak_bytes - graph.resident_bytes
    budget_bytes = graph.resident_bytes + held * point["budget"] // 100
    solution = solve(graph, budget_bytes, solver=point["solver"], order="free", time_limit_s=point["time_limit_s"])
    found = {} if solution.schedule is None else _figures(graph, solution.schedule)
    return {"status": str(solution.status), "solve_time_s": solution.solve_time_s, **found}


def _figures(graph: Graph, schedule: Schedule) -> dict[str, float]:
    simulation = simulate(graph, schedule)
    return {
        "peak_bytes": simulation.peak_bytes - graph.resident_bytes,
        "length": simulation.cost / simulation.baseline_cost,
    }


if __name__ == "__main__":
    main()
