"""Plans one traced training step for many budgets: solves for each, then runs each schedule once.

Budgets share schedules and bounds, and a schedule that ran serves every budget that its measured peak is within. If the
sweep is interrupted, it keeps its results so far.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from checkmate_tf.budget import parse_budget
from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.step import Step
from checkmate_tf.patterns import combine
from checkmate_tf.planning.asked_graph import AskedGraph
from checkmate_tf.planning.attempt import Attempt, arrange_solution
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import Stock
from checkmate_tf.planning.search import emit_and_measure
from checkmate_tf.planning.targets import Settings, find_first_target
from checkmate_tf.progress import PlanningBar, Stage
from checkmate_tf.reports.budget_curve import ParetoPoint
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.solvers import Solution, solve
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import MinimumMemory, minimum_memory, solve_budgets

# The number of budgets if none are given.
_NUM_BUDGETS = 10
# The schedule of least memory gets this share of the solvers' time.
_LEAST_SHARE = 0.2


@dataclass
class Sweep:
    """The facts about a step at many budgets.

    Args:
        step: the step with its costs.
        solutions: by budget.
        others: solutions of other solvers, with their budgets.
        attempts: the schedules that ran, each in the ordering that served it best.
        stock_s: seconds of the stock step, timed beside each of these schedules, because a machine's speed varies.
    """

    step: Step
    request: Request
    stock: Stock
    bar: PlanningBar
    least: MinimumMemory | None = None
    solutions: dict[int, Solution] = field(default_factory=dict)
    others: list[tuple[int, Solution]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    stock_s: dict[Schedule, float | None] = field(default_factory=dict)
    num_solves: int = 0

    def __post_init__(self) -> None:
        options = self.request.options
        self.asked = AskedGraph.of(self.step.graph, combine(options.steer(self.step.graph, self.step.origins)))

    def run(self, budgets: Sequence[int | float | str] | None, other_solvers: Sequence[str]) -> None:
        """Solves and runs. Budgets are read as `rematerialize` reads them."""
        given = None if budgets is None else [parse_budget(one, peak_bytes=self.stock.peak_bytes) for one in budgets]
        self.find_least()
        self.solve(sorted(set(self.choose_budgets() if given is None else given), reverse=True))
        self.solve_by_others(other_solvers)
        if self.request.measure:
            self.measure()

    def find_least(self) -> None:
        """Finds the schedule of least memory, and runs it."""
        self.bar.begin_stage(Stage.FIND_LEAST, _LEAST_SHARE * self.request.time_limit_s)
        request = self.request
        least = minimum_memory(
            self.asked.graph,
            order=request.options.order,
            time_limit_s=_LEAST_SHARE * request.time_limit_s,
            seed=request.options.seed,
        )
        self.least = replace(least, solution=self.asked.take_back(least.solution))
        if request.measure:
            # Nodes that wait for one another take the least memory.
            with contextlib.suppress(EmissionError):
                solution, ordering = arrange_solution(self.step, self.least.solution), self.step.orderings[-1]
                self.attempts.append(emit_and_measure(self.step, solution, ordering, measure=True))
                self.time_stock(solution)

    def choose_budgets(self) -> list[int]:
        """Returns budgets at equal distances, from the least known to work to the peak of the stock step."""
        least_bytes, most_bytes = self.least_budget_bytes, self.stock.peak_bytes
        assert least_bytes is not None
        share = (most_bytes - least_bytes) / (_NUM_BUDGETS - 1)
        return [max(least_bytes, int(most_bytes - number * share)) for number in range(_NUM_BUDGETS)]

    @property
    def least_budget_bytes(self) -> int | None:
        """Returns the least budget known to work. If steps are measured, it is a measured peak with a margin."""
        if self.request.measure:
            peaks = [attempt.peak_bytes for attempt in self.attempts]
            least_bytes = int(min(peaks) * (1 + Settings().named_margin)) if peaks else self.stock.peak_bytes
            return min(least_bytes, self.stock.peak_bytes)
        return None if self.least is None else self.least.budget_bytes

    def find_target(self, budget_bytes: int) -> int:
        """Returns the target of a schedule for a budget, so that the measured step stays within the budget."""
        if budget_bytes >= self.stock.peak_bytes:
            return max(budget_bytes, simulate_stock(self.step.graph).peak_bytes)
        stock_bytes = self.stock.peak_bytes if self.request.measure else None
        target_bytes = find_first_target(self.step, budget_bytes, stock_bytes=stock_bytes, settings=Settings())
        return max(target_bytes, 1)

    def solve(self, budgets: Sequence[int]) -> None:
        """Solves for all budgets, the highest first."""
        assert self.least is not None
        targets = {budget: self.find_target(budget) for budget in budgets}
        limit_s = (1 - _LEAST_SHARE) * self.request.time_limit_s
        self.bar.begin_stage(Stage.SOLVE, limit_s)

        def keep(target: int, solution: Solution) -> None:
            self.num_solves += 1
            arranged = self.arrange(solution)
            self.solutions |= {budget: arranged for budget in budgets if targets[budget] == target}
            self.bar.set_fraction(self.num_solves, len(set(targets.values())))

        found = solve_budgets(
            self.asked.graph,
            list(targets.values()),
            order=self.request.options.order,
            time_limit_s=limit_s,
            seed=self.request.options.seed,
            solver=Auto(tolerance=Settings().tolerance),
            known=self.asked.hand_over(self.least.solution),
            on_solved=keep,
        )
        self.solutions = dict(zip(budgets, map(self.arrange, found), strict=True))

    def arrange(self, solution: Solution) -> Solution:
        """Returns a solution of the asked graph in the form that the step's executor runs."""
        return arrange_solution(self.step, self.asked.take_back(solution))

    def solve_by_others(self, names: Sequence[str]) -> None:
        """Solves for all budgets by the other solvers, too, each run in an equal share of the time limit."""
        runs = [(name, budget) for name in names for budget in self.solutions]
        if runs:
            self.bar.begin_stage(Stage.SOLVE_BY_OTHERS, self.request.time_limit_s)
        for name, budget in runs:
            solution = solve(
                self.asked.graph,
                self.find_target(budget),
                solver=name,
                order=self.request.options.order,
                time_limit_s=self.request.time_limit_s / len(runs),
                seed=self.request.options.seed,
            )
            self.others.append((budget, self.arrange(solution)))
            self.bar.set_fraction(len(self.others), len(runs))

    def measure(self) -> None:
        """Runs each schedule once, in the first of the orderings that stays within its budget, or in the last."""
        self.bar.begin_stage(Stage.RUN_SCHEDULES, 4.0 * len(self.solutions))
        stock_schedule = make_retain_all_schedule(self.step.graph)
        tried = set()
        for number, (budget, solution) in enumerate(self.solutions.items()):
            schedule = None if solution.best is None else solution.best.schedule
            is_stock = schedule == stock_schedule and self.stock.peak_bytes <= budget
            if schedule is not None and (schedule, is_stock) not in tried:
                tried.add((schedule, is_stock))
                if is_stock:
                    self.attempts.append(Attempt(solution, self.step.stock, self.step.orderings[0], self.stock.run))
                    self.stock_s[stock_schedule] = None if self.stock.run is None else self.stock.run.step_s
                else:
                    self.measure_schedule(solution, budget)
            self.bar.set_fraction(number + 1, len(self.solutions))

    def measure_schedule(self, solution: Solution, budget_bytes: int) -> None:
        """Runs one schedule."""
        for ordering in self.step.orderings:
            with contextlib.suppress(EmissionError):
                spread = Settings().later_spread
                attempt = emit_and_measure(self.step, solution, ordering, measure=True, later_spread=spread)
                self.attempts.append(attempt)
                if attempt.peak_bytes <= budget_bytes:
                    break
        self.time_stock(solution)

    def time_stock(self, solution: Solution) -> None:
        """Times the stock step once more, to compare with a schedule that just ran."""
        beside = self.step.measure(self.step.stock, self.stock.predicted_bytes)
        self.stock_s[solution.scheduled.schedule] = None if beside is None else beside.step_s

    def list_points(self) -> list[ParetoPoint]:
        """Lists the facts about each budget, by this solver and the others, the highest budget first."""
        planned = [
            self._describe(budget, solution, self._find_attempt(budget, solution))
            for budget, solution in self.solutions.items()
        ]
        return planned + [self._describe(budget, solution, None) for budget, solution in self.others]

    def _find_attempt(self, budget_bytes: int, solution: Solution) -> Attempt | None:
        """Returns the cheapest schedule that ran within a budget, or the run of least memory of its own schedule.

        None if its own schedule did not run.
        """
        fitting = [one for one in self.attempts if self._keeps_to(one, budget_bytes)]
        if solution.best is None:
            return min(fitting, key=lambda one: one.cost, default=None)
        own = [one for one in self.attempts if one.solution.schedule == solution.schedule]
        if not own:
            return None
        return min(fitting, key=lambda one: one.cost) if fitting else min(own, key=lambda one: one.peak_bytes)

    def _find_bound(self, served: Solution) -> int:
        """Returns the highest bound that is proved for a schedule's memory.

        Bounds for more memory hold for less, too, and those for a free order of the nodes hold for a fixed one.
        """
        if served.best is None:
            return served.cost_lower_bound
        proved = [
            one.cost_lower_bound
            for budget, one in self.solutions.items()
            if one.bound_order in ("free", served.bound_order)
            and self.find_target(budget) >= served.best.simulation.peak_bytes
        ]
        return max([served.cost_lower_bound, *proved])

    def _keeps_to(self, attempt: Attempt, budget_bytes: int) -> bool:
        is_stock = attempt.function is self.step.stock
        return (self.stock.peak_bytes if is_stock else attempt.peak_bytes) <= budget_bytes

    def _describe(self, budget_bytes: int, solution: Solution, attempt: Attempt | None) -> ParetoPoint:
        served = solution if attempt is None else attempt.solution
        best = served.best
        run = None if attempt is None else attempt.run
        stock_s = None if best is None else self.stock_s.get(best.schedule)
        step_s = None if run is None else run.step_s
        return ParetoPoint(
            budget_bytes=budget_bytes,
            solver=solution.solver,
            status=str(solution.status),
            is_met=best is not None and (attempt is None or self._keeps_to(attempt, budget_bytes)),
            predicted_peak_bytes=None if best is None else best.simulation.peak_bytes,
            overhead=None if best is None else best.simulation.overhead,
            least_overhead=self._find_bound(served) / max(self.step.graph.baseline_cost, 1) - 1,
            measured_peak_bytes=None if run is None else run.peak_bytes,
            step_s=step_s,
            measured_overhead=step_s / stock_s - 1 if step_s and stock_s else None,
        )
