"""Back ends for a StageModel, one function each: HiGHS, Gurobi, CP-SAT for the MILP; HiGHS and PDLP for its relaxation.

Each takes the same model and gives the same `Answer`. Costs are handed over in units of `cost_scale`, so that they stay
far from the solvers' tolerances, and the absolute gap asked for is below the least difference of two schedules' costs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import sparse

from checkmate_tf.errors import SolverError
from checkmate_tf.solvers.checkmate.model import StageModel

_LARGEST_COST = 1e4
_WHOLE = 1e-6

Backend = Literal["highs", "gurobi", "cpsat"]
Relaxation = Literal["auto", "simplex", "ipm", "pdlp"]

Improved = Callable[[np.ndarray, float], None]
Stats = dict[str, float | int | str]
"""Called with an improving point and the bound at that time, as in `Answer`."""


@dataclass(frozen=True)
class Answer:
    """What a back end found.

    Args:
        x: the best point, [num_columns], or None.
        bound: no point costs less than this, `fixed_cost` included, in cost units; -inf when nothing is proved.
        infeasible: proved.
        optimal: proved, within the back end's tolerances: no point costs less than `x` by a `cost_step`.
    """

    x: np.ndarray | None
    bound: float
    infeasible: bool = False
    optimal: bool = False
    stats: Stats = field(default_factory=dict)


def cost_step(model: StageModel) -> int:
    """The greatest common divisor of the costs: two schedules that differ in cost differ by at least this."""
    return max(1, math.gcd(*(int(cost) for cost in np.unique(model.cost))))


def cost_scale(model: StageModel) -> float:
    """Cost units in one unit of the objective that back ends see."""
    return max(float(cost_step(model)), float(model.cost.max(initial=0.0)) / _LARGEST_COST)


class BackendUnavailable(SolverError):
    """A back end is not installed here, or its licence does not allow this model."""


def solve(
    model: StageModel,
    backend: Backend,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> Answer:
    """The MILP by the back end of that name; where it is unavailable by HiGHS, and `stats` say why.

    `start` is a point, [num_columns], with nan where it is left open.
    """
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    run = {"highs": solve_highs, "gurobi": solve_gurobi, "cpsat": solve_cpsat}[backend]
    try:
        return run(model, time_limit_s=time_limit_s, seed=seed, start=start, on_improved=on_improved)
    except BackendUnavailable as error:
        answer = solve_highs(model, time_limit_s=time_limit_s, seed=seed, start=start, on_improved=on_improved)
        return replace(answer, stats={**answer.stats, "fallback": str(error)})


def solve_highs(
    model: StageModel,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> Answer:
    """The MILP by HiGHS; arguments as for `solve`."""
    highs = _highs(model, time_limit_s=time_limit_s, seed=seed, relaxed=False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.5 * cost_step(model) / cost_scale(model))
    if start is not None:
        given = np.flatnonzero(~np.isnan(start)).astype(np.int32)
        highs.setSolution(len(given), given, start[given])
    if on_improved is not None:
        scale = cost_scale(model)
        highs.cbMipImprovingSolution.subscribe(
            lambda event: on_improved(
                np.array(event.data_out.mip_solution), model.fixed_cost + scale * event.data_out.mip_dual_bound
            )
        )
    highs.run()
    return _highs_answer(model, highs)


def solve_gurobi(
    model: StageModel,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> Answer:
    """The MILP by Gurobi; arguments as for `solve`, but it does not report improvements.

    Raises BackendUnavailable without gurobipy or a licence, or when the licence is limited to smaller models.
    """
    try:
        import gurobipy
    except ImportError as error:
        raise BackendUnavailable("Gurobi is not installed: pip install checkmate_tf[gurobi]") from error
    num_rows, num_columns = model.matrix.shape
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as program:
            kinds = np.where(model.integer, gurobipy.GRB.BINARY, gurobipy.GRB.CONTINUOUS)
            x = program.addMVar(
                num_columns, lb=model.lower, ub=model.upper, obj=model.cost / cost_scale(model), vtype=kinds
            )
            for limit, sense in ((model.row_upper, "<"), (model.row_lower, ">")):
                some = np.flatnonzero(np.isfinite(limit))
                program.addMConstr(sparse.csr_matrix(model.matrix[some]), x, sense, limit[some])
            if start is not None:
                x.setAttr("Start", np.where(np.isnan(start), gurobipy.GRB.UNDEFINED, start))
            program.Params.TimeLimit, program.Params.Seed, program.Params.Threads = max(0.0, time_limit_s), seed, 1
            program.Params.MIPGap = 0.0
            program.Params.MIPGapAbs = 0.5 * cost_step(model) / cost_scale(model)
            program.optimize()
            stats: Stats = {"backend": "gurobi", "model_status": int(program.Status), "nodes": int(program.NodeCount)}
            if program.Status in (gurobipy.GRB.INFEASIBLE, gurobipy.GRB.INF_OR_UNBD):
                return Answer(None, np.inf, infeasible=True, stats=stats)
            point = np.array(x.X) if program.SolCount else None
            bound = model.fixed_cost + cost_scale(model) * program.ObjBound
            return Answer(point, bound, optimal=program.Status == gurobipy.GRB.OPTIMAL, stats=stats)
    except gurobipy.GurobiError as error:
        if error.errno == gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise BackendUnavailable(
                f"Gurobi's size-limited licence does not allow a model of {num_columns} columns and {num_rows} rows "
                "(2000 each); install a full licence, or use HiGHS"
            ) from error
        raise BackendUnavailable(f"Gurobi cannot run: {error}; see to its licence, or use HiGHS") from error


def solve_cpsat(
    model: StageModel,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: np.ndarray | None = None,
    on_improved: Improved | None = None,
) -> Answer:
    """The MILP by CP-SAT of OR-tools as a pure 0-1 program: U is eliminated, and every coefficient an integer."""
    from checkmate_tf.solvers.mip.ortools_library import cp_model

    matrix, row_lower, row_upper = model.without_usage()
    scale = np.where(_is_integral(matrix), 1.0, model.memory_unit_bytes)
    whole = sparse.csr_array(sparse.diags_array(scale) @ matrix)
    program = cp_model.CpModel()
    x = [program.new_bool_var(f"x{column}") for column in range(matrix.shape[1])]
    for row in range(matrix.shape[0]):
        part = slice(whole.indptr[row], whole.indptr[row + 1])
        terms = cp_model.LinearExpr.weighted_sum(
            [x[column] for column in whole.indices[part]], [round(value) for value in whole.data[part]]
        )
        if np.isfinite(row_lower[row]):
            program.add(terms >= math.ceil(row_lower[row] * scale[row] - _WHOLE))
        if np.isfinite(row_upper[row]):
            program.add(terms <= math.floor(row_upper[row] * scale[row] + _WHOLE))
    step = cost_step(model)
    weights = [int(cost) // step for cost in model.cost[: matrix.shape[1]]]
    program.minimize(cp_model.LinearExpr.weighted_sum(x, weights))
    if start is not None:
        for column in np.flatnonzero(~np.isnan(start)):
            program.add_hint(x[column], bool(start[column] > 0.5))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.0, time_limit_s)
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    stats: Stats = {"backend": "cpsat", "model_status": solver.status_name(status), "nodes": int(solver.num_branches)}
    if status == cp_model.INFEASIBLE:
        return Answer(None, np.inf, infeasible=True, stats=stats)
    bound = model.fixed_cost + step * max(0.0, solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, bound, stats=stats)
    point = np.zeros(len(model.cost))
    point[: len(x)] = [solver.value(variable) for variable in x]
    return Answer(point, bound, optimal=status == cp_model.OPTIMAL, stats=stats)


def _is_integral(matrix: sparse.csr_array) -> np.ndarray:
    """Rows of 0, 1 and -1 only, which do not count bytes, bool [num_rows]."""
    other = np.abs(np.abs(matrix.data) - 1.0) > _WHOLE
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.bincount(row, weights=other, minlength=matrix.shape[0]) == 0


def relax(model: StageModel, method: Relaxation, *, time_limit_s: float, seed: int = 0) -> Answer:
    """The LP relaxation by the method of that name; its bound is a `safe_bound`, converged or not."""
    if not model.solvable:
        return Answer(None, np.inf, infeasible=True, stats={"backend": "none needed"})
    if method == "pdlp":
        return relax_pdlp(model, time_limit_s=time_limit_s)
    return relax_highs(model, time_limit_s=time_limit_s, seed=seed, method="simplex" if method == "auto" else method)


def relax_highs(
    model: StageModel, *, time_limit_s: float, seed: int = 0, method: Literal["simplex", "ipm"] = "simplex"
) -> Answer:
    """The LP relaxation by HiGHS; the interior point method is followed by crossover."""
    highs = _highs(model, time_limit_s=time_limit_s, seed=seed, relaxed=True)
    highs.setOptionValue("solver", method)
    highs.run()
    answer = _highs_answer(model, highs)
    duals = np.array(highs.getSolution().row_dual) * cost_scale(model)
    bound = safe_bound(model, duals) if len(duals) == len(model.row_lower) else -np.inf
    return answer if answer.infeasible else replace(answer, bound=bound)


def relax_pdlp(model: StageModel, *, time_limit_s: float, tolerance: float = 1e-6) -> Answer:
    """The LP relaxation by OR-tools' PDLP: first-order, so its point is accurate to `tolerance` only."""
    from checkmate_tf.solvers.mip.ortools_library import pdlp, solve_log_pb2, solvers_pb2

    program = pdlp.QuadraticProgram()
    program.resize_and_initialize(len(model.cost), len(model.row_lower))
    program.objective_vector = model.cost / cost_scale(model)
    program.constraint_matrix = sparse.csc_matrix(model.matrix)
    program.constraint_lower_bounds, program.constraint_upper_bounds = model.row_lower, model.row_upper
    program.variable_lower_bounds, program.variable_upper_bounds = model.lower, model.upper
    criteria = solvers_pb2.TerminationCriteria(time_sec_limit=max(0.0, time_limit_s))
    criteria.simple_optimality_criteria.eps_optimal_relative = tolerance
    criteria.simple_optimality_criteria.eps_optimal_absolute = tolerance
    result = pdlp.primal_dual_hybrid_gradient(
        program, solvers_pb2.PrimalDualHybridGradientParams(termination_criteria=criteria)
    )
    reason = result.solve_log.termination_reason
    stats = {
        "backend": "pdlp",
        "model_status": solve_log_pb2.TerminationReason.Name(reason),
        "iterations": int(result.solve_log.iteration_count),
    }
    if reason == solve_log_pb2.TERMINATION_REASON_PRIMAL_INFEASIBLE:
        return Answer(None, np.inf, infeasible=True, stats=stats)
    x = np.clip(result.primal_solution, model.lower, model.upper)
    return Answer(x, safe_bound(model, np.asarray(result.dual_solution) * cost_scale(model)), stats=stats)


def safe_bound(model: StageModel, duals: np.ndarray) -> float:
    """The Lagrangian bound of any row duals, [num_rows]: valid however far from optimal, but for rounding.

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


def _highs(model: StageModel, *, time_limit_s: float, seed: int, relaxed: bool):
    import highspy

    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("time_limit", max(0.0, time_limit_s))
    highs.setOptionValue("random_seed", seed)
    highs.setOptionValue("threads", 1)
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = model.matrix.shape
    lp.col_cost_ = model.cost / cost_scale(model)
    lp.col_lower_, lp.col_upper_ = model.lower, np.where(np.isinf(model.upper), highspy.kHighsInf, model.upper)
    lp.row_lower_, lp.row_upper_ = model.row_lower, model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = model.matrix.indptr, model.matrix.indices
    lp.a_matrix_.value_ = model.matrix.data
    if not relaxed:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(integer)] for integer in model.integer]
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the model; report the graph and budget that it came from")
    return highs


def _highs_answer(model: StageModel, highs) -> Answer:
    import highspy

    status, info = highs.getModelStatus(), highs.getInfo()
    stats = {"backend": "highs", "model_status": highs.modelStatusToString(status)}
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Answer(None, np.inf, infeasible=True, stats=stats)
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if feasible else None
    scale = cost_scale(model)
    optimal = status == highspy.HighsModelStatus.kOptimal
    if highs.getLp().integrality_:
        stats |= {"nodes": int(info.mip_node_count), "iterations": int(info.simplex_iteration_count)}
        return Answer(x, model.fixed_cost + scale * info.mip_dual_bound, optimal=optimal, stats=stats)
    bound = model.fixed_cost + scale * info.objective_function_value if optimal else -np.inf
    return Answer(x, bound, optimal=optimal, stats=stats)
