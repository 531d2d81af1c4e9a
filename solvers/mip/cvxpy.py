"""CVXPY: mixed-integer and linear programs, by any installed solver that takes a time limit."""

import math
import time
from dataclasses import dataclass
from typing import Any, get_args

import cvxpy
import numpy as np
from cvxpy.settings import SOLUTION_PRESENT
from scipy import sparse

from checkmate_tf.solvers.mip.program import (
    CvxpySolver,
    LibraryUnavailable,
    LinearDuals,
    MipResult,
    MixedIntegerProgram,
    Stats,
    no_point,
)

# Every column has a bound or a cost of at least 0, so no program is unbounded.
_INFEASIBLE = ("infeasible", "infeasible_or_unbounded")
_LEAST_TIME_S = 0.01  # Some solvers refuse a limit of 0.
_FEW_LEFT = 0.1  # share of the time: a solver that fails with more left was not stopped by its limit
_TOLERANCE = 1e-5  # the solvers' tolerance for rows, columns and whole numbers


@dataclass(frozen=True)
class CvxpySettings:
    """The settings of a search with CVXPY.

    Args:
        absolute_gap: difference between the best point's cost and the bound at which the search stops, if the solver
            has such an option.
    """

    time_limit_s: float
    absolute_gap: float = 1e-6
    solver: CvxpySolver = "HIGHS"


def solve_with_cvxpy(program: MixedIntegerProgram, settings: CvxpySettings) -> MipResult:
    """Searches for the optimum. CVXPY passes on no bound, so there is a bound only if the optimum is proved.

    Raises LibraryUnavailable if CVXPY does not find the solver, or if the solver does not take the program.
    """
    found = _solved(program, settings)
    if found.infeasible:
        return no_point(found.stats)
    point = found.point if found.point is not None and _is_feasible(program, found.point) else None
    if point is None or not found.optimal:
        return MipResult(point, -math.inf, stats=found.stats)
    return MipResult(point, float(program.costs @ point), optimal=True, stats=found.stats)


def relax_with_cvxpy(program: MixedIntegerProgram, settings: CvxpySettings) -> LinearDuals:
    """Solves a program's linear relaxation. Raises as `solve_with_cvxpy` does, and for CBC and GLPK_MI."""
    if settings.solver in ("CBC", "GLPK_MI"):
        raise LibraryUnavailable(f"{settings.solver} takes no time limit for linear programs; ask for another")
    return _solved(program.relaxed(), settings)


def _options(settings: CvxpySettings, time_limit_s: float) -> dict[str, Any]:
    """Returns the solver's own options for its limits, because CVXPY has no common names for them."""
    gap = settings.absolute_gap
    match settings.solver:
        case "HIGHS":
            return {"time_limit": time_limit_s, "mip_abs_gap": gap, "mip_rel_gap": 0.0, "threads": 1}
        case "SCIP":
            return {"scip_params": {"limits/time": time_limit_s, "limits/absgap": gap, "limits/gap": 0.0}}
        case "SCIPY":
            return {"scipy_options": {"time_limit": time_limit_s, "mip_rel_gap": 0.0}}
        case "CBC":
            return {"maximumSeconds": time_limit_s, "allowableGap": gap, "allowableFractionGap": 0.0}
        case "GLPK_MI":
            return {"tm_lim": math.ceil(1000 * time_limit_s), "mip_gap": 0.0}
        case "CPLEX":
            gaps = {"mip.tolerances.absmipgap": gap, "mip.tolerances.mipgap": 0.0}
            return {"cplex_params": {"timelimit": time_limit_s, "threads": 1, **gaps}}
        case "XPRESS":
            return {"timelimit": time_limit_s, "mipabsstop": gap, "miprelstop": 0.0, "threads": 1}
        case "MOSEK":
            limits = {"MSK_DPAR_OPTIMIZER_MAX_TIME": time_limit_s, "MSK_DPAR_MIO_MAX_TIME": time_limit_s}
            gaps = {"MSK_DPAR_MIO_TOL_ABS_GAP": gap, "MSK_DPAR_MIO_TOL_REL_GAP": 0.0}
            return {"mosek_params": {"MSK_IPAR_NUM_THREADS": 1, **limits, **gaps}}
        case "COPT":
            return {"TimeLimit": time_limit_s, "AbsGap": gap, "RelGap": 0.0, "Threads": 1}
        case "CUOPT":
            return {"time_limit": time_limit_s, "mip_absolute_gap": gap, "mip_relative_gap": 0.0}


def _solved(program: MixedIntegerProgram, settings: CvxpySettings) -> LinearDuals:
    deadline_s = time.perf_counter() + settings.time_limit_s
    installed = cvxpy.installed_solvers()
    if settings.solver not in installed:
        found = ", ".join(name for name in get_args(CvxpySolver) if name in installed)
        raise LibraryUnavailable(f"CVXPY does not find {settings.solver}: install it, or ask for one of {found}")
    return _Problem(program).solve(settings, deadline_s)


class _Problem:
    """A program in the form of CVXPY, which separates whole columns from others, and each kind of row."""

    def __init__(self, program: MixedIntegerProgram) -> None:
        self._program = program
        self._parts: list[tuple[cvxpy.Variable, np.ndarray]] = []
        cost: Any = 0.0
        activity: Any = 0.0
        for integer in (True, False):
            columns = np.flatnonzero(program.is_integer == integer)
            if not len(columns):
                continue
            x = cvxpy.Variable(len(columns), integer=integer, bounds=[program.lower[columns], program.upper[columns]])
            self._parts.append((x, columns))
            cost += program.costs[columns] @ x
            activity += sparse.csr_matrix(program.rows[:, columns]) @ x
        below, above = np.flatnonzero(np.isfinite(program.row_upper)), np.flatnonzero(np.isfinite(program.row_lower))
        # The rows of each limit, and the sign of their duals, which are at least 0 in CVXPY.
        self._limits: list[tuple[cvxpy.Constraint, np.ndarray, int]] = []
        if len(below):
            self._limits.append((activity[below] <= program.row_upper[below], below, -1))
        if len(above):
            self._limits.append((activity[above] >= program.row_lower[above], above, 1))
        self._problem = cvxpy.Problem(cvxpy.Minimize(cost), [limit for limit, _, _ in self._limits])

    def solve(self, settings: CvxpySettings, deadline_s: float) -> LinearDuals:
        """Solves the program. Raises LibraryUnavailable if the solver fails before its time is up."""
        solver = settings.solver
        try:
            data, chain, inverse = self._problem.get_problem_data(solver)
            options = _options(settings, max(deadline_s - time.perf_counter(), _LEAST_TIME_S))
            solution = chain.invert(chain.solve_via_data(self._problem, data, solver_opts=options), inverse)
        except Exception as error:  # Each solver raises an error of its own without a licence.
            raise LibraryUnavailable(f"{solver} cannot run under CVXPY: {error}; check its licence") from error
        status = solution.status
        if status == cvxpy.SOLVER_ERROR and deadline_s - time.perf_counter() > _FEW_LEFT * settings.time_limit_s:
            raise LibraryUnavailable(
                f"{solver} gave up under CVXPY; its licence may not allow {self._program.num_columns} columns and "
                f"{self._program.num_rows} rows"
            )
        stats: Stats = {"backend": f"cvxpy ({solver})", "model_status": status}
        duals = np.zeros(self._program.num_rows)
        if status in _INFEASIBLE:
            return LinearDuals(None, duals, infeasible=True, stats=stats)
        if status not in SOLUTION_PRESENT:
            return LinearDuals(None, duals, stats=stats)
        point = np.zeros(self._program.num_columns)
        for x, columns in self._parts:
            point[columns] = solution.primal_vars[x.id]
        for limit, rows, sign in self._limits:
            duals[rows] += sign * np.asarray(solution.dual_vars.get(limit.id, 0.0))
        return LinearDuals(point, duals, optimal=status == cvxpy.OPTIMAL, stats=stats)


def _is_feasible(program: MixedIntegerProgram, point: np.ndarray) -> bool:
    """Returns whether a point satisfies the program, because some solvers return the point at which they stopped."""
    activity = program.rows @ point
    scale = _TOLERANCE * np.maximum(1.0, abs(program.rows) @ np.abs(point))
    whole = point[program.is_integer]
    return bool(
        np.all(activity >= program.row_lower - scale)
        and np.all(activity <= program.row_upper + scale)
        and np.all(point >= program.lower - _TOLERANCE)
        and np.all(point <= program.upper + _TOLERANCE)
        and np.all(np.abs(whole - np.round(whole)) <= _TOLERANCE)
    )
