"""Gurobi: mixed-integer programs, where gurobipy is installed with a licence."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip.program import LibraryUnavailable, MipResult, MixedIntegerProgram, Stats, no_point


@dataclass(frozen=True)
class GurobiSettings:
    """How Gurobi searches, on one thread.

    Args:
        absolute_gap: of the best point's cost and the bound, at which to stop.
    """

    time_limit_s: float
    absolute_gap: float
    seed: int = 0


def solve_with_gurobi(
    program: MixedIntegerProgram, settings: GurobiSettings, *, start: np.ndarray | None = None
) -> MipResult:
    """Searches for the optimum; `start` is a point to begin with, nan where it is left open.

    Raises LibraryUnavailable without gurobipy or a licence, or when the licence is limited to smaller programs.
    """
    try:
        import gurobipy
    except ImportError as error:
        raise LibraryUnavailable("Gurobi is not installed: pip install checkmate_tf[gurobi]") from error
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as model:
            kinds = np.where(program.is_integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS)
            x = model.addMVar(program.num_columns, lb=program.lower, ub=program.upper, obj=program.costs, vtype=kinds)
            for limit, sense in ((program.row_upper, "<"), (program.row_lower, ">")):
                some = np.flatnonzero(np.isfinite(limit))
                model.addMConstr(sparse.csr_matrix(program.rows[some]), x, sense, limit[some])
            if start is not None:
                x.setAttr("Start", np.where(np.isnan(start), gurobipy.GRB.UNDEFINED, start))
            model.Params.TimeLimit, model.Params.Seed = max(0.0, settings.time_limit_s), settings.seed
            model.Params.Threads, model.Params.MIPGap, model.Params.MIPGapAbs = 1, 0.0, settings.absolute_gap
            model.optimize()
            stats: Stats = {"backend": "gurobi", "model_status": int(model.Status), "nodes": int(model.NodeCount)}
            if model.Status in (gurobipy.GRB.INFEASIBLE, gurobipy.GRB.INF_OR_UNBD):
                return no_point(stats)
            point = np.array(x.X) if model.SolCount else None
            return MipResult(point, model.ObjBound, optimal=model.Status == gurobipy.GRB.OPTIMAL, stats=stats)
    except gurobipy.GurobiError as error:
        if error.errno == gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise LibraryUnavailable(
                f"Gurobi's size-limited licence does not allow a model of {program.num_columns} columns and "
                f"{program.num_rows} rows (2000 each); install a full licence, or use HiGHS"
            ) from error
        raise LibraryUnavailable(f"Gurobi cannot run: {error}; see to its licence, or use HiGHS") from error
