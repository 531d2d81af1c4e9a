"""One solve of the MOCCASIN experiments: a graph by name, a budget, a method; its result with every improvement.

Graph names: "L500" is the random layered graph of 500 nodes and seed 0; "RW1" to "RW4" are random layered graphs as
large as MOCCASIN's real-world graphs, which were not published; others are published graphs
(`experiments/published_graphs.py`), without which those points are left out.
"""

from typing import Any

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Solver, Update, solve
from checkmate_tf.solvers.moccasin.solver import Moccasin
from experiments.layered_graphs import layered_graph
from experiments.published_graphs import find_published, published_graph
from experiments.running import Point

# (graph, percent) -> published overhead in percent and seconds until it, on 16 cores
PUBLISHED = {
    ("rl-g1-n100", 90): (0.8, 9.3),
    ("rl-g1-n100", 80): (2.3, 9.5),
    ("rl-g2-n250", 90): (0.9, 55.0),
    ("rl-g2-n250", 80): (4.9, 639.5),
    ("rl-g3-n500", 90): (0.7, 1803.3),
    ("rl-g3-n500", 80): (3.4, 1804.8),
    ("rl-g4-n1000", 90): (0.7, 3612.9),
    ("rl-g4-n1000", 80): (3.4, 3611.8),
    ("RW1", 90): (2.3, 123.5),
    ("RW1", 80): (4.5, 122.0),
    ("RW2", 90): (1.4, 1201.3),
    ("RW2", 80): (2.8, 303.9),
    ("RW3", 90): (0.8, 1802.4),
    ("RW3", 80): (1.6, 1802.8),
    ("RW4", 90): (1.7, 1803.9),
    ("RW4", 80): (3.4, 1314.0),
    ("fcn8-b32-train", 90): (0.0, 3.1),
    ("fcn8-b32-train", 80): (0.1, 3.1),
    ("resnet50-b256-train", 90): (0.2, 65.2),
    ("resnet50-b256-train", 80): (0.3, 69.3),
}
# Nodes, and the width that gives about as many edges as published: 947, 1,247, 1,304 and 1,436.
REAL_WORLD = {"RW1": (358, 0.12), "RW2": (442, 0.13), "RW3": (574, 0.04), "RW4": (698, 0.02)}


def graph_of(name: str) -> Graph:
    if name in REAL_WORLD:
        num_nodes, width = REAL_WORLD[name]
        return layered_graph(num_nodes, seed=0, width=width)
    if name[0] == "L" and name[1:].isdigit():
        return layered_graph(int(name[1:]), seed=0)
    return published_graph(name)


def is_here(name: str) -> bool:
    return name[0] == "L" or name in REAL_WORLD or find_published(name) is not None


def point(
    graph: str, percent: int, time_limit_s: float, *, solver: str = "moccasin", order: Order = "fixed", **options: Any
) -> Point:
    """A point of `run_points`; `options` are those of the solver `Moccasin`."""
    return {
        "graph": graph,
        "percent": percent,
        "time_limit_s": time_limit_s,
        "solver": solver,
        "options": options,
        "seed": 0,
        **({} if order == "fixed" else {"order": order}),
    }


def compute(chosen: Point) -> dict[str, Any]:
    """Overheads in percent; `progress` is [time_s, overhead, bound, peak_bytes] of each improvement."""
    graph = graph_of(chosen["graph"])
    baseline = graph.baseline_cost
    progress: list[list[float]] = []

    def note(found: Update) -> None:
        cost, bound = _percent(found.cost, baseline), _percent(found.cost_lower_bound, baseline)
        progress.append([round(found.time_s, 2), cost, bound, found.peak_bytes])

    solver: str | Solver = chosen["solver"]
    if solver == "moccasin":
        solver = Moccasin(**chosen["options"])
    solution = solve(
        graph,
        f"{chosen['percent']}%",
        solver=solver,
        order=chosen.get("order", "fixed"),
        time_limit_s=chosen["time_limit_s"],
        seed=chosen["seed"],
        on_progress=note,
    )
    simulation = solution.simulation
    overhead = None if simulation is None else _percent(simulation.cost, baseline)
    reached = [time_s for time_s, cost, *_ in progress if overhead is not None and cost <= overhead]
    return {
        "nodes": len(graph.nodes),
        "edges": sum(len(reads) for reads in graph.predecessors),
        "budget_bytes": simulate_stock(graph).peak_bytes * chosen["percent"] // 100,
        "status": solution.status,
        "overhead": overhead,
        "bound": _percent(solution.cost_lower_bound, baseline),
        "bound_order": solution.bound_order,
        "peak_bytes": None if simulation is None else simulation.peak_bytes,
        "time_to_best_s": min(reached) if reached else None,
        "solve_time_s": round(solution.solve_time_s, 2),
        "stats": dict(solution.stats),
        "progress": progress,
    }


def _percent(cost: int, baseline: int) -> float:
    return round(100 * (cost / baseline - 1), 5)
