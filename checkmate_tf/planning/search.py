"""The search for a plan: solve, emit, measure, and solve again for what the measurement says.

A solver plans on the bytes that a step asks for. The device's allocator hands out chunks that may be larger, and XLA
has an order of its own: so each schedule is measured, and the next one is planned for as much less as the last one took
too much, or for as much more as it left unused.
"""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.emission.function import EmittedFunction
from checkmate_tf.emission.ordering import Ordering
from checkmate_tf.errors import EmissionError, InfeasibleBudgetError, ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.planning.plan import Options, Plan, Planned
from checkmate_tf.planning.step import Step
from checkmate_tf.progress import PlanningBar
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers import Solution, Solver, Status, solve
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory


@dataclass(frozen=True)
class Settings:
    """How the search proceeds.

    Args:
        headroom: share of what is not resident that a schedule is planned to leave free.
        most_beyond: what the first schedule is expected to take at most, over what was predicted. Stock steps may take
            far more, where TensorFlow computes products with constants ahead, which rewritten steps do not.
        used: a schedule that uses this share of the budget is good enough.
        max_rounds: schedules measured before the search settles for the best one.
        tolerance: a solver's schedule may cost this share of the stock step more than its bound.
        solver_share: of the solver's time that is left, for each round.
        lower: the next target, where TensorFlow refuses a schedule, over the one before.
        worth: share of the stock step's cost that must be saved for each node to wait for the one before it.
        resolution: targets that differ by less than this share are the same.
        spread: share of what is not resident that later steps may take more than those measured, where nodes run side
            by side: they come in another order, and so do the allocator's chunks.
        least_share: of the solver's time, at least, to look for the schedule of least memory where no other was found.
        hopeless_share: of the solver's time, to find what a budget that is less than one node needs would have to be.
        named: what a budget that is named as the least must have above what was measured.
    """

    headroom: float = 0.03
    most_beyond: float = 1.1
    used: float = 0.95
    max_rounds: int = 5
    tolerance: float = 0.01
    solver_share: float = 0.15
    lower: float = 0.98
    worth: float = 0.01
    resolution: float = 0.005
    spread: float = 0.02
    least_share: float = 0.25
    hopeless_share: float = 0.1
    named: float = 0.02


@dataclass(frozen=True)
class Tried:
    """A schedule that was emitted, and measured where steps are."""

    solution: Solution
    function: EmittedFunction
    ordering: Ordering
    run: StepRun | None

    @property
    def predicted_bytes(self) -> int:
        assert self.solution.simulation is not None
        return self.solution.simulation.peak_bytes

    @property
    def cost(self) -> int:
        assert self.solution.simulation is not None
        return self.solution.simulation.cost

    @property
    def peak_bytes(self) -> int:
        return self.predicted_bytes if self.run is None else max(self.run.peak_bytes, self.predicted_bytes)

    @property
    def held_bytes(self) -> int:
        return 0 if self.run is None else self.run.held_bytes


def find_plan(
    step: Step,
    options: Options,
    bar: PlanningBar,
    *,
    known: Iterable[Schedule] = (),
    settings: Settings | None = None,
) -> Planned:
    """The cheapest schedule whose step keeps within the budget, predicted and, where the options say so, measured.

    Args:
        known: schedules of other sizes of the same step, tried before a solver is asked.

    Raises InfeasibleBudgetError, with the least budget known to work and the node that sets it, and BudgetError for a
    budget that cannot be read.
    """
    return _Search(step, options, bar, settings or Settings()).run(known)


def plan_known_schedule(
    step: Step, schedule: Schedule, *, budget_bytes: int, solver: str, run: StepRun | None
) -> Planned:
    """The plan for a schedule that was found, and maybe run, elsewhere: nothing is solved or measured here.

    Args:
        solver: the name of what found the schedule.
        run: what the step took; None where it did not run.

    Raises EmissionError where TensorFlow refuses the step.
    """
    stock_bytes = simulate(step.graph, retain_all_schedule(step.graph)).peak_bytes
    ordering = step.orderings[0]
    tried = Tried(_make_solution(step.graph, schedule, solver), step.emit(schedule, ordering), ordering, run)
    return _make_plan(
        step, tried, budget_bytes=budget_bytes, stock_bytes=stock_bytes, predicted_stock_bytes=stock_bytes
    )


@dataclass
class _Search:
    """One search. Targets are for the predicted peak; `above` and `within` are the schedules next to the budget.

    `solver_s` is what solvers have taken so far. Targets up to `floor_bytes` are not worth solving for: either there is
    no schedule, or it leaves more of the budget unused than one that is known.
    """

    step: Step
    options: Options
    bar: PlanningBar
    settings: Settings
    above: Tried | None = None
    within: Tried | None = None
    floor_bytes: int = 0
    solver_s: float = 0.0
    best: Tried | None = None
    tried: list[Tried] = field(default_factory=list)

    def run(self, known: Iterable[Schedule]) -> Planned:
        stock_schedule = retain_all_schedule(self.step.graph)
        self.predicted_stock_bytes = simulate(self.step.graph, stock_schedule).peak_bytes
        self.stock_run = None
        if self.options.measure:
            self.bar.stage("measuring the stock step")
            self.stock_run = self.step.measure(self.step.stock, self.predicted_stock_bytes)
        self.stock_bytes = self.predicted_stock_bytes if self.stock_run is None else self.stock_run.peak_bytes
        self.budget_bytes = self.read_budget()
        if self.options.solver == "auto" and self.stock_bytes <= self.budget_bytes:
            return self.stock_plan()
        self.graph = self.step.graph
        if least_step(self.graph).peak_bytes > self.budget_bytes:
            raise self.infeasible(self.least_memory(self.settings.hopeless_share * self.options.time_limit_s))
        chosen = self.from_known(known)
        if chosen is None:
            self.bar.stage("timing its nodes")
            self.step = self.step.add_costs(self.options, self.bar)
            self.graph = self.step.graph
            chosen = self.from_solver() or self.from_least_memory()
        return self.make_plan(chosen)

    def read_budget(self) -> int:
        if self.options.budget != "auto":
            return parse_budget(self.options.budget, peak_bytes=self.stock_bytes)
        return self.step.free_bytes()

    def from_known(self, known: Iterable[Schedule]) -> Tried | None:
        """The cheapest known schedule that keeps within the budget."""
        fitting = []
        for schedule in known:
            try:
                check_schedule(self.graph, schedule, order=self.options.order)
            except ScheduleError:
                continue
            solution = _make_solution(self.graph, schedule, "known")
            if solution.simulation is not None and solution.simulation.peak_bytes <= self.first_target():
                fitting.append(solution)
        if not fitting:
            return None
        try:
            tried = self.try_out(min(fitting, key=_cost))
        except EmissionError:
            return None
        return tried if tried.peak_bytes <= self.budget_bytes else None

    def from_solver(self) -> Tried | None:
        """The cheapest schedule found in a few rounds that keeps within the budget."""
        target_bytes = self.first_target()
        for _ in range(self.settings.max_rounds if self.options.measure else 1):
            solution = self.solve(target_bytes)
            if any(tried.solution.schedule == solution.schedule for tried in self.tried):
                break
            if solution.schedule is None:
                self.floor_bytes = max(self.floor_bytes, target_bytes)
            else:
                try:
                    tried = self.in_line(_cost(solution)) or self.try_out(solution)
                except EmissionError:  # of every ordering; another schedule may do
                    if self.best is not None:
                        break
                    target_bytes = int(self.settings.lower * target_bytes)
                    continue
                self.note(tried)
                if self.is_good(tried):
                    return self.best
                if tried.peak_bytes <= self.budget_bytes:
                    self.floor_bytes = max(self.floor_bytes, target_bytes)
            following = self.next_target()
            if following is None or self.solver_s >= self.options.time_limit_s:
                break
            target_bytes = following
        return self.in_line(self.best.cost if self.best else math.inf) or self.best

    def first_target(self) -> int:
        """What a schedule may ask for so that, with what the stock step takes beyond that, it keeps to the budget."""
        resident_bytes = self.graph.resident_bytes
        # With the workspace that was measured since.
        asked = simulate(self.graph, retain_all_schedule(self.graph)).peak_bytes - resident_bytes
        took = self.stock_bytes - resident_bytes
        factor = min(max(took / asked, 1.0), self.settings.most_beyond) if self.stock_run and asked > 0 else 1.0
        headroom = self.settings.headroom if self.options.measure else 0.0
        return resident_bytes + int((self.budget_bytes - resident_bytes) / factor * (1 - headroom))

    def note(self, tried: Tried) -> None:
        if tried.peak_bytes > self.budget_bytes:
            self.above = min(self.above or tried, tried, key=lambda one: one.predicted_bytes)
            return
        self.within = max(self.within or tried, tried, key=lambda one: one.predicted_bytes)
        self.best = min(self.best or tried, tried, key=lambda one: one.cost)
        overhead = self.best.cost / max(self.graph.baseline_cost, 1) - 1
        self.bar.best(overhead, self.best.peak_bytes, self.budget_bytes)

    def is_good(self, tried: Tried) -> bool:
        """Whether a schedule leaves nothing to look for."""
        if tried.peak_bytes > self.budget_bytes:
            return False
        is_free = tried.cost <= self.graph.baseline_cost
        return is_free or not self.options.measure or tried.peak_bytes >= self.settings.used * self.budget_bytes

    def next_target(self) -> int | None:
        """Where the measured peak should reach the budget, by the schedules next to it; None where none is left."""
        resident_bytes, budget_bytes = self.graph.resident_bytes, self.budget_bytes
        wanted = resident_bytes + (1 - self.settings.headroom) * (budget_bytes - resident_bytes)
        low = max(self.floor_bytes, self.within.predicted_bytes if self.within else 0)
        high = self.above.predicted_bytes if self.above else budget_bytes
        if high - low <= self.settings.resolution * budget_bytes:
            return None
        if self.above and self.within:
            share = (wanted - self.within.peak_bytes) / max(self.above.peak_bytes - self.within.peak_bytes, 1)
            target = self.within.predicted_bytes + share * (self.above.predicted_bytes - self.within.predicted_bytes)
        elif self.above:
            target = _scaled(self.above, wanted, resident_bytes)
        elif self.within:
            target = _scaled(self.within, wanted, resident_bytes)
        else:
            target = (self.floor_bytes + budget_bytes) / 2
        if not low < int(target) < high:
            target = (low + high) / 2
        return int(target)

    def solve(self, target_bytes: int) -> Solution:
        limit_s = max(self.settings.solver_share * (self.options.time_limit_s - self.solver_s), 0.5)
        if not self.options.measure:
            limit_s = self.options.time_limit_s
        start = self.best or self.above
        solver: str | Solver = self.options.solver
        if solver == "auto":
            solver = Auto(
                start=start.solution.schedule if start else None,
                tolerance=self.settings.tolerance if self.options.measure else Auto.tolerance,
            )
        self.bar.stage("solving")
        solution = solve(
            self.graph,
            max(target_bytes, 1),
            solver=solver,
            order=self.options.order,
            time_limit_s=limit_s,
            seed=self.options.seed,
        )
        self.solver_s += solution.solve_time_s
        return solution

    def try_out(self, solution: Solution, orderings: Sequence[Ordering] | None = None) -> Tried:
        """Emits and measures a schedule, in the first of the orderings that TensorFlow accepts."""
        assert solution.schedule is not None
        if solution.schedule == retain_all_schedule(self.graph) and self.stock_bytes <= self.budget_bytes:
            return self.keep(Tried(solution, self.step.stock, self.step.orderings[0], self.stock_run))
        *others, last = orderings or self.step.orderings
        for one in others:
            with contextlib.suppress(EmissionError):
                return self.keep(self.emitted(solution, one))
        return self.keep(self.emitted(solution, last))

    def emitted(self, solution: Solution, ordering: Ordering) -> Tried:
        assert solution.schedule is not None
        self.bar.stage("measuring the rewritten step")
        function = self.step.emit(solution.schedule, ordering)
        run = None
        if self.options.measure:
            run = self.step.measure(function, _peak_bytes(solution), self.budget_bytes)
        if run is not None and ordering == "overlap":
            spread_bytes = self.settings.spread * (run.peak_bytes - self.graph.resident_bytes)
            run = replace(run, peak_bytes=run.peak_bytes + int(spread_bytes))
        return Tried(solution, function, ordering, run)

    def keep(self, tried: Tried) -> Tried:
        self.tried.append(tried)
        return tried

    def in_line(self, cost: float) -> Tried | None:
        """A schedule found before that costs much less than `cost`, with each node waiting for the one before it.

        Its peak is lower so, and does not vary. None where there is none that then keeps to the budget.
        """
        last = self.step.orderings[-1]
        seen = {tried.solution.schedule for tried in self.tried if tried.ordering == last}
        most = cost - self.settings.worth * self.graph.baseline_cost
        cheaper = [one for one in self.tried if one.solution.schedule not in seen and one.cost < most]
        fitting = (one.solution for one in cheaper if one.predicted_bytes + one.held_bytes <= self.budget_bytes)
        for solution in sorted(fitting, key=_cost):
            try:
                tried = self.try_out(solution, [last])
            except EmissionError:
                continue
            if tried.peak_bytes <= self.budget_bytes:
                return tried
            self.above = tried
        return None

    def from_least_memory(self) -> Tried:
        """The schedule of least memory. Raises InfeasibleBudgetError where that is above the budget too."""
        remaining_s = self.options.time_limit_s - self.solver_s
        least = self.least_memory(max(remaining_s, self.settings.least_share * self.options.time_limit_s))
        if least.peak_bytes <= self.budget_bytes:
            return least
        raise self.infeasible(min([least, *self.tried], key=lambda one: one.peak_bytes))

    def least_memory(self, limit_s: float) -> Tried:
        self.bar.stage("solving")
        known = min((one.solution for one in self.tried), key=_peak_bytes, default=None)
        found = minimum_memory(
            self.graph, order=self.options.order, time_limit_s=limit_s, seed=self.options.seed, known=known
        )
        return self.try_out(found.solution, self.step.orderings[::-1])

    def infeasible(self, closest: Tried) -> InfeasibleBudgetError:
        """For a budget that no plan keeps; `closest` is the one of least memory."""
        graph, budget_bytes = self.graph, self.budget_bytes
        bound = least_step(graph)
        proved = bound.peak_bytes > budget_bytes
        least_bytes = closest.peak_bytes
        if self.options.measure:
            least_bytes = int(least_bytes * (1 + self.settings.named))
        simulation, schedule = closest.solution.simulation, closest.solution.schedule
        assert simulation is not None
        assert schedule is not None
        why = (
            f"step {graph.nodes[bound.node].name} alone needs {format_bytes(bound.peak_bytes)}"
            if proved
            else f"the schedule of least memory that was found takes {format_bytes(closest.peak_bytes)}, at step "
            f"{graph.nodes[schedule.order[simulation.peak_step]].name}"
        )
        return InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} cannot be met for {graph.name!r}: {why}. The least budget known to "
            f"work is {format_bytes(least_bytes)} ({least_bytes} bytes); use a larger budget or a smaller batch",
            least_budget_bytes=least_bytes,
            proved=proved,
            closest=self.make_plan(closest),
        )

    def stock_plan(self) -> Planned:
        solution = solve(self.step.graph, self.predicted_stock_bytes, solver="retain_all")
        return self.make_plan(Tried(solution, self.step.stock, self.step.orderings[0], self.stock_run))

    def make_plan(self, tried: Tried) -> Planned:
        return _make_plan(
            self.step,
            tried,
            budget_bytes=self.budget_bytes,
            stock_bytes=self.stock_bytes,
            predicted_stock_bytes=self.predicted_stock_bytes,
        )


def _make_plan(step: Step, tried: Tried, *, budget_bytes: int, stock_bytes: int, predicted_stock_bytes: int) -> Planned:
    plan = Plan(
        name=step.graph.name,
        budget_bytes=budget_bytes,
        stock_peak_bytes=stock_bytes,
        predicted_stock_peak_bytes=predicted_stock_bytes,
        predicted_peak_bytes=tried.predicted_bytes,
        measured_peak_bytes=None if tried.run is None else tried.run.peak_bytes,
        resident=step.resident,
        graph=step.graph,
        solution=tried.solution,
    )
    return Planned(plan, tried.function, None if tried.function is step.stock else tried.ordering)


def _make_solution(graph: Graph, schedule: Schedule, solver: str) -> Solution:
    """A schedule as the solution of a solver that proves nothing."""
    simulation = simulate(graph, schedule)
    status = Status.OPTIMAL if simulation.cost == graph.baseline_cost else Status.FEASIBLE
    return Solution(status, schedule, simulation, graph.baseline_cost, "free", solver, 0.0, {})


def _scaled(tried: Tried, wanted: float, resident_bytes: int) -> float:
    """The target at which a peak as much above the predicted one as this schedule's is the one wanted.

    What the steps leave behind stays the same; the rest grows with the target.
    """
    kept = resident_bytes + tried.held_bytes
    share = max(wanted - kept, 0) / max(tried.peak_bytes - kept, 1)
    return resident_bytes + (tried.predicted_bytes - resident_bytes) * share


def _peak_bytes(solution: Solution) -> int:
    assert solution.simulation is not None
    return solution.simulation.peak_bytes


def _cost(solution: Solution) -> int:
    assert solution.simulation is not None
    return solution.simulation.cost
