"""Solvers: Problem(graph, budget) -> Solution. None of them imports TensorFlow."""

from checkmate_tf.solvers.base import Found, Problem, Progress, Solution, Solver, Status
from checkmate_tf.solvers.registry import SOLVER_NAMES, get_solver
from checkmate_tf.solvers.solving import solve

__all__ = [
    "SOLVER_NAMES",
    "Found",
    "Problem",
    "Progress",
    "Solution",
    "Solver",
    "Status",
    "get_solver",
    "solve",
]
