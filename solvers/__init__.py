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
