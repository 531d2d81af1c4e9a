"""Solvers: Problem(graph, budget) -> Solution. None of them imports TensorFlow."""

from checkmate_tf.solvers.base import (
    SOLVER_NAMES,
    Found,
    Problem,
    Progress,
    Solution,
    Solver,
    Status,
    get_solver,
    solve,
)
from checkmate_tf.solvers.least_budget import least_known

__all__ = [
    "SOLVER_NAMES",
    "Found",
    "Problem",
    "Progress",
    "Solution",
    "Solver",
    "Status",
    "get_solver",
    "least_known",
    "solve",
]
