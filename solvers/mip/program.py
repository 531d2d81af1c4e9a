"""A mixed-integer program as arrays, and the result that every library's module returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import sparse

from checkmate_tf.errors import SolverError

Stats = dict[str, float | int | str]

CvxpySolver = Literal["HIGHS", "SCIP", "SCIPY", "CBC", "GLPK_MI", "CPLEX", "XPRESS", "MOSEK", "COPT", "CUOPT"]
"""The solvers of CVXPY that take a time limit. Gurobi has a back end of its own."""


class LibraryUnavailable(SolverError):
    """A library is not installed here, or its licence does not allow this program."""


class LicenceTooSmall(LibraryUnavailable):
    """A library runs here, but its licence is limited to smaller programs than this one."""


@dataclass(frozen=True)
class MixedIntegerProgram:
    """A program: minimize `costs @ x`, where `row_lower <= rows @ x <= row_upper`, `lower <= x <= upper`, some x whole.

    Args:
        costs, lower, upper: of each column, float [num_columns]; the last two may be infinite.
        is_integer: whether a column has to be whole, bool [num_columns].
        rows: [num_rows, num_columns], with no column twice in a row.
        row_lower, row_upper: float [num_rows], may be infinite.
    """

    costs: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    is_integer: np.ndarray
    rows: sparse.csr_array
    row_lower: np.ndarray
    row_upper: np.ndarray

    @property
    def num_columns(self) -> int:
        return len(self.costs)

    @property
    def num_rows(self) -> int:
        return len(self.row_lower)

    def relaxed(self) -> "MixedIntegerProgram":
        """Returns the linear program without the condition that columns are whole."""
        return replace(self, is_integer=np.zeros_like(self.is_integer))


@dataclass(frozen=True)
class MipResult:
    """The result of a library.

    Args:
        point: the best point found, float [num_columns].
        bound: lower bound on the cost of every point; infinite if there is none, and -inf without a proof.
        infeasible: the library proved that there is no point.
        optimal: `point` is the best one, within the gap that was asked for.
        stats: the library's figures about its search.
    """

    point: np.ndarray | None
    bound: float
    infeasible: bool = False
    optimal: bool = False
    stats: Stats = field(default_factory=dict)


@dataclass(frozen=True)
class LinearDuals:
    """The result of a library for a linear program.

    Args:
        point: its best point, float [num_columns], or None.
        duals: of each row, float [num_rows]: at least 0 if its lower limit binds, at most 0 if its upper limit does.
        infeasible: the library proved that there is no point.
        optimal: `point` is the best one, within the library's tolerances.
        stats: the library's figures about its search.
    """

    point: np.ndarray | None
    duals: np.ndarray
    infeasible: bool = False
    optimal: bool = False
    stats: Stats = field(default_factory=dict)


def no_point(stats: Stats) -> MipResult:
    """Returns the result of a program that is proved to have no point."""
    return MipResult(None, math.inf, infeasible=True, stats=stats)


Improved = Callable[[np.ndarray, float], None]
"""A callback for a better point and the lower bound at that time."""

Bounded = Callable[[float], bool]
"""A callback for the lower bound, which returns whether to continue."""
