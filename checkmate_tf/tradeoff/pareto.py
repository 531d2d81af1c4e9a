"""Measures the cost of each memory budget of a model's training step: `pareto`."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.arguments import check_list
from checkmate_tf.budget import check_budget
from checkmate_tf.errors import SearchInterrupt, SolverError, quote
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.search import measure_stock
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.progress import Stage, show_planning
from checkmate_tf.reports.budget_curve import Pareto
from checkmate_tf.solvers import get_solver
from checkmate_tf.tradeoff.sweep import Sweep
from checkmate_tf.training.remat_scope import add_remat_scopes
from checkmate_tf.training.step_planner import StepPlanner
from checkmate_tf.training.traced_model import prepare_batch

# The stages of a sweep, with a first guess of their seconds.
_STAGES_S = {
    Stage.TRACE: 3.0,
    Stage.MEASURE_STOCK: 3.0,
    Stage.TIME_NODES: 5.0,
    Stage.FIND_LEAST: 5.0,
    Stage.SOLVE: 20.0,
    Stage.SOLVE_BY_OTHERS: 0.0,
    Stage.RUN_SCHEDULES: 30.0,
}


@plan_alone()
def pareto(
    model: keras.Model,
    *,
    batch_size: int | None = None,
    data: Any = None,
    budgets: Sequence[int | float | str] | None = None,
    other_solvers: Sequence[str] = (),
    time_limit_s: float = 60.0,
    options: Options = Options(),
    measure: bool = True,
    progress: bool = True,
) -> Pareto:
    """Measures the cost of each memory budget, from the stock step's peak down to the least budget that works.

    The model is traced once, its nodes are timed once, and each budget starts from the schedules and bounds of the one
    before. Nothing is installed in the model, and its state stays unchanged.

    Args:
        model: the compiled model.
        batch_size, data: as in `rematerialize`.
        budgets: a list of bytes, "6GiB" or "60%" of the stock step's peak; by default ten at equal distances.
        other_solvers: names of solvers to compare with `auto`. Their figures are predictions.
        time_limit_s: seconds for the solver at all budgets together, and the same again for all other solvers.
        options: the order, the costs and the seed, as in `rematerialize`. The solver is `auto`, and the loss is
            computed as in the stock step.
        measure: whether to run each schedule on this device. A budget is then met if a schedule's measured peak is
            within it.
        progress: whether to show a progress bar with the remaining time on standard error, if that is a terminal.

    Returns:
        The curve, which can be printed, drawn and saved as a page.

    Raises:
        UnsupportedModelError: if `rematerialize` would refuse the model.
        BatchError: if it would refuse the batch.
        BudgetError: if a budget cannot be read.
        SearchInterrupt: on Ctrl-C. Its `found` is the result so far, None if no budget was solved.

    Example:

    >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    >>> model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "measure": False, "progress": False, "time_limit_s": 2}
    >>> curve = pareto(model, batch_size=512, budgets=["100%", "90%", "1%"], **quick)
    >>> [point.is_met for point in curve.points]
    [True, True, False]
    >>> curve.least_budget_bytes < curve.stock_peak_bytes
    True
    """
    began_s = time.perf_counter()
    request = Request("100%", time_limit_s, options, measure, progress)
    if options.solver != "auto":
        raise SolverError(
            f"pareto uses the solver auto; to compare it with {quote(options.solver)}, pass that in other_solvers"
        )
    for name in ("chunk_loss", "chunk_rows"):
        if getattr(options, name) is not None:
            raise SolverError(
                f"pareto compares schedules of one step; leave {name} out, or pass it to rematerialize instead"
            )
    if options.offload is not None:
        raise SolverError(
            "pareto compares schedules that only recompute; leave offload out, or pass it to rematerialize instead"
        )
    check_list(other_solvers, "other_solvers")
    for name in other_solvers:
        get_solver(name)
    check_list(() if budgets is None else budgets, "budgets")
    for budget in budgets or ():
        check_budget(budget)
    batch = prepare_batch(model, batch_size=batch_size, data=data)
    sweep: Sweep | None = None
    try:
        with show_planning(shown=progress, stages_s=_STAGES_S) as bar:
            step = StepPlanner(model).know(batch, request, bar).step
            with tf.init_scope():
                stock = measure_stock(step, request, bar)
                bar.begin_stage(Stage.TIME_NODES)
                sweep = Sweep(request.add_costs(step, bar), add_remat_scopes(model, request), stock, bar)
                sweep.run(budgets, other_solvers)
    except KeyboardInterrupt as interrupt:
        found = None if sweep is None or not sweep.solutions else _describe(sweep, began_s)
        told = f"with {len(sweep.solutions)} budgets solved" if found and sweep else "before any budget was solved"
        raise SearchInterrupt(f"interrupted {told}", found) from interrupt
    return _describe(sweep, began_s)


def _describe(sweep: Sweep, began_s: float) -> Pareto:
    points = sweep.list_points()
    schedules = {solution.best.schedule for solution in sweep.solutions.values() if solution.best is not None}
    return Pareto(
        name=sweep.step.graph.name,
        device=sweep.request.options.device or find_default_device(),
        points=tuple(points),
        stock_peak_bytes=sweep.stock.peak_bytes,
        stock_step_s=None if sweep.stock.run is None else sweep.stock.run.step_s,
        least_budget_bytes=sweep.least_budget_bytes,
        lower_bound_bytes=None if sweep.least is None else sweep.least.lower_bound_bytes,
        num_solves=sweep.num_solves,
        num_reused=len([one for one in sweep.solutions.values() if one.best is not None]) - len(schedules),
        took_s=time.perf_counter() - began_s,
    )
