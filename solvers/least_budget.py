"""The least budget known to work: what to tell whoever asked for less."""

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers.base import Solution, Solver, solve

_ROUNDS = 8
_PRECISE_ENOUGH = 1 / 200


def least_known(
    graph: Graph,
    *,
    above_bytes: int = 0,
    solver: str | Solver = "auto",
    order: Order = "fixed",
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> Solution:
    """The solution of least peak memory that a bisection of the budget finds; its peak is a budget known to work.

    Args:
        above_bytes: a budget that is known not to work.
        solver: what finds a schedule for each budget tried.
        time_limit_s: for all budgets tried together.
    """
    best = solve(graph, simulate(graph, retain_all_schedule(graph)).peak_bytes, solver="retain_all")
    low_bytes = max(above_bytes, least_step(graph).peak_bytes - 1)
    for _ in range(_ROUNDS):
        assert best.simulation is not None
        high_bytes = best.simulation.peak_bytes
        if high_bytes - low_bytes <= max(1, high_bytes * _PRECISE_ENOUGH):
            break
        middle_bytes = (low_bytes + high_bytes) // 2
        solution = solve(
            graph, middle_bytes, solver=solver, order=order, time_limit_s=time_limit_s / _ROUNDS, seed=seed
        )
        if solution.schedule is None:
            low_bytes = middle_bytes
        else:
            best = solution
    return best
