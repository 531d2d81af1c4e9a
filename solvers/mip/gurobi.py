"""Gurobi: mixed-integer and linear programs, if its licence allows their size.

gurobipy includes a licence for programs of at most 2,000 columns and 2,000 rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip.program import (
    Improved,
    LibraryUnavailable,
    LicenceTooSmall,
    LinearDuals,
    MipResult,
    MixedIntegerProgram,
    Stats,
    no_point,
)

_LIMITED_SIZE = 2000  # columns, and rows, that the licence included in gurobipy allows


@dataclass(frozen=True)
class GurobiSettings:
    """The settings of a search with Gurobi, which runs on one thread.

    Args:
        absolute_gap: difference between the best point's cost and the bound at which the search stops.
    """

    time_limit_s: float
    absolute_gap: float = 1e-6
    seed: int = 0


def solve_with_gurobi(
    program: MixedIntegerProgram,
    settings: GurobiSettings,
    *,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> MipResult:
    """Searches for the optimum. `start` is a point to begin with; nan leaves a column open.

    Raises LibraryUnavailable without gurobipy or a licence, and LicenceTooSmall if the licence is limited to smaller
    programs.
    """
    with _model_of(program, settings) as built:
        gurobipy, model, x = built.gurobipy, built.model, built.x
        if start is not None:
            x.setAttr("Start", np.where(np.isnan(start), gurobipy.GRB.UNDEFINED, start))
        model.optimize(on_improved and _teller(gurobipy, x, on_improved))
        stats: Stats = {**_stats_of(model), "nodes": int(model.NodeCount)}
        if _is_infeasible(built):
            return no_point(stats)
        point = np.array(x.X) if model.SolCount else None
        return MipResult(point, model.ObjBound, optimal=model.Status == gurobipy.GRB.OPTIMAL, stats=stats)


def relax_with_gurobi(program: MixedIntegerProgram, settings: GurobiSettings) -> LinearDuals:
    """Solves a program's linear relaxation. Raises as `solve_with_gurobi` does."""
    with _model_of(program.relaxed(), settings) as built:
        built.model.optimize()
        stats = _stats_of(built.model)
        duals = np.zeros(program.num_rows)
        if _is_infeasible(built):
            return LinearDuals(None, duals, infeasible=True, stats=stats)
        if built.model.Status != built.gurobipy.GRB.OPTIMAL:
            return LinearDuals(None, duals, stats=stats)
        for rows, constraints in built.rows:
            duals[rows] += constraints.Pi
        return LinearDuals(np.array(built.x.X), duals, optimal=True, stats=stats)


@dataclass(frozen=True)
class _Built:
    """A program built in Gurobi.

    Args:
        gurobipy: the package.
        x: the columns.
        rows: the rows with each kind of limit, and the constraints that represent them.
    """

    gurobipy: Any
    model: Any
    x: Any
    rows: list[tuple[np.ndarray, Any]]


@contextmanager
def _model_of(program: MixedIntegerProgram, settings: GurobiSettings) -> Iterator[_Built]:
    """Builds the program in Gurobi. Errors of Gurobi within the block are raised as LibraryUnavailable."""
    try:
        import gurobipy
    except ImportError as error:
        raise LibraryUnavailable("Gurobi is not installed: pip install gurobipy") from error
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as model:
            if max(program.num_columns, program.num_rows) > _LIMITED_SIZE:
                _try_size(gurobipy, environment)
            kinds = np.where(program.is_integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS)
            x = model.addMVar(program.num_columns, lb=program.lower, ub=program.upper, obj=program.costs, vtype=kinds)
            rows = []
            equal = program.row_lower == program.row_upper
            below, above = np.isfinite(program.row_upper) & ~equal, np.isfinite(program.row_lower) & ~equal
            for wanted, sense, limit in (
                (equal, "=", program.row_upper), (below, "<", program.row_upper), (above, ">", program.row_lower),
            ):  # fmt: skip
                some = np.flatnonzero(wanted)
                rows.append((some, model.addMConstr(sparse.csr_matrix(program.rows[some]), x, sense, limit[some])))
            model.Params.TimeLimit, model.Params.Seed = max(0.0, settings.time_limit_s), settings.seed
            model.Params.Threads, model.Params.MIPGap, model.Params.MIPGapAbs = 1, 0.0, settings.absolute_gap
            yield _Built(gurobipy, model, x, rows)
    except gurobipy.GurobiError as error:
        if error.errno == gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise LicenceTooSmall(
                f"Gurobi's licence here allows {_LIMITED_SIZE} columns and {_LIMITED_SIZE} rows, fewer than the "
                "program has; install a full licence, or ask for HiGHS"
            ) from error
        raise LibraryUnavailable(f"Gurobi cannot run: {error}; check its licence, or ask for HiGHS") from error


def _try_size(gurobipy: Any, environment: Any) -> None:
    """Solves an empty program above the limited licence's size, which that licence refuses.

    The refusal then comes before a large program is built.
    """
    with gurobipy.Model(env=environment) as model:
        model.addMVar(_LIMITED_SIZE + 1)
        model.optimize()


def _teller(gurobipy: Any, x: Any, on_improved: Improved) -> Callable[[Any, int], None]:
    def tell(model: Any, where: int) -> None:
        if where == gurobipy.GRB.Callback.MIPSOL:
            on_improved(model.cbGetSolution(x), model.cbGet(gurobipy.GRB.Callback.MIPSOL_OBJBND))

    return tell


def _stats_of(model: Any) -> Stats:
    return {"backend": "gurobi", "model_status": int(model.Status)}


def _is_infeasible(built: _Built) -> bool:
    grb = built.gurobipy.GRB
    return built.model.Status in (grb.INFEASIBLE, grb.INF_OR_UNBD)
