"""Solves a StageModel by a library: HiGHS, Gurobi, CP-SAT or CVXPY for the MILP, HiGHS or PDLP for its relaxation.

Each function makes a MixedIntegerProgram of the model and gives the same `Answer`. Costs are handed over in units of
`model_cost_scale`, so that they stay far from the libraries' tolerances, and the absolute gap asked for is below the
least difference of two schedules' costs.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.checkmate.model import StageModel
from checkmate_tf.solvers.mip.gurobi import GurobiSettings, solve_with_gurobi
from checkmate_tf.solvers.mip.highs import HighsSettings, LinearProgram, solve_with_highs
from checkmate_tf.solvers.mip.program import Improved, LibraryUnavailable, MipResult, MixedIntegerProgram, Stats
from checkmate_tf.user_warnings import warn

_LARGEST_COST = 1e4  # that a back end sees: far above its tolerances, far below where floating point loses digits
_WHOLE = 1e-6  # a coefficient this near to 1 is 1
_LEAST_TIME_S = 0.01  # CVXPY's solvers take no limit of 0

Backend = Literal["highs", "gurobi", "cpsat", "cvxpy"]
Relaxation = Literal["auto", "simplex", "ipm", "pdlp"]


@dataclass(frozen=True)
class Answer:
    """What a back end found.

    Args:
        x: the best point, [num_columns], or None.
        bound: no point costs less than this, `fixed_cost` included, in cost units; -inf when nothing is proved.
        infeasible: proved.
        optimal: proved, within the back end's tolerances: no point costs less than `x` by a `model_cost_step`.
    """

    x: np.ndarray | None
    bound: float
    infeasible: bool = False
    optimal: bool = False
    stats: Stats = field(default_factory=dict)


def model_cost_step(model: StageModel) -> int:
    """Returns the greatest common divisor of the costs: two schedules that differ in cost differ by at least this."""
    return max(1, math.gcd(*(int(cost) for cost in np.unique(model.cost))))


def model_cost_scale(model: StageModel) -> float:
    """Returns how many cost units are one unit of the objective that back ends see."""
    return max(float(model_cost_step(model)), float(model.cost.max(initial=0.0)) / _LARGEST_COST)


def solve_milp(
    model: StageModel,
    backend: Backend,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> Answer:
    """Solves the MILP by the back end of that name; where it is unavailable by HiGHS; a warning and `stats` say why.

    Args:
        start: a point, [num_columns], with nan where it is left open.
        on_improved: called with an improving point and the bound at that time, as in `Answer`; by HiGHS only.
    """
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    solve_by = {
        "highs": _solve_by_highs,
        "gurobi": _solve_by_gurobi,
        "cpsat": _solve_by_cpsat,
        "cvxpy": _solve_by_cvxpy,
    }
    run = _Run(time_limit_s, seed, start, on_improved)
    try:
        return solve_by[backend](model, run)
    except LibraryUnavailable as error:
        warn(f"HiGHS solves the program instead of {backend}: {error}")
        answer = _solve_by_highs(model, run)
        return replace(answer, stats={**answer.stats, "fallback": str(error)})


@dataclass(frozen=True)
class _Run:
    """What the back ends are told of one run."""

    time_limit_s: float
    seed: int
    start: np.ndarray | None
    on_improved: Improved | None


def _solve_by_highs(model: StageModel, run: _Run) -> Answer:
    settings = HighsSettings(time_limit_s=run.time_limit_s, absolute_gap=_absolute_gap(model), seed=run.seed)
    scale, on_improved = model_cost_scale(model), run.on_improved

    def tell(point: np.ndarray, bound: float) -> None:
        assert on_improved is not None
        on_improved(point, model.fixed_cost + scale * bound)

    return _answer(
        model, solve_with_highs(_program(model), settings, start=run.start, on_improved=on_improved and tell)
    )


def _solve_by_gurobi(model: StageModel, run: _Run) -> Answer:
    """Solves the MILP by Gurobi, which does not report improvements.

    Raises LibraryUnavailable without gurobipy or a licence, or when the licence is limited to smaller models.
    """
    settings = GurobiSettings(run.time_limit_s, _absolute_gap(model), run.seed)
    return _answer(model, solve_with_gurobi(_program(model), settings, start=run.start))


def _solve_by_cpsat(model: StageModel, run: _Run) -> Answer:
    """Solves the MILP by CP-SAT as a pure 0-1 program: U is eliminated, and every coefficient an integer."""
    from checkmate_tf.solvers.mip.cpsat import CpSatSettings, solve_with_cpsat

    program, step = _whole_program(model), model_cost_step(model)
    others = None if run.start is None else run.start[: program.num_columns]
    result = solve_with_cpsat(program, CpSatSettings(run.time_limit_s, run.seed), start=others)
    if result.infeasible:
        return Answer(None, np.inf, infeasible=True, stats=result.stats)
    point = None
    if result.point is not None:
        point = np.zeros(len(model.cost))
        point[: program.num_columns] = result.point
    return Answer(point, model.fixed_cost + step * max(0.0, result.bound), optimal=result.optimal, stats=result.stats)


def _solve_by_cvxpy(model: StageModel, run: _Run) -> Answer:
    """Solves the MILP by a solver that CVXPY finds; it takes no start, no seed, and reports no improvements.

    Raises LibraryUnavailable where CVXPY finds none.
    """
    from checkmate_tf.solvers.mip.cvxpy import CvxpySettings, solve_with_cvxpy

    settings = CvxpySettings(max(run.time_limit_s, _LEAST_TIME_S), _absolute_gap(model))
    return _answer(model, solve_with_cvxpy(_program(model), settings))


def _program(model: StageModel) -> MixedIntegerProgram:
    """Makes the model with costs in units of `model_cost_scale`."""
    costs = model.cost / model_cost_scale(model)
    return MixedIntegerProgram(
        costs, model.lower, model.upper, model.integer, model.matrix, model.row_lower, model.row_upper
    )


def _whole_program(model: StageModel) -> MixedIntegerProgram:
    """Makes the model without U, in whole numbers: costs in steps, rows that count bytes in bytes."""
    matrix, row_lower, row_upper = model.without_usage()
    scale = np.where(_is_integral(matrix), 1.0, model.memory_unit_bytes)
    num_columns = matrix.shape[1]
    return MixedIntegerProgram(
        model.cost[:num_columns] // model_cost_step(model), np.zeros(num_columns), np.ones(num_columns),
        np.ones(num_columns, dtype=bool), sparse.csr_array(sparse.diags_array(scale) @ matrix), row_lower * scale,
        row_upper * scale,
    )  # fmt: skip


def _absolute_gap(model: StageModel) -> float:
    return 0.5 * model_cost_step(model) / model_cost_scale(model)


def _answer(model: StageModel, result: MipResult) -> Answer:
    bound = model.fixed_cost + model_cost_scale(model) * result.bound
    return Answer(result.point, bound, result.infeasible, result.optimal, result.stats)


def _is_integral(matrix: sparse.csr_array) -> np.ndarray:
    """Tells which rows have 0, 1 and -1 only, and so do not count bytes, bool [num_rows]."""
    other = np.abs(np.abs(matrix.data) - 1.0) > _WHOLE
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.bincount(row, weights=other, minlength=matrix.shape[0]) == 0


def relax(model: StageModel, method: Relaxation, *, time_limit_s: float, seed: int = 0) -> Answer:
    """Solves the LP relaxation by the method of that name; its bound is a `safe_bound`, converged or not."""
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    if method == "pdlp":
        return relax_pdlp(model, time_limit_s=time_limit_s)
    return relax_highs(model, time_limit_s=time_limit_s, seed=seed, method="simplex" if method == "auto" else method)


def relax_highs(
    model: StageModel, *, time_limit_s: float, seed: int = 0, method: Literal["simplex", "ipm"] = "simplex"
) -> Answer:
    """Solves the LP relaxation by HiGHS; the interior point method is followed by crossover."""
    result = LinearProgram(_program(model), method=method, seed=seed).solve(time_limit_s)
    if result.infeasible:
        return Answer(None, np.inf, infeasible=True, stats=result.stats)
    complete = len(result.duals) == len(model.row_lower)
    bound = safe_bound(model, result.duals * model_cost_scale(model)) if complete else -np.inf
    return Answer(result.point, bound, optimal=result.optimal, stats=result.stats)


def relax_pdlp(model: StageModel, *, time_limit_s: float) -> Answer:
    """Solves the LP relaxation by PDLP: first-order, so its point is accurate to a tolerance only."""
    from checkmate_tf.solvers.mip.pdlp import solve_with_pdlp

    result = solve_with_pdlp(_program(model), time_limit_s=time_limit_s)
    if result.infeasible:
        return Answer(None, np.inf, infeasible=True, stats=result.stats)
    return Answer(result.point, safe_bound(model, result.duals * model_cost_scale(model)), stats=result.stats)


def safe_bound(model: StageModel, duals: np.ndarray) -> float:
    """Computes the Lagrangian bound of any row duals, [num_rows]: valid however far from optimal, but for rounding.

    Duals of the wrong sign for a one-sided row are set to 0. U, the one kind of column without a limit, never needs
    more than everything at once.
    """
    allowed_lower = np.where(np.isinf(model.row_lower), 0.0, np.maximum(duals, 0.0))
    allowed_upper = np.where(np.isinf(model.row_upper), 0.0, np.minimum(duals, 0.0))
    multipliers = allowed_lower + allowed_upper
    rows = np.where(multipliers > 0, model.row_lower, np.where(multipliers < 0, model.row_upper, 0.0))
    reduced = model.cost - model.matrix.T @ multipliers
    upper = np.where(np.isinf(model.upper), model.most_usage, model.upper)
    return model.fixed_cost + float(multipliers @ rows + np.minimum(reduced * model.lower, reduced * upper).sum())
