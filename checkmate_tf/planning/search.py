"""Searches for a plan: solves, emits, measures, and solves again with the measurements.

A solver plans with the bytes that a step requests. The device's allocator provides chunks that may be larger, and XLA
has an order of its own. Therefore, each schedule is measured. The next one is planned for a target that is lower by the
bytes by which the last one exceeded the budget, or higher by those that it left unused.
"""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.constraints import list_broken
from checkmate_tf.errors import (
    EmissionError,
    InfeasibleBudgetError,
    PlanError,
    ScheduleError,
    UnsupportedModelError,
)
from checkmate_tf.executors.chunks import repeat_chunks
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.step import Chunks, Step
from checkmate_tf.graph import Graph, Value
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.patterns import Steering, combine
from checkmate_tf.planning.asked_graph import AskedGraph
from checkmate_tf.planning.attempt import Attempt, arrange_solution, make_solution
from checkmate_tf.planning.chunking import list_chunked
from checkmate_tf.planning.loss_limit import explain_loss_limit
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.pattern_costs import find_least_peaks, price_patterns
from checkmate_tf.planning.plan_cache import PlanCache, digest, digest_package
from checkmate_tf.planning.plan_file import list_differences, planned_from_json, planned_to_json
from checkmate_tf.planning.planned_step import Conditions, PlannedStep, ReadyStep, Stock
from checkmate_tf.planning.state_sizes import list_state_sizes
from checkmate_tf.planning.targets import Bracket, Settings, find_first_budget, find_first_target
from checkmate_tf.progress import PlanningBar, Stage
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Scheduled, Solution, Solver, Status, solve
from checkmate_tf.solvers.portfolio import kernels
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory
from checkmate_tf.user_warnings import warn


def find_plan(
    step: Step,
    request: Request,
    bar: PlanningBar,
    *,
    known: Iterable[Schedule] = (),
    stock: Stock | None = None,
    settings: Settings | None = None,
) -> ReadyStep:
    """Finds the cheapest schedule whose step stays within the budget, predicted and, if requested, measured.

    Args:
        known: schedules of other sizes of the same step, tried before the solver runs.
        stock: the memory of the stock step, if it must not run; by default it is measured.

    Raises InfeasibleBudgetError, with the least budget known to work and the node that sets it, and BudgetError for a
    budget that cannot be read.
    """
    chosen = settings or Settings()
    step = request.let_offload(step)
    if request.plan is not None:
        try:
            return adopt_plan(step, request.plan, request, bar)
        except PlanError:
            if request.options.on_mismatch == "raise":
                raise
            known = (request.plan.schedule, *known)
    if not request.options.are_of_this_package:
        stock = stock or measure_stock(step, request, bar)
        return _find_new_plan(step, request, bar, known, chosen, stock)
    cache, key = PlanCache(), make_key(step, request, settings=chosen, stock=stock)
    with cache.plan_once(key):
        ready = _adopt_kept_plan(step, request, bar, cache, key)
        if ready is None:
            stock = stock or measure_stock(step, request, bar)
            least = _LeastPlan(cache, step)
            try:
                ready = _find_new_plan(step, request, bar, known, chosen, stock, least.find())
            except InfeasibleBudgetError as error:
                least.keep(error)
                raise
            cache.keep(key, planned_to_json(ready.planned))
    return ready


class _LeastPlan:
    """The plan of least memory of a step, behind the least budget that an error names, in the cache of plans.

    Planning for that budget may find other schedules, and none of them within it.
    """

    def __init__(self, cache: PlanCache, step: Step):
        self.cache = cache
        self.key = digest({"least of": _describe_step(step)})

    def find(self) -> PlannedStep | None:
        """Returns the plan; None if no budget was refused."""
        data = self.cache.find(self.key)
        with contextlib.suppress(PlanError):
            return None if data is None else planned_from_json(data)
        return None

    def keep(self, error: InfeasibleBudgetError) -> None:
        """Keeps the plan behind an error, if none of less memory is kept."""
        known, closest = self.find(), error.closest
        if closest is not None and (known is None or closest.planned.peak_bytes < known.peak_bytes):
            self.cache.keep(self.key, planned_to_json(closest.planned))


def _adopt_kept_plan(step: Step, request: Request, bar: PlanningBar, cache: PlanCache, key: str) -> ReadyStep | None:
    """Installs the plan that is kept for the same step and request; None if there is none that still holds."""
    data = cache.find(key)
    if data is None:
        return None
    try:
        planned = planned_from_json(data)
    except PlanError as error:
        cache.set_aside(key, str(error))
        return None
    if abs(step.resident.prefetched - planned.resident.prefetched) >= 2 * step.resident.batch > 0:
        return None  # The data are of another kind, so a share of the stock peak is another budget.
    try:
        return adopt_plan(step, planned, request, bar)
    except PlanError:  # The plan now takes more memory. The one found instead will replace it.
        return None


def adopt_plan(step: Step, planned: PlannedStep, request: Request, bar: PlanningBar) -> ReadyStep:
    """Installs a plan that was made before, possibly elsewhere. Nothing is timed or solved.

    One measurement confirms it, if requested. Raises PlanError if the plan is for another step, or exceeds its budget
    here.
    """
    name = step.graph.name
    if (planned.schedule.fetches or planned.resident.offloaded) and request.options.offload is None:
        raise PlanError(
            f"the plan of {name!r} offloads values: name their place with "
            'Options(offload="file:DIRECTORY"), or leave plan= out to plan the step again'
        )
    step = _repeat_chunks(step, planned.chunks).move_state(planned.resident.offloaded)
    differences = list_differences(planned, step.graph, step.resident, Conditions.of(step))
    if differences:
        raise PlanError(
            f"the plan is not for the step of {name!r}, which has {'; '.join(differences)}. To plan this "
            'step, leave plan= out or pass Options(on_mismatch="replan")'
        )
    graph = replace(planned.graph, resident_bytes=step.graph.resident_bytes)
    schedule = planned.schedule
    broken = list_broken(graph, schedule, combine(steer(step, request)))
    if broken:
        raise PlanError(
            f"the plan of {name!r} contradicts keep or recompute: {broken[0]}. Leave plan= out to plan the step again"
        )
    best = Scheduled(schedule, simulate(graph, schedule))
    solution = replace(planned.solution, best=best)
    bar.begin_stage(Stage.MEASURE_REWRITTEN)
    try:
        attempt = emit_and_measure(
            step, solution, planned.ordering, measure=request.measure, most_bytes=planned.budget_bytes
        )
    except EmissionError as error:
        raise PlanError(f"the plan of {name!r} cannot be carried out here: {error}") from error
    run = attempt.run or planned.run
    if run is not None and planned.run is not None:
        # There is no stock step to compare it with here. Its time is in the plan, with that of the step then.
        run = replace(run, step_s=planned.run.step_s, difference=run.difference or planned.run.difference)
    adopted = replace(
        planned,
        graph=graph,
        solution=solution,
        run=run,
        resident=step.resident,
        origins=step.origins,
        conditions=Conditions.of(step),
    )
    if adopted.peak_bytes > planned.budget_bytes:
        raise PlanError(
            f"the plan of {name!r} takes {format_bytes(adopted.peak_bytes)} here, above its budget of "
            f"{format_bytes(planned.budget_bytes)}: leave plan= out to plan the step again"
        )
    return ReadyStep(adopted, attempt.function)


def _repeat_chunks(step: Step, chunks: Sequence[Chunks]) -> Step:
    """Returns the step in the chunks of a plan. Raises PlanError if that is impossible."""
    try:
        return repeat_chunks(step, chunks)
    except UnsupportedModelError as error:
        raise PlanError(f"the plan computes the step in chunks, which this step cannot: {error}") from error


def steer(step: Step, request: Request) -> tuple[Steering, ...]:
    """Returns the nodes that each pattern of a request constrains. Raises PatternError if one matches none."""
    if not (request.options.keep or request.options.recompute):
        return ()  # Without patterns, the layers of all nodes are not needed.
    return request.options.steer(step.graph, step.origins)


def make_key(step: Step, request: Request, *, settings: Settings, stock: Stock | None = None) -> str:
    """Returns the key of the plan for a step and a request: a digest of everything that it depends on.

    Prefetched batches are left out, because their measured number differs by one or so from run to run. `stock` is the
    expected memory of the stock step; None if it is measured.
    """
    return digest(
        {
            **_describe_step(step),
            "patterns": [(one.kind, one.pattern, sorted(one.nodes)) for one in steer(step, request)],
            "budget": request.budget,
            "time_limit_s": request.time_limit_s,
            "options": repr(replace(request.options, keep=(), recompute=(), num_shapes=1)),
            "profile": request.options.read_profile(),
            "measure": request.measure,
            "settings": asdict(settings),
            "stock": None if stock is None else asdict(stock),
        }
    )


def _describe_step(step: Step) -> dict[str, Any]:
    """Returns everything about a step on which its plans depend, as JSON values."""
    graph = step.graph
    return {
        "nodes": [(n.op_type, n.inputs, n.outputs, n.is_backward, n.recomputable, n.inplace) for n in graph.nodes],
        "values": [value.size_bytes for value in graph.values],
        "outputs": graph.outputs,
        "resident": asdict(replace(step.resident, prefetched=0)),
        "conditions": asdict(Conditions.of(step)),
        "code": digest_package(),
    }


def _find_new_plan(
    step: Step,
    request: Request,
    bar: PlanningBar,
    known: Iterable[Schedule],
    settings: Settings,
    stock: Stock,
    least: PlannedStep | None = None,
) -> ReadyStep:
    """Finds a plan by solving and measuring, for the step or for one in chunks of rows.

    Args:
        least: the plan behind the least budget that an error has named.
    """
    asked_bytes = _read_budget(step, request, stock)
    margin_bytes = request.find_margin(asked_bytes, step.resident.state)
    budget_bytes = asked_bytes - margin_bytes
    wanted = (request.options.chunk_loss, request.options.chunk_rows)
    fits = stock.peak_bytes <= budget_bytes
    chunk_loss, chunk_rows = (None if fits and rows == "auto" else rows for rows in wanted)
    measured_bytes = stock.peak_bytes if request.measure else None
    infeasible: InfeasibleBudgetError | None = None
    for state_bytes in list_state_sizes(step, request, bar, budget_bytes, stock, settings):
        moved = step.move_state(state_bytes)
        target_bytes = find_first_target(moved, budget_bytes, stock_bytes=measured_bytes, settings=settings)
        for chunked in list_chunked(step, chunk_loss, chunk_rows, target_bytes + moved.resident.offloaded):
            final = chunked.move_state(state_bytes)
            search = _Search(final, request, bar, settings, stock, Bracket(budget_bytes, settings), least)
            try:
                ready = search.run(known)
                return replace(ready, planned=replace(ready.planned, margin_bytes=margin_bytes))
            except InfeasibleBudgetError as error:
                infeasible = error
    assert infeasible is not None
    raise infeasible


def plan_known_schedule(
    step: Step, schedule: Schedule, *, budget_bytes: int, solver: str, run: StepRun | None
) -> ReadyStep:
    """Plans with a known schedule, which may have run elsewhere. Nothing is solved or measured here.

    Args:
        solver: the name of the method that found the schedule.
        run: the measurement of the step; None if it did not run.

    Raises EmissionError if TensorFlow refuses the step.
    """
    ordering = step.orderings[0]
    solution = arrange_solution(step, make_solution(step.graph, schedule, solver))
    attempt = Attempt(solution, step.emit(solution.scheduled.schedule, ordering), ordering, run)
    return _make_ready_step(step, attempt, budget_bytes, Stock(step.stock_peak_bytes))


def plan_again(step: Step, planned: PlannedStep) -> ReadyStep | None:
    """Applies an earlier plan to a step that was traced again, for example with another optimizer of the same kind.

    Nothing is solved or measured. Returns None if the step has another graph, or if TensorFlow refuses it.
    """
    try:
        step = repeat_chunks(step, planned.chunks).move_state(planned.resident.offloaded)
    except UnsupportedModelError:
        return None
    if _drop_names_and_costs(step.graph) != _drop_names_and_costs(planned.graph):
        return None
    if planned.ordering is None:
        return ReadyStep(planned, step.stock)
    try:
        return ReadyStep(planned, step.emit(planned.schedule, planned.ordering))
    except EmissionError:
        return None


def _drop_names_and_costs(graph: Graph) -> Graph:
    nodes = tuple(replace(node, name=str(i), cost=0, workspace_bytes=0) for i, node in enumerate(graph.nodes))
    values = tuple(Value(str(i), value.size_bytes) for i, value in enumerate(graph.values))
    return replace(graph, nodes=nodes, values=values, name="", cost_unit="", source="")


def measure_stock(step: Step, request: Request, bar: PlanningBar) -> Stock:
    """Returns the memory of the stock step. It is measured if requested, and if the device has room for it."""
    if not request.measure:
        return Stock(step.stock_peak_bytes)
    predicted_bytes = simulate_stock(step.graph).peak_bytes
    bar.begin_stage(Stage.MEASURE_STOCK)
    try:
        return Stock(predicted_bytes, step.measure(step.stock, predicted_bytes))
    except EmissionError:
        expected_bytes = max(predicted_bytes, step.find_auto_budget() + 1)  # more than is free
    warn(
        f"the stock step of {step.graph.name!r} ran out of the device's memory: its peak counts as "
        f"{format_bytes(expected_bytes)}, the larger one of the predicted peak and the free memory, and the results of "
        "the planned step are not compared with its results"
    )
    return Stock(predicted_bytes, expected_bytes=expected_bytes)


def _read_budget(step: Step, request: Request, stock: Stock) -> int:
    if request.budget != "auto":
        return parse_budget(request.budget, peak_bytes=stock.peak_bytes)
    return step.find_auto_budget()


def emit_and_measure(
    step: Step,
    solution: Solution,
    ordering: Ordering | None,
    *,
    measure: bool,
    most_bytes: int | None = None,
    later_spread: float = 0.0,
) -> Attempt:
    """Emits a schedule in one ordering, and runs it if `measure` is True. A run above `most_bytes` is the last.

    Without an ordering, the stock step runs. Raises EmissionError if TensorFlow refuses the step.
    """
    function = step.stock if ordering is None else step.emit(solution.scheduled.schedule, ordering)
    run = step.measure(function, solution.scheduled.simulation.peak_bytes, most_bytes) if measure else None
    if run is not None and ordering == "overlap":
        spread_bytes = later_spread * (run.peak_bytes - step.graph.resident_bytes)
        run = replace(run, peak_bytes=run.peak_bytes + int(spread_bytes))
    return Attempt(solution, function, ordering or step.orderings[0], run)


@dataclass
class _Search:
    """The attempts for one budget, and the best one.

    `solver_s` is the time that solvers have taken so far, `share` their share of the rest in the next round, and `best`
    the cheapest schedule within the budget. `steering` are the patterns that constrain the schedule, and `asked` is the
    graph for solvers. `least` is the plan behind the least budget that an error has named. `slowdown` is how many times
    longer a step takes if each node waits for the one before it, as far as that was measured.
    """

    step: Step
    request: Request
    bar: PlanningBar
    settings: Settings
    stock: Stock
    bracket: Bracket
    least: PlannedStep | None = None
    solver_s: float = 0.0
    slowdown: float = 1.0
    best: Attempt | None = None
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.share = self.settings.solver_share
        self.steering = steer(self.step, self.request)
        self.constraints = combine(self.steering)
        self.asked = AskedGraph.of(self.graph, self.constraints)

    @property
    def graph(self) -> Graph:
        return self.step.graph

    @property
    def budget_bytes(self) -> int:
        return self.bracket.budget_bytes

    def run(self, known: Iterable[Schedule]) -> ReadyStep:
        """Finds the plan. Raises InfeasibleBudgetError if there is none."""
        fits = self.stock.peak_bytes <= self.budget_bytes and not self.step.chunks
        if self.request.options.solver == "auto" and fits and not self.constraints.recompute:
            return self.plan_stock()
        chosen: Attempt | None
        if find_peak_bound(self.graph).peak_bytes > self.budget_bytes:
            if self.step.uses_xla:
                self.add_costs()  # A compiled step may take less than predicted, and be within the budget.
            chosen = self.try_least_memory(self.settings.least_share * self.request.time_limit_s)
        else:
            chosen = self.try_known(known)
        if chosen is None:
            self.add_costs()
            compiled = kernels.are_compiled()
            chosen = self.try_solver()
            if chosen is None and not compiled:
                chosen = self.try_compiled_solver()
            if chosen is None:
                remaining_s = self.request.time_limit_s - self.solver_s
                least_s = self.settings.least_share * self.request.time_limit_s
                chosen = self.try_least_memory(max(remaining_s, least_s))
        warn_of_difference(self.graph, chosen)
        return self.make_ready_step(self.time_beside_stock(chosen))

    def time_beside_stock(self, attempt: Attempt) -> Attempt:
        """Times a step and the stock step in turn: the stock step was measured before the solver ran."""
        if attempt.run is None or self.stock.run is None or attempt.function is self.step.stock:
            return attempt
        times_s = self.step.time_in_turn(self.step.stock, attempt.function)
        if times_s is None:
            return attempt
        self.stock = replace(self.stock, run=replace(self.stock.run, step_s=times_s[0]))
        return replace(attempt, run=replace(attempt.run, step_s=times_s[1]))

    def add_costs(self) -> None:
        """Replaces the costs of the step by those of the request."""
        self.bar.begin_stage(Stage.TIME_NODES)
        self.step = self.request.add_costs(self.step, self.bar)
        self.asked = AskedGraph.of(self.graph, self.constraints)
        if self.stock.run is not None and not self.step.uses_xla and not self.step.chunks:
            # It was predicted without workspace. Budgets are shares of the measured peak, which stays.
            self.stock = replace(self.stock, predicted_bytes=self.step.stock_peak_bytes)

    def try_known(self, known: Iterable[Schedule]) -> Attempt | None:
        """Tries the cheapest known schedule; None if none stays within the budget."""
        target_bytes = self.find_first_target()
        fitting = [one for one in self.arrange_known(known) if one.scheduled.simulation.peak_bytes <= target_bytes]
        if not fitting:
            return None
        try:
            attempt = self.try_out(min(fitting, key=lambda one: one.scheduled.simulation.cost))
        except EmissionError:
            return None
        return attempt if attempt.peak_bytes <= self.budget_bytes else None

    def arrange_known(self, known: Iterable[Schedule]) -> list[Solution]:
        """Returns the known schedules that compute this step and satisfy its constraints."""
        found = []
        for schedule in known:
            with contextlib.suppress(ScheduleError):
                check_schedule(self.graph, schedule)
                if self.asked.allows(schedule):
                    found.append(arrange_solution(self.step, make_solution(self.graph, schedule, "known")))
        return found

    def try_solver(self) -> Attempt | None:
        """Finds the cheapest schedule within the budget in a few rounds of solving; None if there is none."""
        target_bytes = self.find_first_target()
        for _ in range(self.settings.max_rounds if self.request.measure else 1):
            solution = self.solve(target_bytes)
            if any(attempt.solution.schedule == solution.schedule for attempt in self.attempts):
                break
            if solution.schedule is None:
                self.bracket.raise_floor(target_bytes)
            else:
                cost = solution.scheduled.simulation.cost
                in_line = self.try_in_line(cost)
                pays = in_line is not None and self.expect_cost(in_line) < cost
                try:
                    attempt = in_line if in_line is not None and pays else self.try_out(solution)
                except EmissionError:  # No ordering works, or the device has no room. Another schedule may work.
                    if self.best is not None:
                        break
                    target_bytes = int(self.settings.lowering * target_bytes)
                    continue
                self.note(attempt)
                if self.is_good(attempt):
                    return self.best
                if attempt.peak_bytes <= self.budget_bytes:
                    self.bracket.raise_floor(target_bytes)
            following = self.bracket.find_next_target(self.graph.resident_bytes)
            if following is None or self.solver_s >= self.request.time_limit_s:
                break
            target_bytes = following
        self.try_in_line(self.expect_cost(self.best) if self.best else math.inf)
        return self.best

    def try_compiled_solver(self) -> Attempt | None:
        """Waits for the code that is compiled once after an installation, and solves again with it, in as much time."""
        self.bar.begin_stage(Stage.SOLVE)
        kernels.compile_all()
        self.bracket.floor_bytes = 0
        self.solver_s = 0.0
        return self.try_solver()

    def find_first_target(self) -> int:
        """Returns the target of the first schedule."""
        stock_bytes = self.stock.peak_bytes if self.request.measure else None
        return find_first_target(self.step, self.budget_bytes, stock_bytes=stock_bytes, settings=self.settings)

    def note(self, attempt: Attempt) -> None:
        """Records a schedule that was tried for its target, and shows the best one."""
        self.bracket.note(attempt)
        if attempt.peak_bytes <= self.budget_bytes:
            self.remember(attempt)

    def remember(self, attempt: Attempt) -> None:
        """Records a schedule within the budget, and shows the best one."""
        self.best = min(self.best or attempt, attempt, key=self.expect_cost)
        overhead = self.best.cost / max(self.graph.baseline_cost, 1) - 1
        self.bar.show_best(overhead, self.best.peak_bytes, self.budget_bytes)

    def expect_cost(self, attempt: Attempt) -> float:
        """Returns the predicted cost of a schedule, which is more if each node waits for the one before it."""
        *others, last = self.step.orderings
        return attempt.cost * (self.slowdown if others and attempt.ordering == last else 1.0)

    def is_good(self, attempt: Attempt) -> bool:
        """Returns whether no other schedule within the budget could be much cheaper than this one."""
        if attempt.peak_bytes > self.budget_bytes:
            return False
        is_cheap = attempt.cost <= (1 + self.settings.tolerance) * self.asked.graph.baseline_cost
        return is_cheap or not self.request.measure or attempt.peak_bytes >= self.settings.good_use * self.budget_bytes

    def solve(self, target_bytes: int) -> Solution:
        """Asks the solver for a schedule within a target, in its share of the remaining time.

        If the schedule computes values that nothing reads, the solver runs again with the order in which values are
        needed, and later rounds keep that order.
        """
        start = self.best or self.bracket.above
        solution = self.solve_in_order(target_bytes, None if start is None else start.solution)
        arranged = cheapest = arrange_solution(self.step, solution)
        while (
            arranged.best is not None
            and arranged.best.simulation.cost < solution.scheduled.simulation.cost
            and cheapest is arranged
            and self.solver_s < self.request.time_limit_s
        ):
            self.asked = AskedGraph.of(self.graph, self.constraints, arranged.best.schedule)
            solution = self.solve_in_order(target_bytes, arranged)
            arranged = arrange_solution(self.step, solution)
            if arranged.best is not None:
                cheapest = min(cheapest, arranged, key=lambda one: one.scheduled.simulation.cost)
        return cheapest

    def solve_in_order(self, target_bytes: int, start: Solution | None) -> Solution:
        """Asks the solver for a schedule in the input order, beginning with a given schedule."""
        limit_s = max(self.share * (self.request.time_limit_s - self.solver_s), 0.5)
        if not self.request.measure:
            share = 1.0 if self.solver_s else self.settings.unmeasured_share
            limit_s = max(share * self.request.time_limit_s - self.solver_s, 0.5)
        solver: str | Solver = self.request.options.solver
        if solver == "auto":
            handed = self.asked.hand_over(start)
            solver = Auto(
                start=None if handed is None else handed.schedule,
                tolerance=self.settings.tolerance if self.request.measure else Auto.tolerance,
            )
        self.bar.begin_stage(Stage.SOLVE)
        solution = solve(
            self.asked.graph,
            max(target_bytes, 1),
            solver=solver,
            order=self.request.options.order,
            time_limit_s=limit_s,
            seed=self.request.options.seed,
        )
        self.solver_s += solution.solve_time_s
        if solution.status is Status.NOT_FOUND:
            self.share = min(2 * self.share, 1.0)
        return self.asked.take_back(solution)

    def try_out(self, solution: Solution, orderings: Sequence[Ordering] | None = None) -> Attempt:
        """Emits and measures a schedule, in the first of the orderings that TensorFlow accepts."""
        is_stock = not self.step.chunks and solution.scheduled.schedule == make_retain_all_schedule(self.graph)
        if is_stock and self.stock.peak_bytes <= self.budget_bytes:
            return self.keep(Attempt(solution, self.step.stock, self.step.orderings[0], self.stock.run))
        *others, last = orderings or self.step.orderings
        for one in others:
            with contextlib.suppress(EmissionError):
                return self.keep(self.emit_and_measure(solution, one))
        return self.keep(self.emit_and_measure(solution, last))

    def emit_and_measure(self, solution: Solution, ordering: Ordering) -> Attempt:
        """Emits a schedule in one ordering, and measures it if requested."""
        self.bar.begin_stage(Stage.MEASURE_REWRITTEN)
        return emit_and_measure(
            self.step,
            solution,
            ordering,
            measure=self.request.measure,
            most_bytes=self.budget_bytes,
            later_spread=self.settings.later_spread,
        )

    def keep(self, attempt: Attempt) -> Attempt:
        """Records an attempt."""
        self.attempts.append(attempt)
        return attempt

    def try_in_line(self, cost: float) -> Attempt | None:
        """Tries known schedules that cost much less than `cost`, with each node waiting for the one before it.

        In this ordering, the peak is lower and does not vary, but a CPU of several cores may take much longer, because
        it runs nodes of the stock step in parallel. None if none of them stays within the budget.
        """
        last = self.step.orderings[-1]
        seen = {attempt.solution.schedule for attempt in self.attempts if attempt.ordering == last}
        most = cost - self.settings.least_saving * self.graph.baseline_cost
        cheaper = [
            one for one in self.attempts if one.solution.schedule not in seen and self.slowdown * one.cost < most
        ]
        fitting = [one for one in cheaper if one.predicted_bytes + one.held_bytes <= self.budget_bytes]
        for parallel in sorted(fitting, key=lambda one: one.cost):
            try:
                attempt = self.try_out(parallel.solution, [last])
            except EmissionError:
                continue
            if attempt.peak_bytes <= self.budget_bytes:
                times_s = self.step.time_in_turn(parallel.function, attempt.function)
                self.slowdown = 1.0 if times_s is None else max(times_s[1] / times_s[0], 1.0)
                self.remember(attempt)
                return attempt
            self.bracket.above = attempt
        return None

    def try_least_memory(self, limit_s: float) -> Attempt:
        """Tries the schedules of least memory. Raises InfeasibleBudgetError if they exceed the budget, too.

        If TensorFlow cannot run the schedule of least memory, that of least memory that it ran counts.
        """
        try:
            least = self.find_least_memory(limit_s)
        except EmissionError:
            if not self.attempts:
                raise
            least = min(self.attempts, key=lambda one: one.peak_bytes)
        if least.peak_bytes <= self.budget_bytes:
            return least
        named = self.try_named()
        if named is not None and named.peak_bytes <= self.budget_bytes:
            return named
        closest = self.find_least_peak(least)
        if closest.peak_bytes > self.budget_bytes:
            raise self.explain_infeasible(closest)
        return closest

    def try_named(self) -> Attempt | None:
        """Tries the schedule behind the least budget that an error has named; None if there is none for this step."""
        for solution in self.arrange_known([] if self.least is None else [self.least.schedule]):
            with contextlib.suppress(EmissionError):
                return self.try_out(solution, self.step.orderings[::-1])
        return None

    def find_least_memory(self, limit_s: float) -> Attempt:
        """Finds, emits and measures the schedule of least memory."""
        self.bar.begin_stage(Stage.SOLVE)
        kernels.compile_all()
        known = min(self.attempts, key=lambda one: one.predicted_bytes, default=None)
        found = minimum_memory(
            self.asked.graph,
            order=self.request.options.order,
            time_limit_s=limit_s,
            seed=self.request.options.seed,
            known=self.asked.hand_over(known.solution) if known else None,
        )
        solution = arrange_solution(self.step, self.asked.take_back(found.solution))
        return self.try_out(solution, self.step.orderings[::-1])

    def find_least_peak(self, least: Attempt) -> Attempt:
        """Finds the schedule whose step takes the least memory, for a budget that none meets.

        The schedule of least predicted memory, `least`, recomputes the most, and may take far more than predicted;
        others may not.
        """
        best = min([least, *self.attempts], key=lambda one: one.peak_bytes)
        low_bytes = least.predicted_bytes
        for _ in range(self.settings.least_rounds if self.request.measure else 0):
            high_bytes = min(best.peak_bytes, self.stock.peak_bytes)
            if high_bytes - low_bytes <= self.settings.least_gap * high_bytes:
                break
            target_bytes = (low_bytes + high_bytes) // 2
            solution = self.solve(target_bytes)
            if solution.schedule is None or any(one.solution.schedule == solution.schedule for one in self.attempts):
                break
            try:
                attempt = self.try_out(solution)
            except EmissionError:
                break
            if attempt.peak_bytes >= best.peak_bytes:
                low_bytes = target_bytes
            best = min(best, attempt, key=lambda one: one.peak_bytes)
        return best

    def explain_infeasible(self, closest: Attempt) -> InfeasibleBudgetError:
        """Returns an error that says why no plan stays within the budget. `closest` is the plan of least memory."""
        graph, budget_bytes = self.graph, self.budget_bytes
        bound = find_peak_bound(graph)
        proved = bound.peak_bytes > budget_bytes
        least_bytes = closest.peak_bytes
        if self.request.measure:
            least_bytes = int(least_bytes * (1 + self.settings.named_margin))
            if any(one.predicted_bytes < closest.predicted_bytes for one in self.attempts):
                # Planning must reach it before it falls back on the schedule of least memory.
                asked, stock_bytes = closest.predicted_bytes, self.stock.peak_bytes
                first_bytes = find_first_budget(self.step, asked, stock_bytes=stock_bytes, settings=self.settings)
                least_bytes = max(least_bytes, first_bytes)
        if not self.constraints.recompute:
            least_bytes = min(least_bytes, self.stock.peak_bytes)  # the stock step needs no plan
        least = closest.solution.scheduled
        ready = self.make_ready_step(closest)
        node = bound.node if proved else least.schedule.order[least.simulation.peak_position]
        name, layer = graph.nodes[node].name, ready.planned.origins.nodes[node].layer
        operation = f"{name} (layer {layer})" if layer not in ("", name) else name
        why = (
            f"operation {operation} alone needs {format_bytes(bound.peak_bytes)}"
            if proved
            else f"the schedule of least memory that was found takes {format_bytes(closest.peak_bytes)}, at operation "
            f"{operation}"
        )
        share = math.ceil(100 * least_bytes / self.stock.peak_bytes)
        loss_limit = explain_loss_limit(graph, ready.planned.origins)
        return InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} cannot be met for {graph.name!r}: {why}. The least budget known to "
            f"work is {format_bytes(least_bytes)} ({least_bytes} bytes, {share}% of the stock step's peak); use that "
            "budget or a larger one, or a smaller batch"
            + (f". {loss_limit}" if loss_limit else "")
            + ("" if proved else self.explain_patterns(closest)),
            least_budget_bytes=least_bytes,
            proved=proved,
            closest=ready,
        )

    def explain_patterns(self, closest: Attempt) -> str:
        """Describes how many bytes each pattern costs; "" without patterns."""
        if not self.steering:
            return ""
        limit_s = self.settings.least_share * self.request.time_limit_s
        options = self.request.options
        least = find_least_peaks(
            self.graph, self.steering, order=options.order, time_limit_s=limit_s, seed=options.seed
        )
        predicted_bytes = min([closest.predicted_bytes, *(attempt.predicted_bytes for attempt in self.attempts)])
        without = ", ".join(
            f"{format_bytes(min(peak_bytes, predicted_bytes))} without {one}" for one, peak_bytes in least
        )
        return f". As it is steered, it needs {format_bytes(predicted_bytes)} (predicted): {without}"

    def plan_stock(self) -> ReadyStep:
        """Plans the stock step, which stays within the budget without changes."""
        solution = solve(self.graph, simulate_stock(self.graph).peak_bytes, solver="retain_all")
        return self.make_ready_step(Attempt(solution, self.step.stock, self.step.orderings[0], self.stock.run))

    def make_ready_step(self, attempt: Attempt) -> ReadyStep:
        """Returns an attempt as a ready step."""
        ready = _make_ready_step(self.step, attempt, self.budget_bytes, self.stock)
        if not self.steering:
            return ready
        options = self.request.options
        patterns = price_patterns(
            self.graph,
            self.steering,
            attempt.solution,
            order=options.order,
            time_limit_s=self.settings.pattern_share * self.request.time_limit_s,
            seed=options.seed,
        )
        return replace(ready, planned=replace(ready.planned, patterns=patterns))


def warn_of_difference(graph: Graph, attempt: Attempt) -> None:
    """Warns if a rewritten step differs from the stock step by more than rounding explains."""
    difference = None if attempt.run is None else attempt.run.difference
    if difference is None or difference.is_rounding:
        return
    warn(
        f"one step of the plan for {graph.name!r} differs from the stock step by {difference.share:.1e} of the step's "
        f"change, most in {difference.name!r}; rounding explains {difference.allowed:.1e}. Train a few steps with and "
        "without the plan from the same state before you rely on it"
    )


def _make_ready_step(step: Step, attempt: Attempt, budget_bytes: int, stock: Stock) -> ReadyStep:
    planned = PlannedStep(
        budget_bytes=budget_bytes,
        graph=step.graph,
        solution=attempt.solution,
        ordering=None if attempt.function is step.stock else attempt.ordering,
        run=attempt.run,
        stock=stock,
        resident=step.resident,
        origins=step.origins,
        conditions=Conditions.of(step),
        chunks=step.chunks,
        state_cost=step.state_cost,
    )
    return ReadyStep(planned, attempt.function)
