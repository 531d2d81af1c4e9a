"""HiGHS: mixed-integer programs, and linear programs to which rows are added between solves.

Every option of HiGHS that this package sets is set here. HiGHS runs on one thread, so the seed decides the result.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
from scipy import sparse

from checkmate_tf.errors import SolverError
from checkmate_tf.solvers.mip.program import Bounded, Improved, MipResult, MixedIntegerProgram, Stats, no_point

_TELL_EVERY_S = 0.1
_LEAST_TIME_S = 0.01

LinearMethod = Literal["choose", "simplex", "ipm"]


@dataclass(frozen=True)
class HighsSettings:
    """The settings of a search with HiGHS for the optimum of a mixed-integer program.

    Args:
        absolute_gap: difference between the best point's cost and the bound at which the search stops. If it is too
            small, the search takes more time without a better result.
        max_nodes: limit of the search tree.
        heuristic_effort: the share of the time spent on finding points; 0 if good ones are known already.
        restarts: whether the search restarts when many columns have been fixed. That pays if few points are of
            interest.
    """

    time_limit_s: float = math.inf
    absolute_gap: float = 1e-6
    seed: int = 0
    max_nodes: int = 2**31 - 1
    heuristic_effort: float = 0.05
    restarts: bool = True


def solve_with_highs(
    program: MixedIntegerProgram,
    settings: HighsSettings,
    *,
    start: np.ndarray | None = None,
    at_most: float = math.inf,
    on_improved: Improved | None = None,
    on_bound: Bounded | None = None,
) -> MipResult:
    """Searches for the optimum of a mixed-integer program.

    Args:
        start: a point to begin with; nan leaves a column open.
        at_most: the search is limited to points that cost no more.
        on_bound: called with the lower bound at most ten times a second.

    Raises SolverError if HiGHS refuses the program.
    """
    highs = new_highs(
        time_limit=max(settings.time_limit_s, 0.0), random_seed=settings.seed, mip_rel_gap=0.0,
        mip_abs_gap=settings.absolute_gap, mip_max_nodes=settings.max_nodes,
        mip_heuristic_effort=settings.heuristic_effort, mip_allow_restart=settings.restarts,
    )  # fmt: skip
    _pass_program(highs, program)
    if start is not None:
        _set_start(highs, start)
    if math.isfinite(at_most):
        priced = np.flatnonzero(program.costs).astype(np.int32)
        highs.addRow(-highspy.kHighsInf, at_most, len(priced), priced, program.costs[priced])
        highs.setOptionValue("objective_bound", at_most)  # prunes the tree; only the row makes the program infeasible
    if on_improved is not None:
        highs.cbMipImprovingSolution.subscribe(
            lambda event: on_improved(np.array(event.data_out.mip_solution), event.data_out.mip_dual_bound)
        )
    if on_bound is not None:
        _tell_bounds(highs, on_bound)
    highs.run()
    info, stats = highs.getInfo(), _stats_of(highs)
    if _is_infeasible(highs):
        return no_point(stats)
    stats |= {"nodes": int(info.mip_node_count), "iterations": int(info.simplex_iteration_count)}
    return MipResult(_point_of(highs), info.mip_dual_bound, optimal=_is_optimal(highs), stats=stats)


@dataclass(frozen=True)
class LinearResult:
    """The result of solving a linear program.

    Args:
        objective: the cost of `point`, which is a lower bound if `optimal`.
        point, reduced: the value and the reduced cost of each column; no point if none was found.
        slack: how much each row may still shrink.
        duals: of each row; none if HiGHS ended without.
    """

    objective: float
    point: np.ndarray | None
    slack: np.ndarray
    duals: np.ndarray
    reduced: np.ndarray
    optimal: bool
    infeasible: bool
    stats: Stats


class LinearProgram:
    """A linear program to which rows can be added between solves. Each solve continues from the one before.

    Args:
        method: the interior point method is followed by crossover.
        presolves: whether to presolve. With very many rows, that takes longer than solving.
    """

    def __init__(
        self, program: MixedIntegerProgram, *, method: LinearMethod = "choose", presolves: bool = True, seed: int = 0
    ) -> None:
        self._highs = new_highs(solver=method, random_seed=seed, presolve="choose" if presolves else "off")
        _pass_program(self._highs, program.relaxed())

    def add_rows(self, rows: sparse.csr_matrix, lower: np.ndarray) -> None:
        """Adds rows with the lower limits `lower`."""
        add_rows(self._highs, rows, lower, np.full(len(lower), math.inf))

    def solve(self, time_limit_s: float = math.inf) -> LinearResult:
        """Solves the program with the rows added so far."""
        highs = self._highs
        highs.setOptionValue("time_limit", highs.getRunTime() + max(time_limit_s, _LEAST_TIME_S))
        highs.run()
        solution, lp = highs.getSolution(), highs.getLp()
        activity = np.array(solution.row_value)
        slack = np.zeros(0)
        if len(activity) == lp.num_row_:
            slack = np.minimum(activity - np.array(lp.row_lower_), np.array(lp.row_upper_) - activity)
        return LinearResult(
            highs.getInfo().objective_function_value, _point_of(highs), slack, np.array(solution.row_dual),
            np.array(solution.col_dual), _is_optimal(highs), _is_infeasible(highs), _stats_of(highs),
        )  # fmt: skip


def new_highs(**options: Any) -> highspy.Highs:
    """Returns HiGHS on one thread, without output, with these further options."""
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, "parallel": "off", **options}.items():
        highs.setOptionValue(name, value)
    return highs


def add_rows(highs: highspy.Highs, rows: sparse.csr_matrix, lower: np.ndarray, upper: np.ndarray) -> None:
    """Adds rows to the program in HiGHS."""
    starts, columns = rows.indptr[:-1].astype(np.int32), rows.indices.astype(np.int32)
    highs.addRows(len(lower), lower, upper, rows.nnz, starts, columns, rows.data)


def _pass_program(highs: highspy.Highs, program: MixedIntegerProgram) -> None:
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = program.num_rows, program.num_columns
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.costs, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_row_, lp.a_matrix_.num_col_ = lp.num_row_, lp.num_col_
    lp.a_matrix_.start_, lp.a_matrix_.index_ = program.rows.indptr, program.rows.indices
    lp.a_matrix_.value_ = program.rows.data
    if program.is_integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(integer)] for integer in program.is_integer]
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the program; report the graph and budget that it came from")


def _set_start(highs: highspy.Highs, start: np.ndarray) -> None:
    given = np.flatnonzero(~np.isnan(start)).astype(np.int32)
    if len(given) < len(start):
        highs.setSolution(len(given), given, start[given])
        return
    solution = highspy.HighsSolution()
    solution.col_value = start.tolist()
    highs.setSolution(solution)


def _tell_bounds(highs: highspy.Highs, goes_on: Bounded) -> None:
    """Calls `goes_on` with the lower bound from time to time, and ends the search when it returns False."""
    told_at = 0.0

    def tell(_kind: Any, _message: str, out: Any, back: Any, _data: Any) -> None:
        nonlocal told_at
        if time.perf_counter() - told_at > _TELL_EVERY_S:
            told_at = time.perf_counter()
            back.user_interrupt = not goes_on(out.mip_dual_bound)

    highs.setCallback(tell, None)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)


def _point_of(highs: highspy.Highs) -> np.ndarray | None:
    feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
    has_point = highs.getInfo().primal_solution_status == feasible
    return np.array(highs.getSolution().col_value) if has_point else None


def _is_optimal(highs: highspy.Highs) -> bool:
    return highs.getModelStatus() == highspy.HighsModelStatus.kOptimal


def _is_infeasible(highs: highspy.Highs) -> bool:
    none = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    return highs.getModelStatus() in none


def _stats_of(highs: highspy.Highs) -> Stats:
    return {"backend": "highs", "model_status": highs.modelStatusToString(highs.getModelStatus())}
