"""Solves the mixed-integer program of a block relaxation, with CP-SAT or with HiGHS.

CP-SAT works in whole numbers, so its bound is exact, and on graphs of some hundred nodes it is several times faster
than HiGHS: all rows but those of memory are clauses. HiGHS is better where there are very many columns.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate_tf.solvers.relaxation.model import BlockModel, Term

_TELL_EVERY_S = 0.1
_MANY_ROWS = 20_000  # layered-1000, 41,800 rows with path cuts from before: 1.1 s without presolving, 4.7 s with it


@dataclass(frozen=True)
class Relaxed:
    """A lower bound on the extra cost, in units of cost, and the best point found.

    Args:
        lower_bound: infinite where there is no point (at most `at_most`, where that was asked for).
        optimal: the point is within the gap asked for.
    """

    lower_bound: float
    point: np.ndarray | None
    optimal: bool


def _without_columns(model: BlockModel) -> Relaxed:
    if model.infeasible:
        return Relaxed(math.inf, None, optimal=False)
    return Relaxed(0.0, np.zeros(0), optimal=True)


def solve_with_highs(
    model: BlockModel,
    *,
    gap: float = 0.0,
    time_limit_s: float = math.inf,
    start: np.ndarray | None = None,
    max_nodes: int = 2**30,
    at_most: float = math.inf,
    on_bound: Callable[[float], bool] | None = None,
) -> Relaxed:
    """Args:
    gap: the difference of point and bound, in units of cost, at which to stop.
    start: a point to begin with.
    max_nodes: of the search tree.
    at_most: only points that cost no more are of interest.
    on_bound: told of the lower bound now and then; what it returns says whether to go on.
    """
    import highspy

    if model.infeasible or not model.num_columns:
        return _without_columns(model)
    scale = max(float(model.costs.max(initial=1)) / 1e3, 1.0)
    unit = scale * model.cost_unit
    highs = highspy.Highs()
    options = {
        "output_flag": False, "threads": 1, "parallel": "off",
        "mip_heuristic_effort": 0.0, "mip_allow_restart": math.isfinite(at_most),
        "mip_rel_gap": 0.0, "mip_abs_gap": max(gap / unit, 1e-6), "time_limit": max(time_limit_s, 0.01),
        "mip_max_nodes": max_nodes,
    }  # fmt: skip
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(_highs_lp(model, scale))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)
    if math.isfinite(at_most):
        priced = np.flatnonzero(model.costs).astype(np.int32)
        most = (math.floor(at_most / model.cost_unit) + 0.5) / scale  # costs are whole
        highs.addRow(-highspy.kHighsInf, most, len(priced), priced, model.costs[priced] / scale)
        highs.setOptionValue("objective_bound", most)  # twice as fast with it; without the row never infeasible
    slack = 1e-6 + 1e-9 * model.num_columns  # what its tolerances may have added, and of the bound in proportion

    def safe(bound: float) -> float:
        return (bound - slack - 1e-9 * abs(bound)) * unit if math.isfinite(bound) else 0.0

    if on_bound is not None:
        _tell_bounds(highs, lambda bound: on_bound(safe(bound)))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Relaxed(math.inf, None, optimal=False)
    has_point = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    point = np.array(highs.getSolution().col_value) if has_point else None
    return Relaxed(safe(info.mip_dual_bound), point, optimal=status == highspy.HighsModelStatus.kOptimal)


def _tell_bounds(highs: Any, goes_on: Callable[[float], bool]) -> None:
    """Calls `goes_on` with the lower bound, at most ten times a second; ends the search where it says so."""
    import highspy

    told_at = 0.0

    def tell(_kind: Any, _message: str, out: Any, back: Any, _data: Any) -> None:
        nonlocal told_at
        if time.perf_counter() - told_at > _TELL_EVERY_S:
            told_at = time.perf_counter()
            back.user_interrupt = not goes_on(out.mip_dual_bound)

    highs.setCallback(tell, None)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)


@dataclass(frozen=True)
class Linear:
    """The linear relaxation's optimum, in units of cost; the point; how much each row may still shrink; what a unit of
    it is worth; the reduced cost of each column, in units of cost."""

    bound: float
    point: np.ndarray
    slack: np.ndarray
    worth: np.ndarray
    reduced: np.ndarray


class LinearProgram:
    """The linear relaxation of a model, to which rows can be added between solves."""

    def __init__(self, model: BlockModel) -> None:
        import highspy

        self._highspy = highspy
        self._scale = max(float(model.costs.max(initial=1)) / 1e3, 1.0)
        self._unit = self._scale * model.cost_unit
        self._highs = highspy.Highs()
        lp = _highs_lp(model, self._scale)
        lp.integrality_ = []
        presolve = "off" if lp.num_row_ > _MANY_ROWS else "choose"
        for name, value in {"output_flag": False, "threads": 1, "presolve": presolve}.items():
            self._highs.setOptionValue(name, value)
        self._highs.passModel(lp)

    def add_rows(self, rows: Iterable[tuple[Sequence[Term], int]]) -> None:
        """Adds rows given by their terms and what these come to at least."""
        starts: list[int] = []
        columns: list[int] = []
        coefficients: list[float] = []
        lower: list[float] = []
        for terms, at_least in rows:
            starts.append(len(columns))
            for column, coefficient in terms:
                if column is not None:
                    columns.append(column)
                    coefficients.append(coefficient)
            lower.append(at_least)
        self._highs.addRows(
            len(lower),
            np.array(lower),
            np.full(len(lower), self._highspy.kHighsInf),
            len(columns),
            np.array(starts, dtype=np.int32),
            np.array(columns, dtype=np.int32),
            np.array(coefficients),
        )

    def solve(self, time_limit_s: float = math.inf) -> Linear | None:
        """None where there is no point, or time is up."""
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(time_limit_s, 0.01))
        self._highs.run()
        if self._highs.getModelStatus() != self._highspy.HighsModelStatus.kOptimal:
            return None
        solution, lp = self._highs.getSolution(), self._highs.getLp()
        activity = np.array(solution.row_value)
        slack = np.minimum(activity - np.array(lp.row_lower_), np.array(lp.row_upper_) - activity)
        slack_of_duals = 1e-6 + 1e-7 * lp.num_col_  # HiGHS's tolerance on each reduced cost
        bound = (self._highs.getInfo().objective_function_value - slack_of_duals) * self._unit
        reduced = np.array(solution.col_dual) * self._unit
        return Linear(bound, np.array(solution.col_value), slack, np.abs(np.array(solution.row_dual)), reduced)


def _highs_lp(model: BlockModel, scale: float):
    import highspy

    rows = model.rows
    lower, upper = rows.lower / rows.scale, rows.upper / rows.scale
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.num_columns, len(lower)
    lp.col_cost_ = model.costs / scale
    lp.row_lower_ = np.where(np.isfinite(lower), lower, -highspy.kHighsInf)
    lp.row_upper_ = np.where(np.isfinite(upper), upper, highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_, lp.a_matrix_.index_ = rows.start, rows.column
    lp.a_matrix_.value_ = rows.coefficient / np.repeat(rows.scale, np.diff(rows.start))
    integrality = [highspy.HighsVarType.kContinuous] * model.num_columns
    for column in model.integers.tolist():
        integrality[column] = highspy.HighsVarType.kInteger
    lp.integrality_ = integrality
    columns, fixed_to = list(model.fixed), [float(value) for value in model.fixed.values()]
    lower, upper = np.zeros(lp.num_col_), np.ones(lp.num_col_)
    lower[columns] = upper[columns] = fixed_to
    lp.col_lower_, lp.col_upper_ = lower, upper
    return lp


def solve_with_cp_sat(
    model: BlockModel,
    *,
    gap: float = 0.0,
    time_limit_s: float = math.inf,
    at_least: float = 0.0,
    at_most: float = math.inf,
    seed: int = 0,
    work_limit: float = math.inf,
    on_bound: Callable[[float], bool] | None = None,
) -> Relaxed:
    """`solve_with_highs`, and:

    Args:
        at_least, at_most: only points with a cost between these are of interest.
        work_limit: CP-SAT's deterministic time; about seconds.
        on_bound: told of each lower bound as it is proved; what it returns says whether to go on.
    """
    from checkmate_tf.solvers.mip.ortools_library import cp_model

    if model.infeasible or not model.num_columns:
        return _without_columns(model)
    program = cp_model.CpModel()
    variables = [
        program.new_bool_var("") if column not in model.fixed else program.new_constant(model.fixed[column])
        for column in range(model.num_columns)
    ]
    rows = model.rows
    for row, (begin, end) in enumerate(zip(rows.start[:-1].tolist(), rows.start[1:].tolist(), strict=True)):
        coefficients = rows.coefficient[begin:end]
        lower, upper = _whole(rows.lower[row], coefficients), _whole(rows.upper[row], coefficients)
        columns = [variables[column] for column in rows.column[begin:end].tolist()]
        total = cp_model.LinearExpr.weighted_sum(columns, coefficients.tolist())
        program.add_linear_constraint(total, lower, upper)
    priced = np.flatnonzero(model.costs).tolist()
    cost = cp_model.LinearExpr.weighted_sum([variables[column] for column in priced], model.costs[priced].tolist())
    if at_least > 0:
        program.add(cost >= math.ceil(at_least / model.cost_unit - 1e-9))
    if math.isfinite(at_most):
        program.add(cost <= math.floor(at_most / model.cost_unit))
    program.minimize(cost)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers, parameters.random_seed = 1, seed
    parameters.linearization_level = 2
    parameters.use_objective_lb_search = True
    parameters.absolute_gap_limit = max(gap / model.cost_unit, 1e-4)
    parameters.relative_gap_limit = 0.0
    parameters.max_time_in_seconds = max(time_limit_s, 0.01)
    parameters.max_deterministic_time = work_limit

    def tell(bound: float) -> None:
        if on_bound is not None and not on_bound(bound * model.cost_unit):
            solver.stop_search()

    solver.best_bound_callback = tell
    status = solver.solve(program)
    if status == cp_model.INFEASIBLE:
        return Relaxed(math.inf, None, optimal=False)
    bound = max(solver.best_objective_bound, 0.0) * model.cost_unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Relaxed(bound, None, optimal=False)
    point = np.array([solver.boolean_value(variable) for variable in variables], dtype=float)
    return Relaxed(bound, point, optimal=status == cp_model.OPTIMAL)


def _whole(bound: float, coefficients: np.ndarray) -> int:
    """A bound of a row as a whole number; infinite ones as what the row cannot reach."""
    if math.isfinite(bound):
        return int(bound)
    reach = int(np.abs(coefficients).sum())
    return reach if bound > 0 else -reach
