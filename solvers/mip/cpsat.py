"""CP-SAT of OR-tools: programs in whole numbers, and the settings of every search with it.

CP-SAT calculates in integers, so its bounds are exact. Every option of it that this package sets is set here. With one
worker and a limit of work instead of time, the seed decides the result.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.mip.program import Bounded, MipResult, MixedIntegerProgram, Stats, no_point

__all__ = ["CpSatSettings", "cp_model", "new_cpsat", "solve_with_cpsat"]

_WHOLE = 1e-6
_LEAST_TIME_S = 0.01


@dataclass(frozen=True)
class CpSatSettings:
    """The settings of a search with CP-SAT.

    Args:
        work_limit: limit of its deterministic time, which is roughly in seconds but the same on every run.
        num_workers: with more than one, the result depends on chance.
        linearizes_all: adds linear relaxations of all constraints, which raise bounds and take more work for each node.
        raises_bound: searches at the lower bound of the cost, so that the bound rises. Points are found later.
        absolute_gap: difference between the best point's cost and the bound at which the search stops.
    """

    time_limit_s: float
    seed: int = 0
    work_limit: float = math.inf
    num_workers: int = 1
    linearizes_all: bool = False
    raises_bound: bool = False
    absolute_gap: float = 1e-4


def new_cpsat(settings: CpSatSettings) -> cp_model.CpSolver:
    """Returns CP-SAT with these settings."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(settings.time_limit_s, _LEAST_TIME_S)
    parameters.max_deterministic_time = settings.work_limit
    parameters.random_seed = settings.seed % 2**31
    parameters.num_workers = settings.num_workers
    parameters.linearization_level = 2 if settings.linearizes_all else 1
    parameters.use_objective_lb_search = settings.raises_bound
    parameters.absolute_gap_limit = settings.absolute_gap
    parameters.relative_gap_limit = 0.0
    return solver


def solve_with_cpsat(
    program: MixedIntegerProgram,
    settings: CpSatSettings,
    *,
    start: np.ndarray | None = None,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    on_bound: Bounded | None = None,
) -> MipResult:
    """Searches for the optimum of a program whose costs, columns and coefficients are all whole.

    The time limit covers building CP-SAT's model, too.

    Args:
        start: a point to begin with; nan leaves a column open.
        at_least, at_most: the search is limited to points with a cost between these, both whole.
        on_bound: called with each lower bound as it is proved.
    """
    deadline_s = time.perf_counter() + settings.time_limit_s
    model = cp_model.CpModel()
    ends = zip(np.rint(program.lower).astype(int).tolist(), np.rint(program.upper).astype(int).tolist(), strict=True)
    variables = [_variable(model, lower, upper) for lower, upper in ends]
    if not _add_rows(model, program, variables, deadline_s):
        return MipResult(None, -math.inf, stats={"backend": "cpsat", "model_status": "the model was not built in time"})
    priced = np.flatnonzero(program.costs).tolist()
    costs = np.rint(program.costs[priced]).astype(np.int64).tolist()
    cost = cp_model.LinearExpr.weighted_sum([variables[column] for column in priced], costs)
    if math.isfinite(at_least):
        model.add(cost >= int(at_least))
    if math.isfinite(at_most):
        model.add(cost <= int(at_most))
    model.minimize(cost)
    if start is not None:
        for column in np.flatnonzero(~np.isnan(start)).tolist():
            model.add_hint(variables[column], round(start[column]))
    solver = new_cpsat(replace(settings, time_limit_s=deadline_s - time.perf_counter()))
    if on_bound is not None:
        solver.best_bound_callback = _until_stopped(solver, on_bound)
    status = solver.solve(model)
    stats: Stats = {"backend": "cpsat", "model_status": solver.status_name(status), "nodes": int(solver.num_branches)}
    if status == cp_model.INFEASIBLE:
        return no_point(stats)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return MipResult(None, solver.best_objective_bound, stats=stats)
    point = np.array([solver.value(variable) for variable in variables], dtype=float)
    return MipResult(point, solver.best_objective_bound, optimal=status == cp_model.OPTIMAL, stats=stats)


def _variable(model: cp_model.CpModel, lower: int, upper: int) -> cp_model.IntVar:
    if lower == upper:
        return model.new_constant(lower)
    return model.new_bool_var("") if (lower, upper) == (0, 1) else model.new_int_var(lower, upper, "")


def _add_rows(
    model: cp_model.CpModel, program: MixedIntegerProgram, variables: list[cp_model.IntVar], deadline_s: float
) -> bool:
    """Adds the rows of a program, and returns whether there was time for all of them."""
    rows = program.rows
    coefficients = np.rint(rows.data).astype(np.int64)
    largest = np.rint(np.maximum(np.maximum(np.abs(program.lower), np.abs(program.upper)), 1)).astype(np.int64)
    for row in range(program.num_rows):
        if time.perf_counter() > deadline_s:
            return False
        part = slice(rows.indptr[row], rows.indptr[row + 1])
        reach = int(np.abs(coefficients[part]) @ largest[rows.indices[part]])  # an upper limit of the row
        lower, upper = program.row_lower[row], program.row_upper[row]
        least = math.ceil(lower - _WHOLE) if math.isfinite(lower) else -reach
        most = math.floor(upper + _WHOLE) if math.isfinite(upper) else reach
        columns = [variables[column] for column in rows.indices[part].tolist()]
        total = cp_model.LinearExpr.weighted_sum(columns, coefficients[part].tolist())
        model.add_linear_constraint(total, least, most)
    return True


def _until_stopped(solver: cp_model.CpSolver, on_bound: Bounded) -> Callable[[float], None]:
    def tell(bound: float) -> None:
        if not on_bound(bound):
            solver.stop_search()

    return tell
