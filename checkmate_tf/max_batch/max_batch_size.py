"""Finds the largest batch, image or sequence whose rematerialized training step fits a memory budget."""

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
from tqdm import tqdm

from checkmate_tf.budget import format_bytes
from checkmate_tf.constraints import Constraints
from checkmate_tf.errors import InfeasibleBudgetError, SearchInterrupt, SolverError
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch.arguments import (
    ONE_FORWARD_PASS,
    check_device_is_shared,
    check_resident,
    check_searchable,
    parse_budget_bytes,
    parse_overhead,
    refuse_device,
)
from checkmate_tf.max_batch.modelled_step import MARGIN, ModelledStep
from checkmate_tf.max_batch.result import MaxBatch, format_or_dash, tabulate_trials
from checkmate_tf.max_batch.search import LargestSize, SizeProblem, SizeSearch, Trial
from checkmate_tf.max_batch.sized_step import Axis, AxisName, SizedStep
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.measurement.step_run import ProcessRun, StepRun
from checkmate_tf.patterns import combine
from checkmate_tf.planning.asked_graph import AskedGraph
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.search import plan_known_schedule
from checkmate_tf.reports.plan import Plan
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import Solution, Solver, solve
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory, solve_budgets
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.training.remat_scope import add_remat_scopes

_GAP = 0.005
# The largest number of runs of the solver. The last sizes are found by running steps alone.
_MOST_SOLVES = 10
# For each process that runs a step.
_RUN_TIMEOUT_S = 600.0
# The least budget is searched in this share of the solver's time, at this many budgets up to the stock peak.
_LEAST_SHARE = 0.2
_LEAST_BUDGETS = 4
# An error names a least budget that leaves this share of the bytes beside the resident ones unused. On the way to the
# smallest size, larger ones run, take a little more than predicted, and make the search plan for less.
_NAMED_MARGIN = 0.1


@plan_alone()
def max_batch_size(
    model: keras.Model,
    *,
    batch_size: int | None = None,
    data: Any = None,
    budget: int | float | str = "auto",
    max_overhead: float | str | None = ONE_FORWARD_PASS,
    axis: AxisName | Axis = "batch",
    time_limit_s: float = 60.0,
    options: Options = Options(),
    measure: bool = True,
    progress: bool = True,
) -> MaxBatch:
    """Finds the largest batch whose rematerialized training step stays within the budget and the overhead.

    The search traces the step at a few sizes, and models bytes and costs at all others. A solver predicts which sizes
    fit. The largest of these then runs in a separate process, on zeros. Its peak there, by the device's allocator,
    decides whether it fits, and corrects the next prediction. A model compiled with `jit_compile=True` does not run:
    the peak of the module that XLA compiles decides. The search installs nothing; call `found.install()`.

    Args:
        model: the compiled model.
        batch_size: rows of the batch, if the axis is not the batch.
        data: as in `rematerialize`. Its first batch provides the shapes that the model does not declare.
        budget: bytes, "6GiB", or "auto", the device's free memory minus a margin. It covers parameters, optimizer state
            and the batch.
        max_overhead: limit on the predicted extra cost: "one forward pass" (Checkmate, constraint (10)), a fraction
            such as "10%" or 0.1, or None for no limit.
        axis: the dimension to enlarge: "batch"; "height", "width" or "image" (both) of images; "length" of sequences.
            The model's inputs must leave these dimensions open. `Axis("batch", multiple_of=8)` restricts the sizes.
        time_limit_s: seconds for all runs of the solver together.
        options: as in `rematerialize`, but under XLA "measured" costs are "roofline", too, and `chunk_loss` is a number
            of rows or None.
        measure: whether to run the step, or to compile it under XLA. Otherwise the result is a prediction with a margin
            of 2 %.
        progress: whether to show a progress bar on standard error, if that is a terminal.

    Returns:
        The largest size, with its plan. `found.install()` installs the plan.

    Raises:
        UnsupportedModelError: if `rematerialize` would refuse the model, or if its training graph changes with the
            size.
        BatchError: if the axis or the data are not valid.
        BudgetError: if the budget or the overhead cannot be read.
        InfeasibleBudgetError: if even the smallest size does not fit.
        SearchInterrupt: on Ctrl-C. Its `found` is the best result so far, or None.

    Example:

    >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(8)]
    >>> model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "time_limit_s": 5, "measure": False, "progress": False}
    >>> found = max_batch_size(model, budget="4MiB", **quick)
    >>> found.stock_size < found.batch_size, found.plan.predicted_peak_bytes <= found.budget_bytes
    (True, True)
    """
    started_s = time.perf_counter()
    request = Request(budget, time_limit_s, options, measure, progress)
    if options.offload is not None:
        raise SolverError(
            "max_batch_size only plans recomputation; leave offload out, or pass it to rematerialize instead"
        )
    refuse_device(options, "max_batch_size")
    check_searchable(model)
    axis = axis if isinstance(axis, Axis) else Axis(axis)
    sizes = axis.list_sizes()
    share = parse_overhead(max_overhead)
    step = SizedStep.of(
        model,
        axis.name,
        batch_size=batch_size,
        data=data,
        chunk_loss=options.chunk_loss,
        chunk_rows=options.chunk_rows,
    )
    check_device_is_shared(model)
    budget_bytes = parse_budget_bytes(request, step, sizes[0])
    check_resident(step, sizes[0], budget_bytes)
    request = request.fix_budget(budget_bytes)
    modelled = ModelledStep.of(step, sizes, budget_bytes, request)
    constraints = combine(modelled.steer(add_remat_scopes(model, request).options))
    return _Finder(modelled, request, sizes, budget_bytes, max_overhead, share, started_s, constraints).find()


def find_allowed_overhead(graph: Graph, share: float | str | None) -> float | None:
    """Returns the overhead of one more forward pass (Checkmate, constraint (10)), or the given fraction."""
    if not isinstance(share, str):
        return share
    forward = sum(node.cost for node in graph.nodes if not node.is_backward)
    return forward / graph.baseline_cost if graph.baseline_cost else 0.0


@dataclass(frozen=True)
class _Finder:
    """Finds the largest size of one model, and describes the result.

    Args:
        request: the request, with the budget in bytes.
        share: limit of the overhead, as a fraction of the stock cost or "one forward pass"; None for no limit.
        started: time of the start, by `time.perf_counter`.
    """

    modelled: ModelledStep
    request: Request
    sizes: range
    budget_bytes: int
    max_overhead: float | str | None
    share: float | str | None
    started_s: float
    constraints: Constraints = field(default_factory=Constraints)

    @property
    def axis(self) -> str:
        """Returns the name of the dimension to enlarge."""
        return self.modelled.step.axis

    def find(self) -> MaxBatch:
        """Finds the largest size. Raises InfeasibleBudgetError if none fits, and SearchInterrupt on Ctrl-C."""
        disable = None if self.request.progress else True
        with tqdm(desc=f"largest {self.axis}", total=_MOST_SOLVES, unit="solve", disable=disable, leave=False) as bar:

            def report(trial: Trial) -> None:
                bar.update(trial.kind == "solve")
                bar.set_postfix_str(f"{trial.size} {trial.outcome}")

            search = SizeSearch(self.make_problem(), report)
            try:
                with plan_alone():  # after an interrupt, the result still has to be described
                    best = search.search() or self.try_least_memory(search)
            except KeyboardInterrupt as interrupt:
                best = search.best or search.find_predicted()
                found = None if best is None else self.describe(search, best)
                raise SearchInterrupt(_describe_interrupt(search, best, self.axis), found) from interrupt
        if best is None:
            raise _explain_infeasible(search, self.axis)
        return self.describe(search, best)

    def make_problem(self) -> SizeProblem:
        """Returns the sizes to search, and the functions that the search calls."""
        return SizeProblem(
            graph_at=self.modelled.find_graph,
            budget_bytes=self.budget_bytes,
            sizes=self.sizes,
            allowed_overhead=partial(find_allowed_overhead, share=self.share),
            solve=self.solve,
            run=partial(self.modelled.run, timeout_s=_RUN_TIMEOUT_S) if self.request.measure else None,
            max_solves=_MOST_SOLVES,
            margin=MARGIN,
            constraints=self.constraints,
        )

    def solve(self, graph: Graph, budget_bytes: int, start: Schedule | None) -> Solution:
        """Solves for one size, beginning with a schedule known from another size if the solver can."""
        solver = self.request.options.solver
        asked = AskedGraph.of(graph, self.constraints)
        if solver == "auto":
            handed = None if start is None else asked.constrained.hand_over(start)
            solver = Auto(start=handed, tolerance=_GAP)
        solution = solve(
            asked.graph,
            max(budget_bytes, 1),
            solver=solver,
            order=self.request.options.order,
            time_limit_s=self.request.time_limit_s / _MOST_SOLVES,
            seed=self.request.options.seed,
        )
        return self.modelled.arrange(graph, asked.take_back(solution))

    def try_least_memory(self, search: SizeSearch) -> LargestSize | None:
        """Tries the smallest size with the schedule of least memory within the allowed overhead."""
        schedule = self.find_least_memory(search.get_graph(0), search.find_allowed_overhead(0))
        search.schedules.append(schedule)
        if search.problem.run is not None:
            search.confirm(LargestSize(search.problem.sizes[0], schedule))
        return search.best

    def find_least_memory(self, graph: Graph, allowed_overhead: float | None) -> Schedule:
        """Returns the schedule of least memory within the allowed overhead."""
        order, seed = self.request.options.order, self.request.options.seed
        limit_s = _LEAST_SHARE * self.request.time_limit_s
        asked = AskedGraph.of(graph, self.constraints)
        least = minimum_memory(asked.graph, order=order, time_limit_s=limit_s, seed=seed).solution
        low, high = least.scheduled.simulation.peak_bytes, simulate_stock(graph).peak_bytes
        budgets = [low + (high - low) * part // _LEAST_BUDGETS for part in range(1, _LEAST_BUDGETS + 1)]
        others = solve_budgets(asked.graph, budgets, order=order, time_limit_s=limit_s, seed=seed)
        taken_back = map(asked.take_back, (least, *others))
        arranged = [self.modelled.arrange(graph, solution).best for solution in taken_back]
        found = [best for best in arranged if best is not None]
        fitting = [one for one in found if allowed_overhead is None or one.simulation.overhead <= allowed_overhead]
        return min(fitting, key=lambda one: one.simulation.peak_bytes).schedule

    def describe(self, search: SizeSearch, best: LargestSize) -> MaxBatch:
        """Returns the result with its plan: that of its schedule, with the measurements if its step ran."""
        modelled, batch_size = self.modelled, self.modelled.step.batch_size
        step = modelled.make_step(best.size)
        ready = plan_known_schedule(
            step,
            best.schedule,
            budget_bytes=self.budget_bytes,
            solver=_name_solver(self.request.options.solver),
            run=_read_run(best.run),
        )
        return MaxBatch(
            axis=self.axis,
            size=best.size,
            batch_size=best.size if batch_size is None else batch_size,
            stock_size=modelled.stock_size,
            budget_bytes=self.budget_bytes,
            max_overhead=self.max_overhead,
            confirmed=best.run is not None,
            beyond=search.describe_beyond(best),
            trials=tuple(search.trials),
            plan=Plan(ready.planned),
            cost_error=modelled.sizes.cost_error,
            took_s=time.perf_counter() - self.started_s,
            _modelled=modelled,
            _ready=ready,
            _traced=step.training_graph,
            _request=self.request,
        )


def _name_solver(solver: str | Solver) -> str:
    return solver if isinstance(solver, str) else solver_name(solver)


def _read_run(run: ProcessRun | None) -> StepRun | None:
    """Returns a process's measurements of a step; None if there are none."""
    if run is None or run.measured_peak_bytes is None:
        return None
    return StepRun(run.measured_peak_bytes, run.step_time_s)


def _explain_infeasible(search: SizeSearch, axis: str) -> InfeasibleBudgetError:
    """Returns the reason why the smallest size does not fit, after the schedule of least memory was tried."""
    problem, graph = search.problem, search.get_graph(0)
    bound, simulation = find_peak_bound(graph), simulate(graph, search.schedules[-1])
    proved = bound.peak_bytes > problem.budget_bytes
    run = None if problem.run is None else search.trials[-1]
    peak_bytes: int | None = simulation.peak_bytes
    if run is None:
        why = f"the schedule of least memory that was found needs {format_bytes(simulation.peak_bytes)}"
    else:
        peak_bytes = None if run.measured_peak_bytes is None else max(run.measured_peak_bytes, simulation.peak_bytes)
        measured = f", measured at {format_or_dash(run.measured_peak_bytes, format_bytes)}"
        why = f"the step of least memory that was found: {run.outcome}{measured}"
    if proved:
        why = f"no schedule needs less than {format_bytes(bound.peak_bytes)} (step {graph.nodes[bound.node].name})"
    message = (
        f"{axis} {problem.sizes[0]}, the smallest allowed, does not fit {format_bytes(problem.budget_bytes)}: {why}"
    )
    if peak_bytes is None:
        return InfeasibleBudgetError(f"{message}; use a larger budget", proved=proved)
    known = peak_bytes + math.ceil(_NAMED_MARGIN * (peak_bytes - graph.resident_bytes))
    return InfeasibleBudgetError(
        f"{message}. The least budget known to work is {format_bytes(known)} ({known} bytes), at an overhead of "
        f"{simulation.overhead:.1%}; use a larger budget or allow more overhead",
        least_budget_bytes=known,
        proved=proved,
    )


def _describe_interrupt(search: SizeSearch, best: LargestSize | None, axis: str) -> str:
    if best is None:
        return f"interrupted before any {axis} was found to fit"
    how = "confirmed" if best.run is not None else "predicted, not run"
    table = tabulate_trials(search.trials)
    return f"interrupted: the largest {axis} found until then is {best.size} ({how})\n\n{table}"
