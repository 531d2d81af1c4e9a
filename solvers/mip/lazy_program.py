"""Solves linear programs while HiGHS holds only the rows that their solutions need."""

import math
from dataclasses import dataclass, replace

import highspy
import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip.highs import add_rows, new_highs
from checkmate_tf.solvers.mip.program import MixedIntegerProgram

_VIOLATED = 1e-6
_MANY_ROUNDS = 50
_FEW_ROUNDS = 4
_LEAST_RISE = 1e-4
_OLD = 60  # runs of HiGHS in which a row was not used
_MANY_OLD = 0.3  # of the rows
_SLACK = 1e-6  # more than the rounding error of a bound


@dataclass(frozen=True)
class LazySolution:
    """The result of solving a lazy program.

    Args:
        bound: a lower bound, which holds for any dual values; infinite if there is no point.
        point, reduced: the value and the reduced cost of each column; none if HiGHS found no optimum.
        complete: the point violates no row.
    """

    bound: float
    point: np.ndarray | None = None
    reduced: np.ndarray | None = None
    complete: bool = False


class LazyProgram:
    """The linear relaxation of a program, for column bounds that change from solve to solve.

    Args:
        needed: the rows to begin with.
    """

    def __init__(self, program: MixedIntegerProgram, needed: np.ndarray) -> None:
        self._costs = program.costs
        self._rows, self._lower, self._upper = program.rows, program.row_lower, program.row_upper
        self._transposed = program.rows.T.tocsr()
        self._inside = np.zeros(0, dtype=np.int64)  # the rows in HiGHS, in its order
        self._unused = np.zeros(0, dtype=np.int64)  # the number of runs since a row was last used
        self._highs = new_highs(presolve="off", simplex_strategy=1)
        lp = highspy.HighsLp()
        lp.num_col_, lp.col_cost_ = program.num_columns, program.costs
        lp.col_lower_, lp.col_upper_ = program.lower, program.upper
        lp.a_matrix_.num_col_ = program.num_columns
        self._highs.passModel(lp)
        self._column_bounds = program.lower, program.upper
        self._give(needed)

    def add_rows(self, rows: sparse.csr_matrix, lower: np.ndarray) -> None:
        """Adds rows with the lower limits `lower`, all of which are needed now."""
        first = len(self._lower)
        self._rows = sparse.vstack([self._rows, rows], format="csr")
        self._transposed = self._rows.T.tocsr()
        self._lower = np.concatenate([self._lower, lower])
        self._upper = np.concatenate([self._upper, np.full(len(lower), math.inf)])
        self._give(np.arange(first, len(self._lower)))

    def solve(self, lower: np.ndarray, upper: np.ndarray, until_complete: bool = False) -> LazySolution:
        """Solves it, and adds rows until none is violated or, unless `until_complete`, they hardly raise the bound."""
        self._bound_columns(lower, upper)
        bound = -math.inf
        for number in range(_MANY_ROUNDS):
            solution = self._run(2**31 - 1)
            if solution.point is None:
                return solution
            violated = self._violated(solution.point)
            rise, bound = solution.bound - bound, max(bound, solution.bound)
            is_last = number >= _FEW_ROUNDS and rise <= _LEAST_RISE * abs(bound) and not until_complete
            if not len(violated) or is_last:
                break
            self._give(violated)
        self._drop_old()
        return replace(solution, complete=not len(violated))

    def bound_within(self, max_iterations: int, lower: np.ndarray, upper: np.ndarray) -> float:
        """Returns a lower bound from a few iterations."""
        self._bound_columns(lower, upper)
        return self._run(max_iterations).bound

    def _run(self, max_iterations: int) -> LazySolution:
        self._highs.setOptionValue("simplex_iteration_limit", max_iterations)
        self._highs.run()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return LazySolution(math.inf)
        found = self._highs.getSolution()
        if not found.dual_valid:
            return LazySolution(-math.inf)
        bound, reduced = self._bound(np.array(found.row_dual))
        if status != highspy.HighsModelStatus.kOptimal:
            return LazySolution(bound)
        return LazySolution(bound, np.array(found.col_value), reduced)

    def _bound(self, dual: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the Lagrangian bound of these dual values of the rows in HiGHS, and the columns' reduced costs."""
        ends = np.where(dual > 0, self._lower[self._inside], self._upper[self._inside])
        dual = np.where(np.isfinite(ends), dual, 0.0)
        self._unused = np.where(np.abs(dual) > 1e-9, 0, self._unused + 1)
        prices = np.zeros(len(self._lower))
        prices[self._inside] = dual
        reduced = self._costs - self._transposed @ prices
        lower, upper = self._column_bounds
        of_rows = float(dual @ np.where(np.isfinite(ends), ends, 0.0))
        return of_rows + float(np.where(reduced > 0, reduced * lower, reduced * upper).sum()) - _SLACK, reduced

    def _violated(self, point: np.ndarray) -> np.ndarray:
        activity = self._rows @ point
        violation = np.maximum(activity - self._upper, self._lower - activity)
        violation[self._inside] = 0
        return np.flatnonzero(violation > _VIOLATED)

    def _give(self, rows: np.ndarray) -> None:
        add_rows(self._highs, self._rows[rows], self._lower[rows], self._upper[rows])
        self._inside = np.concatenate([self._inside, rows])
        self._unused = np.concatenate([self._unused, np.zeros(len(rows), dtype=np.int64)])

    def _drop_old(self) -> None:
        old = self._unused > _OLD
        if old.sum() <= _MANY_OLD * len(old):
            return
        basis = self._highs.getBasis()
        row_status, column_status = list(basis.row_status), list(basis.col_status)
        basic = np.array([status == highspy.HighsBasisStatus.kBasic for status in row_status])
        dropped = old & basic
        kept = np.flatnonzero(~dropped)
        rows = np.flatnonzero(dropped).astype(np.int32)
        self._highs.deleteRows(len(rows), rows)
        self._inside, self._unused = self._inside[kept], self._unused[kept]
        basis = highspy.HighsBasis()
        basis.col_status, basis.row_status = column_status, [row_status[row] for row in kept.tolist()]
        basis.valid = True
        self._highs.setBasis(basis)

    def _bound_columns(self, lower: np.ndarray, upper: np.ndarray) -> None:
        columns = np.flatnonzero((lower != self._column_bounds[0]) | (upper != self._column_bounds[1])).astype(np.int32)
        if len(columns):
            self._highs.changeColsBounds(len(columns), columns, lower[columns], upper[columns])
            self._column_bounds = lower, upper
