"""Writes a solver's solution as the versioned JSON that `load_schedule` reads."""

import json
from pathlib import Path
from typing import Any

from checkmate_tf.errors import SolverError, quote
from checkmate_tf.files import write_file
from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.serialization import SCHEDULE_FORMAT
from checkmate_tf.solvers.base import Solution


def solution_to_json(solution: Solution, graph: Graph) -> dict[str, Any]:
    """Converts a solution to a `checkmate-schedule/1` object; without a schedule, what describes it is None."""
    simulation = solution.simulation
    return {
        "format": SCHEDULE_FORMAT,
        "graph": graph.name,
        "order": list(map(int, solution.schedule.order)) if solution.schedule else None,
        **({"fetches": solution.schedule.fetches} if solution.schedule and solution.schedule.fetches else {}),
        "peak_bytes": simulation.peak_bytes if simulation else None,
        "cost": simulation.cost if simulation else None,
        "overhead": simulation.overhead if simulation else None,
        "cost_lower_bound": int(solution.cost_lower_bound),
        "bound_order": solution.bound_order,
        "status": str(solution.status),
        "solver": solution.solver,
        "solve_time_s": solution.solve_time_s,
    }


def save_solution(solution: Solution, graph: Graph, path: str | Path) -> None:
    """Writes a schedule file, which `load_schedule` reads.

    >>> from checkmate_tf import Node, Value, load_schedule, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> save_solution(solve(graph, "100%"), graph, "schedule.json")
    >>> load_schedule("schedule.json")
    Schedule(order=(0,), fetches=())
    """
    check_graph(graph)
    if not isinstance(solution, Solution):
        raise SolverError(f"solution is {quote(solution)}; it must be one that solve() returned")
    write_file(path, json.dumps(solution_to_json(solution, graph)))
