"""Converts a solver's solution to versioned JSON and back."""

import json
from pathlib import Path
from typing import Any, get_args

from checkmate_tf.errors import ScheduleError, SolverError, quote
from checkmate_tf.files import write_file
from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.schedule import Order, Schedule, check_schedule
from checkmate_tf.serialization import SCHEDULE_FORMAT, check_format, read_json, schedule_from_json
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Scheduled, Solution, Status


def solution_to_json(solution: Solution, graph: Graph) -> dict[str, Any]:
    """Converts a solution to a `checkmate-schedule/1` object. Without a schedule, the fields about it are None."""
    simulation, schedule = solution.simulation, solution.schedule or Schedule(())
    return {
        "format": SCHEDULE_FORMAT,
        "graph": graph.name,
        "order": list(map(int, solution.schedule.order)) if solution.schedule else None,
        **({"fetches": schedule.fetches} if schedule.fetches else {}),
        **({"offloads": schedule.offloads} if schedule.offloads else {}),
        "peak_bytes": simulation.peak_bytes if simulation else None,
        "cost": simulation.cost if simulation else None,
        "overhead": simulation.overhead if simulation else None,
        "cost_lower_bound": int(solution.cost_lower_bound),
        "bound_order": solution.bound_order,
        "status": str(solution.status),
        "solver": solution.solver,
        "solve_time_s": solution.solve_time_s,
    }


def solution_from_json(data: Any, graph: Graph) -> Solution:
    """Converts a `checkmate-schedule/1` object to a solution for the graph for which it was found.

    The schedule is checked and simulated. Raises ScheduleError, which names the place, also if the cost or the peak on
    this graph differs from the one in the file.
    """
    check_graph(graph)
    check_format(data, SCHEDULE_FORMAT, ScheduleError, "schedule")
    status = _read_field(data, "status", str)
    if status not in list(Status):
        raise ScheduleError(f"schedule: 'status' is {quote(status)}; it must be one of {', '.join(Status)}")
    bound_order = _read_field(data, "bound_order", str)
    if bound_order not in get_args(Order):
        raise ScheduleError(f"schedule: 'bound_order' is {quote(bound_order)}; it must be fixed or free")
    best = None if data.get("order", ()) is None else _read_best(data, graph)
    if (best is not None) != (status in (Status.OPTIMAL, Status.FEASIBLE)):
        raise ScheduleError(f"schedule: 'status' is {status!r} {'with' if best else 'without'} an order")
    bound = _read_field(data, "cost_lower_bound", int)
    if best is not None and bound > best.simulation.cost:
        raise ScheduleError(f"schedule: 'cost_lower_bound' is {bound}, above the cost of {best.simulation.cost}")
    return Solution(
        status=Status(status),
        best=best,
        cost_lower_bound=bound,
        bound_order=bound_order,
        solver=_read_field(data, "solver", str),
        solve_time_s=_read_field(data, "solve_time_s", float, int),
        stats={},
    )


def save_solution(solution: Solution, graph: Graph, path: str | Path) -> None:
    """Writes a schedule file, which `load_solution` and `load_schedule` read.

    Args:
        solution: the result of `solve`.
        graph: the graph for which it was found.
        path: the file.

    Raises:
        SolverError: if `solution` is not a solution.

    Example:

    >>> from checkmate_tf import Node, Value, load_schedule, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> save_solution(solve(graph, "100%"), graph, "schedule.json")
    >>> load_schedule("schedule.json")
    Schedule(order=(0,), fetches=(), offloads=())
    """
    check_graph(graph)
    if not isinstance(solution, Solution):
        raise SolverError(f"solution is {quote(solution)}; it must be one that solve() returned")
    write_file(path, json.dumps(solution_to_json(solution, graph)))


def load_solution(path: str | Path, graph: Graph) -> Solution:
    """Reads a solution that `save_solution` wrote, and checks and simulates its schedule again.

    Args:
        path: the file.
        graph: the graph for which it was found.

    Returns:
        The solution. The solver's `stats` are not in the file.

    Raises:
        ScheduleError: if the file is missing, not JSON or not a solution for this graph.

    Example:

    >>> from checkmate_tf import Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> save_solution(solve(graph, "100%"), graph, "schedule.json")
    >>> load_solution("schedule.json", graph).status.name
    'OPTIMAL'
    """
    return solution_from_json(read_json(path, ScheduleError, "schedule"), graph)


def _read_best(data: dict[str, Any], graph: Graph) -> Scheduled:
    schedule = schedule_from_json(data)
    check_schedule(graph, schedule)
    best = Scheduled(schedule, simulate(graph, schedule))
    for name, found in (("cost", best.simulation.cost), ("peak_bytes", best.simulation.peak_bytes)):
        written = _read_field(data, name, int)
        if written != found:
            raise ScheduleError(
                f"schedule: {name!r} is {written}, and {found} on graph {graph.name!r}: it was saved for another graph"
            )
    return best


def _read_field(data: dict[str, Any], key: str, *kinds: type) -> Any:
    value = data.get(key)
    if type(value) not in kinds:  # a bool is an int for isinstance
        raise ScheduleError(f"schedule: {key!r} is {quote(value)}; it must be of type {kinds[0].__name__}")
    return value
