"""CVXPY: mixed-integer programs by whichever solver it finds here, for those that the other modules do not reach."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy
import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip.program import LibraryUnavailable, MipResult, MixedIntegerProgram, Stats, no_point

_INFEASIBLE = ("infeasible", "infeasible_or_unbounded")  # every column has a bound or a cost of at least 0


@dataclass(frozen=True)
class CvxpySettings:
    """How CVXPY is asked.

    Args:
        absolute_gap: of the best point's cost and the bound, at which to stop, where the solver can be told.
        solver: one of `SOLVERS`; by default the first of them that CVXPY finds.
    """

    time_limit_s: float
    absolute_gap: float
    solver: str | None = None


def _highs_options(settings: CvxpySettings) -> dict[str, Any]:
    limits = {"time_limit": settings.time_limit_s, "mip_abs_gap": settings.absolute_gap, "mip_rel_gap": 0.0}
    return {**limits, "threads": 1}


def _gurobi_options(settings: CvxpySettings) -> dict[str, Any]:
    limits = {"TimeLimit": settings.time_limit_s, "MIPGapAbs": settings.absolute_gap, "MIPGap": 0.0}
    return {**limits, "Threads": 1}


def _scipy_options(settings: CvxpySettings) -> dict[str, Any]:
    return {"scipy_options": {"time_limit": settings.time_limit_s, "mip_rel_gap": 0.0}}


# How each solver is told the limits: CVXPY has no names of its own for these.
SOLVERS: dict[str, Callable[[CvxpySettings], dict[str, Any]]] = {
    "HIGHS": _highs_options,
    "SCIPY": _scipy_options,
    "GUROBI": _gurobi_options,
}


def solve_with_cvxpy(program: MixedIntegerProgram, settings: CvxpySettings) -> MipResult:
    """Searches for the optimum; CVXPY passes on no bound, so there is none unless the optimum is proved.

    Raises LibraryUnavailable where CVXPY does not find the solver, or that cannot solve the program.
    """
    found = [name for name in SOLVERS if name in cvxpy.installed_solvers()]
    solver = settings.solver or next(iter(found), None)
    if solver not in found:
        raise LibraryUnavailable(f"CVXPY does not find {solver or 'a mixed-integer solver'}; it finds {found}")
    problem, parts = _problem(program)
    try:
        problem.solve(solver=solver, **SOLVERS[solver](settings))
    except cvxpy.SolverError as error:
        raise LibraryUnavailable(f"{solver} cannot run under CVXPY: {error}") from error
    stats: Stats = {"backend": f"cvxpy ({solver})", "model_status": problem.status}
    if problem.status in _INFEASIBLE:
        return no_point(stats)
    optimal = problem.status == cvxpy.OPTIMAL
    point = None
    if all(x.value is not None for x, _ in parts):
        point = np.zeros(program.num_columns)
        for x, columns in parts:
            point[columns] = x.value
    return MipResult(point, float(problem.value) if optimal else -math.inf, optimal=optimal, stats=stats)


def _problem(program: MixedIntegerProgram) -> tuple[cvxpy.Problem, list[tuple[cvxpy.Variable, np.ndarray]]]:
    """The program for CVXPY, and its variables, each with the columns that it stands for."""
    parts: list[tuple[cvxpy.Variable, np.ndarray]] = []
    cost: Any = 0.0
    activity: Any = 0.0
    for integer in (True, False):
        columns = np.flatnonzero(program.is_integer == integer)
        if not len(columns):
            continue
        x = cvxpy.Variable(len(columns), integer=integer, bounds=[program.lower[columns], program.upper[columns]])
        parts.append((x, columns))
        cost += program.costs[columns] @ x
        activity += sparse.csr_matrix(program.rows[:, columns]) @ x
    below, above = np.flatnonzero(np.isfinite(program.row_upper)), np.flatnonzero(np.isfinite(program.row_lower))
    limits = []
    if len(below):
        limits.append(activity[below] <= program.row_upper[below])
    if len(above):
        limits.append(activity[above] >= program.row_lower[above])
    return cvxpy.Problem(cvxpy.Minimize(cost), limits), parts
