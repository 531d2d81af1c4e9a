"""PDLP of OR-tools: a first-order method for linear programs that are too large for the simplex method."""

import numpy as np
from scipy import sparse

from checkmate_tf.solvers.mip.ortools_library import pdlp, solve_log_pb2, solvers_pb2
from checkmate_tf.solvers.mip.program import LinearDuals, MixedIntegerProgram, Stats


def solve_with_pdlp(program: MixedIntegerProgram, *, time_limit_s: float, tolerance: float = 1e-6) -> LinearDuals:
    """Solves a program's linear relaxation. A tenth of the `tolerance` takes some ten times as long.

    The point and the duals are accurate only to the tolerance, and less if time was up. Therefore, no result is
    `optimal`.
    """
    linear = pdlp.QuadraticProgram()
    linear.resize_and_initialize(program.num_columns, program.num_rows)
    linear.objective_vector = program.costs
    linear.constraint_matrix = sparse.csc_matrix(program.rows)
    linear.constraint_lower_bounds, linear.constraint_upper_bounds = program.row_lower, program.row_upper
    linear.variable_lower_bounds, linear.variable_upper_bounds = program.lower, program.upper
    criteria = solvers_pb2.TerminationCriteria(time_sec_limit=max(0.0, time_limit_s))
    criteria.simple_optimality_criteria.eps_optimal_relative = tolerance
    criteria.simple_optimality_criteria.eps_optimal_absolute = tolerance
    parameters = solvers_pb2.PrimalDualHybridGradientParams(termination_criteria=criteria)
    result = pdlp.primal_dual_hybrid_gradient(linear, parameters)
    reason = result.solve_log.termination_reason
    stats: Stats = {
        "backend": "pdlp",
        "model_status": solve_log_pb2.TerminationReason.Name(reason),
        "iterations": int(result.solve_log.iteration_count),
    }
    point = np.clip(result.primal_solution, program.lower, program.upper)
    infeasible = reason == solve_log_pb2.TERMINATION_REASON_PRIMAL_INFEASIBLE
    return LinearDuals(point, np.asarray(result.dual_solution), infeasible, stats=stats)
