"""Solves the mixed-integer program of a block relaxation with CP-SAT or HiGHS.

CP-SAT calculates in whole numbers, so its bound is exact. On graphs of some hundred nodes it is several times faster
than HiGHS, because all rows except those of memory are clauses. HiGHS is better if there are very many columns.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip import highs as mip_highs
from checkmate_tf.solvers.mip.highs import HighsSettings, LinearProgram
from checkmate_tf.solvers.mip.program import MixedIntegerProgram
from checkmate_tf.solvers.relaxation.model import BlockModel, Term
from checkmate_tf.solvers.relaxation.settings import SETTINGS

# The largest cost in HiGHS's units: far above its tolerances, and far below the digits that it loses.
_LARGEST_COST = 1e3
_ROUNDING = 1e-6  # HiGHS's tolerance, in these units


@dataclass(frozen=True)
class Relaxed:
    """A lower bound on the extra cost, in units of cost, and the best point found.

    Args:
        lower_bound: infinite if there is no point (at most `at_most`, if that was given).
        optimal: the point is within the gap asked for.
    """

    lower_bound: float
    point: np.ndarray | None
    optimal: bool


def _without_columns(model: BlockModel) -> Relaxed:
    if model.infeasible:
        return Relaxed(math.inf, None, optimal=False)
    return Relaxed(0.0, np.zeros(0), optimal=True)


def bound_with_highs(
    model: BlockModel,
    *,
    gap: float = 0.0,
    time_limit_s: float = math.inf,
    start: np.ndarray | None = None,
    max_nodes: int = 2**30,
    at_most: float = math.inf,
    on_bound: Callable[[float], bool] | None = None,
) -> Relaxed:
    """Finds the cheapest point of a model with HiGHS, or a lower bound.

    Args:
        gap: difference between point and bound, in units of cost, at which to stop.
        start: a point to begin with.
        max_nodes: limit of the search tree.
        at_most: the search is limited to points that cost no more.
        on_bound: called with the lower bound from time to time; returns whether to continue.
    """
    if model.infeasible or not model.num_columns:
        return _without_columns(model)
    program, scale = _scaled_program(model), cost_scale(model)
    unit = scale * model.cost_unit
    settings = HighsSettings(
        time_limit_s=max(time_limit_s, 0.01), absolute_gap=max(gap / unit, _ROUNDING), max_nodes=max_nodes,
        heuristic_effort=0.0, restarts=math.isfinite(at_most),
    )  # fmt: skip
    slack = _ROUNDING + 1e-9 * model.num_columns  # error of the bound that HiGHS's tolerances allow

    def safe(bound: float) -> float:
        return (bound - slack - 1e-9 * abs(bound)) * unit if math.isfinite(bound) else 0.0

    result = mip_highs.solve_with_highs(
        program, settings, start=start,
        # Costs are whole numbers, so half a unit more admits nothing else.
        at_most=(math.floor(at_most / model.cost_unit) + 0.5) / scale if math.isfinite(at_most) else math.inf,
        on_bound=None if on_bound is None else lambda bound: on_bound(safe(bound)),
    )  # fmt: skip
    if result.infeasible:
        return Relaxed(math.inf, None, optimal=False)
    return Relaxed(safe(result.bound), result.point, optimal=result.optimal)


@dataclass(frozen=True)
class LinearOptimum:
    """The optimum of the linear relaxation.

    Args:
        bound: in units of cost.
        slack: how much each row may still shrink.
        worth: the worth of a unit of each row, in units of cost.
        reduced: the reduced cost of each column, in units of cost.
    """

    bound: float
    point: np.ndarray
    slack: np.ndarray
    worth: np.ndarray
    reduced: np.ndarray


class LinearRelaxation:
    """The linear relaxation of a model, to which rows can be added between solves."""

    def __init__(self, model: BlockModel) -> None:
        self._unit = cost_scale(model) * model.cost_unit
        self._num_columns = model.num_columns
        program = _scaled_program(model)
        self._program = LinearProgram(program, presolves=program.num_rows <= SETTINGS.presolve_rows)

    def add_rows(self, rows: Iterable[tuple[Sequence[Term], int]]) -> None:
        """Adds rows, each given by its terms and their least sum."""
        self._program.add_rows(*rows_of_terms(rows, self._num_columns))

    def solve(self, time_limit_s: float = math.inf) -> LinearOptimum | None:
        """Solves the relaxation. Returns None if there is no point, or if time is up."""
        result = self._program.solve(time_limit_s)
        if not result.optimal or result.point is None:
            return None
        slack_of_duals = _ROUNDING + 1e-7 * self._num_columns  # HiGHS's tolerance on each reduced cost
        bound = (result.objective - slack_of_duals) * self._unit
        return LinearOptimum(bound, result.point, result.slack, np.abs(result.duals), result.reduced * self._unit)


def rows_of_terms(rows: Iterable[tuple[Sequence[Term], int]], num_columns: int) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Returns the coefficients of rows given by their terms, and the least sum of each row."""
    data, columns, starts, lower = [], [], [0], []
    for terms, at_least in rows:
        there = [(column, coefficient) for column, coefficient in terms if column is not None]
        columns += [column for column, _ in there]
        data += [float(coefficient) for _, coefficient in there]
        starts.append(len(columns))
        lower.append(float(at_least))
    return sparse.csr_matrix((data, columns, starts), (len(lower), num_columns)), np.array(lower)


def cost_scale(model: BlockModel) -> float:
    """Returns the number of the model's units of cost in one unit of HiGHS's objective."""
    return max(float(model.costs.max(initial=1)) / _LARGEST_COST, 1.0)


def _scaled_program(model: BlockModel) -> MixedIntegerProgram:
    """Returns the program of a model in numbers that suit floating point."""
    rows, scale = model.rows, np.repeat(model.rows.scale, np.diff(model.rows.start))
    return _program(
        model, model.costs / cost_scale(model), rows.coefficient / scale, rows.lower / rows.scale,
        rows.upper / rows.scale,
    )  # fmt: skip


def _program(
    model: BlockModel, costs: np.ndarray, coefficients: np.ndarray, row_lower: np.ndarray, row_upper: np.ndarray
) -> MixedIntegerProgram:
    lower, upper = np.zeros(model.num_columns), np.ones(model.num_columns)
    columns, values = list(model.fixed), [float(value) for value in model.fixed.values()]
    lower[columns] = upper[columns] = values
    is_integer = np.zeros(model.num_columns, dtype=bool)
    is_integer[model.integers] = True
    places = (coefficients, model.rows.column, model.rows.start)
    rows = sparse.csr_array(places, shape=(len(row_lower), model.num_columns))
    return MixedIntegerProgram(costs, lower, upper, is_integer, rows, row_lower, row_upper)


def bound_with_cpsat(
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
    """Finds the cheapest point of a model with CP-SAT, or a lower bound.

    Further arguments are as for `bound_with_highs`.

    Args:
        at_least, at_most: the search is limited to points with a cost between these.
        work_limit: limit of CP-SAT's deterministic time, roughly in seconds.
        on_bound: called with each lower bound as it is proved; returns whether to continue.
    """
    from checkmate_tf.solvers.mip.cpsat import CpSatSettings, solve_with_cpsat

    if model.infeasible or not model.num_columns:
        return _without_columns(model)
    unit, rows = model.cost_unit, model.rows
    settings = CpSatSettings(
        time_limit_s, seed, work_limit=work_limit, linearizes_all=True, raises_bound=True,
        absolute_gap=max(gap / unit, 1e-4),
    )  # fmt: skip
    result = solve_with_cpsat(
        _program(model, model.costs, rows.coefficient, rows.lower, rows.upper),
        settings,
        at_least=math.ceil(at_least / unit - 1e-9) if at_least > 0 else -math.inf,
        at_most=math.floor(at_most / unit) if math.isfinite(at_most) else math.inf,
        on_bound=None if on_bound is None else lambda bound: on_bound(bound * unit),
    )
    if result.infeasible:
        return Relaxed(math.inf, None, optimal=False)
    return Relaxed(max(result.bound, 0.0) * unit, result.point, optimal=result.optimal)
