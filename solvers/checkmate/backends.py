"""Solves a StageModel with a library.

The MILP is solved by HiGHS, Gurobi, CP-SAT or CVXPY, and its relaxation by HiGHS, Gurobi, PDLP or CVXPY.

Each function turns the model into a MixedIntegerProgram and returns an `Answer`. Costs are passed in units of
`model_cost_scale`, which keeps them far from the libraries' tolerances. The requested absolute gap is below the least
difference of two schedules' costs.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.checkmate.model import StageModel
from checkmate_tf.solvers.mip.gurobi import GurobiSettings, relax_with_gurobi, solve_with_gurobi
from checkmate_tf.solvers.mip.highs import HighsSettings, LinearProgram, solve_with_highs
from checkmate_tf.solvers.mip.program import (
    CvxpySolver,
    Improved,
    LibraryUnavailable,
    LicenceTooSmall,
    LinearDuals,
    MipResult,
    MixedIntegerProgram,
    Stats,
)
from checkmate_tf.user_warnings import warn

_LARGEST_COST = 1e4  # largest cost in a program: far above tolerances, and far below the digits that floats lose
_WHOLE = 1e-6  # a coefficient this close to 1 counts as 1

# "auto" is Gurobi if its licence allows the size, otherwise HiGHS.
Backend = Literal["auto", "highs", "gurobi", "cpsat", "cvxpy"]
# "simplex" and "ipm" are HiGHS's methods; "auto" is Gurobi if its licence allows the size, otherwise "simplex".
Relaxation = Literal["auto", "simplex", "ipm", "pdlp", "gurobi", "cvxpy"]


@dataclass(frozen=True)
class Answer:
    """The result of a back end.

    Args:
        x: the best point, [num_columns], or None.
        bound: lower bound on the cost of every point, including `fixed_cost`, in cost units; -inf without a proof.
        infeasible: the back end proved that there is no point.
        optimal: the back end proved, within its tolerances, that no point costs less than `x` by a `cost_step`.
    """

    x: np.ndarray | None
    bound: float
    infeasible: bool = False
    optimal: bool = False
    stats: Stats = field(default_factory=dict)


def model_cost_scale(model: StageModel) -> float:
    """Returns the number of cost units in one unit of the objective that the back ends minimize."""
    return max(float(model.cost_step), float(model.cost.max(initial=0.0)) / _LARGEST_COST)


def solve_milp(
    model: StageModel,
    backend: Backend,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
    cvxpy_solver: CvxpySolver = "HIGHS",
) -> Answer:
    """Solves the MILP with the named back end.

    If the back end is unavailable, HiGHS solves the program instead, and a warning and the entry "fallback" of `stats`
    say why. For the back end "auto", a licence that is too small causes no warning.

    Args:
        start: a point, [num_columns]; nan leaves a column open.
        on_improved: called with each better point and the bound at that time, as in `Answer`. HiGHS and Gurobi call it.
        cvxpy_solver: the solver that CVXPY calls.
    """
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    solve_by = {
        "auto": _solve_by_gurobi,
        "highs": _solve_by_highs,
        "gurobi": _solve_by_gurobi,
        "cpsat": _solve_by_cpsat,
        "cvxpy": _solve_by_cvxpy,
    }
    run = _Run(time.perf_counter() + time_limit_s, seed, start, on_improved, cvxpy_solver)
    try:
        return solve_by[backend](model, run)
    except LibraryUnavailable as error:
        _tell_fallback(backend, error)
        answer = _solve_by_highs(model, run)
        return replace(answer, stats={**answer.stats, "fallback": str(error)})


def _tell_fallback(backend: str, error: LibraryUnavailable) -> None:
    if backend != "auto" or not isinstance(error, LicenceTooSmall):
        warn(f"HiGHS solves the program instead of {'gurobi' if backend == 'auto' else backend}: {error}")


@dataclass(frozen=True)
class _Run:
    """The arguments of one run that every back end takes."""

    deadline_s: float
    seed: int
    start: np.ndarray | None = None
    on_improved: Improved | None = None
    cvxpy_solver: CvxpySolver = "HIGHS"

    @property
    def time_limit_s(self) -> float:
        """The time that is left."""
        return max(0.0, self.deadline_s - time.perf_counter())


def _solve_by_highs(model: StageModel, run: _Run) -> Answer:
    settings = HighsSettings(time_limit_s=run.time_limit_s, absolute_gap=_absolute_gap(model), seed=run.seed)
    found = solve_with_highs(_program(model), settings, start=run.start, on_improved=_scaled(model, run.on_improved))
    return _answer(model, found)


def _solve_by_gurobi(model: StageModel, run: _Run) -> Answer:
    """Solves the MILP by Gurobi. Raises LibraryUnavailable without Gurobi or a licence that allows the model."""
    settings = GurobiSettings(run.time_limit_s, _absolute_gap(model), run.seed)
    found = solve_with_gurobi(_program(model), settings, start=run.start, on_improved=_scaled(model, run.on_improved))
    return _answer(model, found)


def _scaled(model: StageModel, on_improved: Improved | None) -> Improved | None:
    """Returns a callback for a library, which converts the library's bound to units of cost."""
    if on_improved is None:
        return None
    scale = model_cost_scale(model)
    return lambda point, bound: on_improved(point, model.fixed_cost + scale * bound)


def _solve_by_cpsat(model: StageModel, run: _Run) -> Answer:
    """Solves the MILP by CP-SAT as a pure 0-1 program: U is eliminated, and every coefficient is an integer."""
    from checkmate_tf.solvers.mip.cpsat import CpSatSettings, solve_with_cpsat

    if len(model.fetched.column):
        raise LibraryUnavailable("CP-SAT solves programs of whole numbers only, and times of copies are none")
    program, step = _whole_program(model), model.cost_step
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
    """Solves the MILP by a solver that CVXPY finds. It takes no start and no seed, and reports no improvements.

    Raises LibraryUnavailable if CVXPY finds no such solver.
    """
    from checkmate_tf.solvers.mip.cvxpy import CvxpySettings, solve_with_cvxpy

    settings = CvxpySettings(run.time_limit_s, _absolute_gap(model), run.cvxpy_solver)
    return _answer(model, solve_with_cvxpy(_program(model), settings))


def _program(model: StageModel) -> MixedIntegerProgram:
    """Returns the model with costs in units of `model_cost_scale`."""
    costs = model.cost / model_cost_scale(model)
    return MixedIntegerProgram(
        costs, model.lower, model.upper, model.integer, model.matrix, model.row_lower, model.row_upper
    )


def _whole_program(model: StageModel) -> MixedIntegerProgram:
    """Returns the model without U and in whole numbers: costs in cost steps, and rows of memory in bytes."""
    matrix, row_lower, row_upper = model.without_usage()
    scale = np.where(_is_integral(matrix), 1.0, model.memory_unit_bytes)
    num_columns = matrix.shape[1]
    return MixedIntegerProgram(
        model.cost[:num_columns] // model.cost_step, np.zeros(num_columns), np.ones(num_columns),
        np.ones(num_columns, dtype=bool), sparse.csr_array(sparse.diags_array(scale) @ matrix), row_lower * scale,
        row_upper * scale,
    )  # fmt: skip


def _absolute_gap(model: StageModel) -> float:
    return 0.5 * model.cost_step / model_cost_scale(model)


def _answer(model: StageModel, result: MipResult) -> Answer:
    bound = model.fixed_cost + model_cost_scale(model) * result.bound
    return Answer(result.point, bound, result.infeasible, result.optimal, result.stats)


def _is_integral(matrix: sparse.csr_array) -> np.ndarray:
    """Returns the rows whose coefficients are all 0, 1 or -1, which therefore count no bytes, bool [num_rows]."""
    other = np.abs(np.abs(matrix.data) - 1.0) > _WHOLE
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.bincount(row, weights=other, minlength=matrix.shape[0]) == 0


def relax(
    model: StageModel, backend: Relaxation, *, time_limit_s: float, seed: int = 0, cvxpy_solver: CvxpySolver = "HIGHS"
) -> Answer:
    """Solves the LP relaxation with the named back end. Its bound is a `safe_bound`, so it holds even if unconverged.

    If the back end is unavailable, HiGHS's simplex method replaces it, as in `solve_milp`.
    """
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    relax_by = {
        "auto": _relax_by_gurobi,
        "simplex": _relax_by_simplex,
        "ipm": _relax_by_interior_point,
        "pdlp": _relax_by_pdlp,
        "gurobi": _relax_by_gurobi,
        "cvxpy": _relax_by_cvxpy,
    }
    run = _Run(time.perf_counter() + time_limit_s, seed, cvxpy_solver=cvxpy_solver)
    try:
        found = relax_by[backend](_program(model), run)
        reason: Stats = {}
    except LibraryUnavailable as error:
        _tell_fallback(backend, error)
        found = _relax_by_simplex(_program(model), run)
        reason = {"fallback": str(error)}
    if found.infeasible:
        return Answer(None, np.inf, infeasible=True, stats={**found.stats, **reason})
    complete = len(found.duals) == len(model.row_lower)
    bound = safe_bound(model, found.duals * model_cost_scale(model)) if complete else -np.inf
    return Answer(found.point, bound, optimal=found.optimal, stats={**found.stats, **reason})


def _relax_by_simplex(program: MixedIntegerProgram, run: _Run) -> LinearDuals:
    return _relax_by_highs(program, run, "simplex")


def _relax_by_interior_point(program: MixedIntegerProgram, run: _Run) -> LinearDuals:
    """Solves the relaxation by HiGHS's interior point method, followed by crossover."""
    return _relax_by_highs(program, run, "ipm")


def _relax_by_highs(program: MixedIntegerProgram, run: _Run, method: Literal["simplex", "ipm"]) -> LinearDuals:
    found = LinearProgram(program, method=method, seed=run.seed).solve(run.time_limit_s)
    return LinearDuals(found.point, found.duals, found.infeasible, found.optimal, found.stats)


def _relax_by_pdlp(program: MixedIntegerProgram, run: _Run) -> LinearDuals:
    """Solves the relaxation by PDLP, a first-order method, whose point is accurate only to a tolerance."""
    from checkmate_tf.solvers.mip.pdlp import solve_with_pdlp

    return solve_with_pdlp(program, time_limit_s=run.time_limit_s)


def _relax_by_gurobi(program: MixedIntegerProgram, run: _Run) -> LinearDuals:
    return relax_with_gurobi(program, GurobiSettings(run.time_limit_s, seed=run.seed))


def _relax_by_cvxpy(program: MixedIntegerProgram, run: _Run) -> LinearDuals:
    from checkmate_tf.solvers.mip.cvxpy import CvxpySettings, relax_with_cvxpy

    return relax_with_cvxpy(program, CvxpySettings(run.time_limit_s, solver=run.cvxpy_solver))


def safe_bound(model: StageModel, duals: np.ndarray) -> float:
    """Returns the Lagrangian lower bound of the row duals, [num_rows]. Up to rounding, it holds for any duals.

    Duals of the wrong sign for a one-sided row are set to 0. U is the only kind of column without a limit, and it never
    exceeds the sum of all sizes.
    """
    allowed_lower = np.where(np.isinf(model.row_lower), 0.0, np.maximum(duals, 0.0))
    allowed_upper = np.where(np.isinf(model.row_upper), 0.0, np.minimum(duals, 0.0))
    multipliers = allowed_lower + allowed_upper
    rows = np.where(multipliers > 0, model.row_lower, np.where(multipliers < 0, model.row_upper, 0.0))
    reduced = model.cost - model.matrix.T @ multipliers
    upper = np.where(np.isinf(model.upper), model.most_usage, model.upper)
    return model.fixed_cost + float(multipliers @ rows + np.minimum(reduced * model.lower, reduced * upper).sum())
