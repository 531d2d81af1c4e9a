"""The solvers: each takes a `Problem` (a graph and a budget) and returns a `Solution`. None imports TensorFlow."""

from checkmate_tf.solvers.base import Result, Scheduled, Solution, Solver, Status
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.registry import SOLVER_NAMES, get_solver
from checkmate_tf.solvers.search import Search, Update
from checkmate_tf.solvers.solving import solve

__all__ = [
    "SOLVER_NAMES",
    "Problem",
    "Result",
    "Scheduled",
    "Search",
    "Solution",
    "Solver",
    "Status",
    "Update",
    "get_solver",
    "solve",
]
