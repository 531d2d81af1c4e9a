"""Runs the FastSA experiments: python -m experiments.fastsa.run NAME --cache FOLDER

Names: table1, table2, figure4 (also figure 1), figure7, figure8, figure9, generated, moves, slots, speed, orders
(appendix B.2), offloading (B.3), seeds (D.6). Points already in experiments/results/fastsa.jsonl are not run again. One
core; times are of the process, compilation excluded.
"""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Solver, solve
from checkmate_tf.solvers.fastsa.node_grouping import group_nodes, ungroup
from checkmate_tf.solvers.fastsa.settings import SETTINGS
from checkmate_tf.solvers.fastsa.solver import Annealing, Fastsa, Moves, anneal_sequences, num_slots
from checkmate_tf.solvers.ordering.topological_order import search_order
from checkmate_tf.solvers.problem import Problem
from experiments.fastsa.instances import MEASURED, OP_LEVEL, SMALL, instance
from experiments.layered_graphs import layered_graph
from experiments.running import RESULTS_FOLDER, Point, run_points

TIME_LIMIT_S = 30.0
PAPER_MOVES = Moves(add=1, remove=1, rotate=1, chain=0, prune=0, shift=0, exchange=0)
SOLVERS: dict[str, Solver | str] = {
    "fastsa": Fastsa(),
    "fastsa, input order": Fastsa(reorder=False),
    "paper": Fastsa.paper("elu"),
    "paper, no grouping": replace(Fastsa.paper("elu"), grouping=None, annealing=Fastsa.paper("elu").grouping),
    "block_relaxation": "block_relaxation",
    "checkmate_milp": "checkmate_milp",
    "checkmate_lp": "checkmate_lp",
}
# What each kind of mutation is worth: all of them, all but one, and the paper's.
WITHOUT = {
    "all": Moves(),
    "compound mostly": Moves(1, 1, 0, 1, 6, 4, 4, 8),
    "no chain": Moves(chain=0),
    "prune too": Moves(prune=3),
    "no shift": Moves(shift=0),
    "no exchange": Moves(exchange=0),
    "no add, remove": Moves(add=0, remove=0),
    "no rotate": Moves(rotate=0),
    "paper": PAPER_MOVES,
}
SOLVERS |= {
    f"moves: {name}": Fastsa(Annealing(2_000_000, moves=moves), reorder=False) for name, moves in WITHOUT.items()
}
MOVES_ON = (
    ("resnet50-b256-train", 50, "op"),
    ("layered-1000", 80, "op"),
    ("densenet121-op", 25, "op"),
)


# Appendix C.2: mutations of groups, then of single nodes, by what the objective sees of memory.
PEAKS = ("maximum", "LogAddExp")
_TURNS = 40  # of either part of a curve, which has a point after each
# Appendix C.3: slots a step; the paper's sequences have 2^20 slots, whatever their steps.
SLOTS = (2, 5, 20, SETTINGS.max_slots)

EXPERIMENTS = (
    "table1",
    "table2",
    "figure4",
    "figure7",
    "figure8",
    "figure9",
    "generated",
    "moves",
    "slots",
    "speed",
    "orders",
    "offloading",
    "seeds",
)
# Appendix B.2: mutations that only move nodes, so that no node is computed twice.
ROTATIONS = Moves(add=0, remove=0, rotate=1, chain=0, prune=0, shift=0, exchange=0, flip=0)
ORDERED = ("rl-g1-n100", "rl-g2-n250", "rl-g3-n500", "rl-g4-n1000")
# Appendix B.3: recomputation alone, offloading alone, whose mutations add no node, and both.
OFFLOADING = {
    "recompute": Fastsa(),
    "offload": Fastsa(
        Annealing(moves=Moves(add=0, remove=0, rotate=4, flip=8, chain=0, prune=0, exchange=0)), offload=True
    ),
    "both": Fastsa(offload=True),
}
OFFLOADED = ("resnet18", "mobilenet-v3", "vit-small")
# Figure 9: the networks on which Checkmate's linear program runs, too.
BY_LP = ("vgg11", "resnet18")
SEEDS = 10
SEEDED = (
    ("fcn8-b32-train", 70),
    ("rl-g1-n100", 70),
    ("rl-g2-n250", 70),
    ("resnet50-b256-train", 70),
    ("vgg11", 90),
    ("resnet18", 60),
)


def points_of(name: str) -> list[Point]:
    """The points of an experiment."""
    if name == "table1":
        graphs = ("rl-g1-n100", "rl-g2-n250", "rl-g3-n500", "rl-g4-n1000", "fcn8-b32-train", "resnet50-b256-train")
        return [_point(graph, budget) for graph in graphs for budget in (90, 80, 70)]
    if name == "table2":
        budgets_of = {"vgg11": (90, 80, 70), "resnet18": (90, 80, 70, 60, 50)}
        return [
            _point(graph, budget, solver, costs="unit")
            for graph, budgets in budgets_of.items()
            for budget in budgets
            for solver in ("fastsa", "block_relaxation", "checkmate_milp")
        ]
    if name == "figure4":
        return [
            _point(graph, budget, costs=costs)
            for costs, graphs in (("unit", OP_LEVEL), ("op", OP_LEVEL), ("measured", MEASURED))
            for graph in graphs
            for budget in (50, 25)
            if costs == "unit" or not graph.endswith("-unit")
        ]
    if name == "figure7":
        return [
            _point("transformer-82", 25, solver, costs="unit") for solver in ("paper", "paper, no grouping", "fastsa")
        ]
    if name == "figure8":
        return [{"graph": "vit-small", "budget_percent": b, "peak": p, "seed": 0} for b in (25, 10) for p in PEAKS]
    if name == "slots":
        return [{"num_nodes": n, "slots_per_node": slots} for n in (1000, 5000, 20000) for slots in SLOTS]
    if name == "figure9":
        solvers = [("fastsa", graph) for graph in SMALL] + [("checkmate_lp", graph) for graph in BY_LP]
        return [
            _point(graph, budget, solver, costs="unit") for solver, graph in solvers for budget in range(20, 100, 10)
        ]
    if name == "generated":
        return [_point(f"layered-{n}", budget) for n in (1000, 5000) for budget in (90, 80, 70, 50, 25)]
    if name == "moves":
        return [
            _point(graph, budget, f"moves: {moves}", costs=costs, seed=seed)
            for graph, budget, costs in MOVES_ON
            for moves in WITHOUT
            for seed in range(3)
        ]
    if name == "orders":
        return [{"graph": graph, "orders": "rotations", "seed": 0} for graph in ORDERED]
    if name == "offloading":
        ways = OFFLOADING
        return [
            {"graph": g, "budget_percent": b, "way": way, "seed": 0}
            for g in OFFLOADED
            for b in (70, 50)
            for way in ways
        ]
    if name == "seeds":
        return [_point(graph, budget, seed=seed) for graph, budget in SEEDED for seed in range(SEEDS)]
    return [{"num_nodes": n, "moves": moves} for n in (100, 300, 1000, 3000, 10000) for moves in ("paper", "default")]


def _point(graph: str, budget_percent: int, solver: str = "fastsa", *, costs: str = "op", seed: int = 0) -> Point:
    return {"graph": graph, "budget_percent": budget_percent, "solver": solver, "costs": costs, "seed": seed}


def compute(point: Point, *, cache: Path) -> dict[str, Any]:
    """The figures of a point."""
    if "slots_per_node" in point:
        return _slots(point["num_nodes"], point["slots_per_node"])
    if "way" in point:
        return _offload(instance(point["graph"], cache=cache), point)
    if "orders" in point:
        return _least_order(instance(point["graph"], cache=cache), point["seed"])
    if "moves" in point:
        return _rates(point["num_nodes"], PAPER_MOVES if point["moves"] == "paper" else replace(Moves(), flip=0))
    if "peak" in point:
        return _curve(instance(point["graph"], cache=cache), point)
    graph = instance(point["graph"], cache=cache, measured=point["costs"] == "measured")
    if point["costs"] == "unit":
        graph = replace(graph, nodes=tuple(replace(node, cost=1) for node in graph.nodes))
    solver = SOLVERS[point["solver"]]
    order = "free" if isinstance(solver, Fastsa) else "fixed"
    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    solution = solve(
        graph, f"{point['budget_percent']}%", solver=solver, order=order, time_limit_s=TIME_LIMIT_S, seed=point["seed"]
    )
    baseline = simulate_stock(graph)
    simulation = solution.simulation
    searched_bytes = solution.stats.get("peak_bytes")  # without what is resident, which solvers do not see
    least_bytes = searched_bytes + graph.resident_bytes if isinstance(searched_bytes, int) else None
    peak_bytes = simulation.peak_bytes if simulation else least_bytes
    return {
        "num_nodes": len(graph.nodes),
        "status": str(solution.status),
        "order": order,
        "overhead_percent": 100 * simulation.overhead if simulation else None,
        "peak_percent": 100 * peak_bytes / baseline.peak_bytes if peak_bytes is not None else None,
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - cpu_started_s,
        "stats": dict(solution.stats),
    }


def _least_order(graph: Graph, seed: int) -> dict[str, Any]:
    """The least peak without rematerialization, by annealing alone and by `search_order`, in percent of stock."""
    stock, stock_bytes = make_retain_all_schedule(graph), simulate_stock(graph).peak_bytes
    problem = Problem(graph, find_peak_bound(graph).peak_bytes, "free")
    run = anneal_sequences(problem, stock, options=Annealing(2_000_000, moves=ROTATIONS), seed=seed)
    started_s = time.process_time()
    searched = search_order(graph, time_limit_s=TIME_LIMIT_S, seed=seed)
    return {
        "num_nodes": len(graph.nodes),
        "num_computed": len(run.schedule),
        "annealed_percent": 100 * simulate(graph, run.schedule).peak_bytes / stock_bytes,
        "annealed_cpu_s": run.anneal_s,
        "searched_percent": 100 * searched.peak_bytes / stock_bytes,
        "bound_percent": 100 * searched.peak_lower_bound_bytes / stock_bytes,
        "searched_cpu_s": time.process_time() - started_s,
    }


def _offload(graph: Graph, point: Point) -> dict[str, Any]:
    """The overhead by B.3's objective, which sums the costs of nodes and copies: each node and copy costs 1."""
    graph = replace(
        graph,
        nodes=tuple(replace(node, cost=1) for node in graph.nodes),
        values=tuple(replace(value, offload_cost=1, fetch_cost=1) for value in graph.values),
    )
    cpu_started_s = time.process_time()
    solution = solve(
        graph, f"{point['budget_percent']}%", solver=OFFLOADING[point["way"]], order="free",
        time_limit_s=TIME_LIMIT_S, seed=point["seed"],
    )  # fmt: skip
    found: dict[str, Any] = {
        "num_nodes": len(graph.nodes), "status": str(solution.status), "cpu_s": time.process_time() - cpu_started_s
    }  # fmt: skip
    if solution.best is None:
        return found
    schedule, simulation = solution.best.schedule, solution.best.simulation
    copies = len(schedule.fetches) + len({value for _, value in schedule.fetches})
    return found | {
        "overhead_percent": 100 * ((len(schedule) + copies) / len(graph.nodes) - 1),
        "overlapped_percent": 100 * simulation.overhead,
        "peak_percent": 100 * simulation.peak_bytes / simulate_stock(graph).peak_bytes,
        "num_recomputed": len(schedule) - len(graph.nodes),
        "num_fetches": len(schedule.fetches),
    }


def _rates(num_nodes: int, moves: Moves, *, slots_per_node: int = Annealing.slots_per_node) -> dict[str, Any]:
    """Mutations a second of the compiled loop, at 80 % of the peak, and the slots of its sequence."""
    graph = layered_graph(num_nodes, seed=0)
    budget_bytes = simulate_stock(graph).peak_bytes * 8 // 10
    options = Annealing(iterations=1_000_000, rounds=2, moves=moves, slots_per_node=slots_per_node)
    problem = Problem(graph, budget_bytes, "free")
    run = anneal_sequences(problem, make_retain_all_schedule(graph), options=options, seed=0)
    return {
        "tried_per_s": run.tried / run.anneal_s,
        "singles_per_s": run.singles / run.anneal_s,
        "valid_per_s": run.valid / run.anneal_s,
        "valid_share": run.valid / run.tried,
    }


def _slots(num_nodes: int, slots_per_node: int) -> dict[str, Any]:
    """Mutations a second with so many slots a step, and how much of the tree a valid one changes, on average."""
    from checkmate_tf.solvers.fastsa.sequence_state import build
    from experiments.fastsa.touched import changed_entries

    graph = layered_graph(num_nodes, seed=0)
    slots = num_slots(Annealing(slots_per_node=slots_per_node), num_nodes)
    state = build(graph, make_retain_all_schedule(graph), num_slots=slots)
    counts = np.zeros(2000, dtype=np.int64)
    changed_entries(state.addresses, counts)
    return {
        "slots": slots,
        "changed": float(counts[counts > 0].mean()),
        **_rates(num_nodes, PAPER_MOVES, slots_per_node=slots_per_node),
    }


def _curve(graph: Graph, point: Point) -> dict[str, Any]:
    """The objective (1) as the annealing goes on, of groups and then of single nodes, each to its end.

    `curve` is [mutations, max(budget, M) C relative to that of the input order, M in percent of its peak].
    """
    from checkmate_tf.solvers.fastsa import kernel
    from checkmate_tf.solvers.fastsa.sequence_arrays import COST
    from checkmate_tf.solvers.fastsa.sequence_state import build, fetches_of, to_schedule, unit_bytes

    graph = replace(graph, nodes=tuple(replace(node, cost=1) for node in graph.nodes))
    stock_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = stock_bytes * point["budget_percent"] // 100
    grouping, paper = group_nodes(graph), Fastsa.paper()
    schedule = make_retain_all_schedule(grouping.graph)
    heat = max(1.0, simulate(grouping.graph, schedule).peak_bytes / budget_bytes) * grouping.graph.baseline_cost
    done, curve, seconds = 0, [(0, 1.0, 100.0)], 0.0
    for annealed, options in ((grouping.graph, paper.grouping), (graph, paper.annealing)):
        assert options is not None
        unit = unit_bytes(annealed)
        largest_bytes = max(value.size_bytes for value in annealed.values)
        soft_bytes = largest_bytes / SETTINGS.largest_doublings if point["peak"] == "LogAddExp" else 0.0
        slots = num_slots(options, len(annealed.nodes))
        state = build(annealed, schedule, num_slots=slots, seed=point["seed"], soft_unit_bytes=soft_bytes)
        budget_units = max(0, budget_bytes - graph.resident_bytes) // unit
        shares = np.array([getattr(options.moves, name) for name in kernel.MOVE_NAMES], dtype=np.int64)
        settings = np.array([0.0, budget_units, annealed.baseline_cost, 0.0, 0.0, 0.0, soft_bytes / unit, 0.0])
        best = np.zeros(slots, dtype=np.int32), np.zeros((1, 2), dtype=np.int32)
        figures = np.array([kernel.UNKNOWN, kernel.UNKNOWN, 0, 0, 0, 0, 0], dtype=np.int64)
        first = options.first_temperature * heat / annealed.baseline_cost
        cooling = (options.last_temperature / options.first_temperature) ** (1 / _TURNS)
        for turn in range(_TURNS):
            settings[kernel.FIRST_TEMPERATURE] = first * cooling**turn
            settings[kernel.LAST_TEMPERATURE] = first * cooling ** (turn + 1)
            started_s, iterations = time.thread_time(), options.iterations // _TURNS
            kernel.anneal(
                state.addresses, settings, shares, np.zeros(1, dtype=np.int32), iterations, budget_units, *best, figures
            )
            seconds += time.thread_time() - started_s
            done += iterations
            peak_bytes = int(state.deltas[1]) * unit + graph.resident_bytes
            objective = max(budget_bytes, peak_bytes) * int(state.totals[COST])
            curve.append((done, objective / (stock_bytes * graph.baseline_cost), 100 * peak_bytes / stock_bytes))
        schedule = to_schedule(np.ascontiguousarray(state.slots[:, 0]), fetches_of(state))
        if annealed is grouping.graph:
            schedule = ungroup(grouping, schedule)
    return {"num_nodes": len(graph.nodes), "groups": len(grouping.graph.nodes), "cpu_s": seconds, "curve": curve}


def compile_s() -> float:
    """Seconds to compile the annealing loop, or to load it from numba's cache."""
    started_s = time.process_time()
    import checkmate_tf.solvers.fastsa.kernel  # noqa: F401

    return time.process_time() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--cache", type=Path, default=Path("build/op_graphs"), help="traced graphs are kept here")
    parser.add_argument("--graphs", nargs="*", help="these graphs only")
    arguments = parser.parse_args()
    print(f"compiled or loaded in {compile_s():.1f} s")
    task = partial(compute, cache=arguments.cache)
    points = [
        point for point in points_of(arguments.name) if not arguments.graphs or point["graph"] in arguments.graphs
    ]
    for entry in run_points(points, task, RESULTS_FOLDER / "fastsa.jsonl", part=arguments.name):
        print(entry["point"], entry["result"])


if __name__ == "__main__":
    main()
