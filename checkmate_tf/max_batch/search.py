"""Searches for the largest size, such as the batch, whose step fits. A solver predicts it, and runs confirm it.

The search keeps a bracket of sizes: `low` fits with a known schedule, and `high` does not fit. A schedule found at one
size serves other sizes, too, so each solve moves the bracket as far as possible. The bytes that the allocator adds are
a factor: at first a margin, and then the factor measured in the last run. A run that ends without a measured peak, out
of memory, limits the bytes instead, halfway to those that did run. Both ends move with these.

Runs alone close the rest of the bracket. The confirmed schedule runs at larger sizes, until a size that ran and one
that failed are adjacent. Peaks grow with the size except for the allocator's chunks, and differ from run to run by a
few percent, because operations run side by side. A size that failed once, with any schedule, counts as failing.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkmate_tf.constraints import Constraints
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import ProcessRun
from checkmate_tf.planning.asked_graph import make_least_schedule
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_peak_bound, simulate
from checkmate_tf.solvers import Solution, Status

# The next schedule's chunks differ a little from those measured, and more if runs have failed already.
_SLACK = 0.003
_SLACK_FOR_FAILURES = 0.03


@dataclass(frozen=True)
class Trial:
    """One size that was tried, by a solver or by running the step.

    Args:
        target_bytes: limit of the schedule: the budget less the bytes that the allocator is expected to add.
        overhead, allowed_overhead, least_overhead: predicted. The last is a proved bound. None if not known.

    Example:

    >>> trial = Trial(size=64, kind="solve", outcome="found", fits=True, target_bytes=1000, overhead=0.05)
    >>> trial.fits, trial.measured_peak_bytes
    (True, None)
    """

    size: int
    kind: str
    outcome: str
    fits: bool
    target_bytes: int
    predicted_peak_bytes: int | None = None
    overhead: float | None = None
    allowed_overhead: float | None = None
    least_overhead: float | None = None
    solve_time_s: float = 0.0
    measured_peak_bytes: int | None = None
    step_time_s: float | None = None


@dataclass(frozen=True)
class SizeProblem:
    """The sizes to search, and the functions that the search calls.

    Args:
        graph_at: returns the training graph of a size, with its resident bytes.
        sizes: the allowed sizes, in ascending order.
        allowed_overhead: returns the limit for a graph; None for no limit.
        solve: finds a schedule for a graph within so many bytes, beginning with a schedule known from another size.
        run: runs the step of a size with a schedule; None to predict only.
        max_solves: largest number of calls of `solve`.
        max_runs: largest number of calls of `run`.
        margin: share of the bytes beside the resident ones that the allocator is expected to add before the first run.
        constraints: constraints on the nodes of the graph of any size, which `solve` respects.
    """

    graph_at: Callable[[int], Graph]
    budget_bytes: int
    sizes: range
    allowed_overhead: Callable[[Graph], float | None]
    solve: Callable[[Graph, int, Schedule | None], Solution]
    run: Callable[[int, Schedule], ProcessRun] | None = None
    max_solves: int = 10
    max_runs: int = 10
    margin: float = 0.02
    constraints: Constraints = field(default_factory=Constraints)


@dataclass(frozen=True)
class LargestSize:
    """The largest size found. `run` is None if it was only predicted."""

    size: int
    schedule: Schedule
    run: ProcessRun | None = None


@dataclass(frozen=True)
class _Miss:
    """A size that did not fit with so many bytes beside the resident ones."""

    index: int
    beside_bytes: int
    overhead: float | None = None


@dataclass
class SizeSearch:
    """The search. All its knowledge is in `trials` and `best`, which stay readable when it is interrupted."""

    problem: SizeProblem
    on_trial: Callable[[Trial], None] = lambda trial: None
    trials: list[Trial] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    misses: list[_Miss] = field(default_factory=list)
    confirmed: LargestSize | None = None
    ran_bytes: int = 0
    ran_out_bytes: int | None = None
    _largest: dict[tuple[int, float, int, int | None], int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.factor = 1 + self.problem.margin
        self.schedules = [make_least_schedule(self.problem.graph_at(self.problem.sizes[0]), self.problem.constraints)]

    @property
    def best(self) -> LargestSize | None:
        """Returns the largest confirmed size; if no step is run, the largest known to fit. None while there is none."""
        if self.problem.run is not None:
            return self.confirmed
        return self.find_predicted()

    def search(self) -> LargestSize | None:
        """Finds the largest size; None if none fits, or if none that ran did."""
        while True:
            self.narrow()
            candidate = self.find_predicted()
            if self.problem.run is None or candidate is None:
                return self.best
            if self.confirmed is not None and candidate.size <= self.confirmed.size:
                candidate = self.choose_larger(self.confirmed)
            if candidate is None or self.count_trials("run") >= self.problem.max_runs:
                return self.best
            self.confirm(candidate)

    def count_trials(self, kind: str) -> int:
        """Returns the number of trials of a kind, "solve" or "run"."""
        return sum(trial.kind == kind for trial in self.trials)

    def find_predicted(self) -> LargestSize | None:
        """Returns the largest size that fits with a known schedule, with the cheapest such schedule."""
        index = self.find_low()
        if index is None:
            return None
        graph = self.get_graph(index)
        fitting = [schedule for schedule in self.schedules if self.fits(index, schedule)]
        return LargestSize(self.problem.sizes[index], min(fitting, key=lambda schedule: simulate(graph, schedule).cost))

    def narrow(self) -> None:
        """Solves between `low` and `high` until they meet; before the first run, only to a quarter of the margin."""
        while self.count_trials("solve") < self.problem.max_solves:
            low, high = self.find_low(), self.find_high()
            if self.confirmed is not None:
                low = max(low or 0, self.problem.sizes.index(self.confirmed.size))
            apart = high - (-1 if low is None else low)
            if self.problem.run is not None and self.confirmed is None and low is not None:
                apart -= int(self.problem.margin / 4 * low)
            if apart <= 1:
                return
            self.try_size(0 if low is None else self.choose_between(low, high))

    def choose_larger(self, confirmed: LargestSize) -> LargestSize | None:
        """Chooses a larger size for the confirmed schedule; None if no size is left.

        It alternates between the size that should just fit and the middle between it and the next failure.
        """
        assert confirmed.run is not None
        assert confirmed.run.measured_peak_bytes is not None
        sizes, schedule = self.problem.sizes, confirmed.schedule
        low, failed = sizes.index(confirmed.size), self.find_failure_above(confirmed.size)
        high = self.find_first(lambda index: not self.is_allowed(index, schedule))
        if failed is not None:
            high = min(high, sizes.index(failed.size))
        if high - low <= 1:
            return None
        factor = (confirmed.run.measured_peak_bytes - self.get_graph(low).resident_bytes) / self.count_beside_bytes(
            low, schedule
        )

        def is_above(index: int) -> bool:
            peak_bytes = self.get_graph(index).resident_bytes + factor * self.count_beside_bytes(index, schedule)
            return peak_bytes > self.problem.budget_bytes

        halves = failed is not None and self.count_trials("run") % 2
        index = (low + high) // 2 if halves else self.find_first(is_above) - 1
        return LargestSize(sizes[min(max(index, low + 1), high - 1)], schedule)

    def find_failure_above(self, size: int, kind: str = "run") -> Trial | None:
        """Returns the trial of the smallest larger size that did not fit."""
        failed = [trial for trial in self.trials if trial.kind == kind and not trial.fits and trial.size > size]
        return min(failed, key=lambda trial: trial.size, default=None)

    def describe_beyond(self, best: LargestSize) -> str:
        """Returns a text about the sizes above the best one."""
        if best.size == self.problem.sizes[-1]:
            return "the largest allowed"
        following = best.size + self.problem.sizes.step
        failed = self.find_failure_above(best.size, "solve" if best.run is None else "run")
        if failed is not None and failed.size == following:
            return f"{following}, the next: {failed.outcome}"
        if not self.is_allowed(self.problem.sizes.index(following), best.schedule):
            return f"{following}, the next: above the overhead"
        if failed is not None:
            return f"{failed.size}: {failed.outcome}; those between were not tried"
        return "no larger one was tried"

    def find_low(self) -> int | None:
        """Returns the index of the largest size that fits with a known schedule."""
        found = [self.find_largest_index(number) for number in range(len(self.schedules))]
        return max((index for index in found if index is not None), default=None)

    def find_high(self) -> int:
        """Returns the index of the smallest size that is known, or expected, not to fit."""
        ends = [
            self.find_first(
                lambda index: find_peak_bound(self.get_graph(index)).peak_bytes > self.find_target_bytes(index)
            )
        ]
        for miss in self.misses:
            more = (self.find_target_bytes(miss.index) - self.get_graph(miss.index).resident_bytes) / max(
                miss.beside_bytes, 1
            )
            ends.append(miss.index if more <= 1 else self.find_index_from(self.problem.sizes[miss.index] * more))
        return min(ends)

    def choose_between(self, low: int, high: int) -> int:
        """Chooses the next size: in turn, where the overhead should reach its limit, and the middle."""
        sizes = self.problem.sizes
        middle = self.find_index_from((sizes[low] * sizes[min(high, len(sizes) - 1)]) ** 0.5)
        here = self.find_predicted()
        missed = next((miss for miss in self.misses if miss.index == high and miss.overhead is not None), None)
        allowed = self.find_allowed_overhead(low)
        if missed is not None and here is not None and allowed is not None and self.count_trials("solve") % 2:
            overhead = simulate(self.get_graph(low), here.schedule).overhead
            assert missed.overhead is not None
            share = (allowed - overhead) / max(missed.overhead - overhead, 1e-9)
            middle = low + round(share * (high - low))
        return min(max(middle, low + 1), high - 1)

    def try_size(self, index: int) -> None:
        """Asks the solver for a schedule at a size."""
        graph, target_bytes, allowed = (
            self.get_graph(index),
            self.find_target_bytes(index),
            self.find_allowed_overhead(index),
        )
        start = self.find_predicted()
        solution = self.problem.solve(graph, target_bytes, None if start is None else start.schedule)
        least = solution.cost_lower_bound / graph.baseline_cost - 1 if graph.baseline_cost else 0.0
        trial = Trial(
            self.problem.sizes[index],
            "solve",
            "no schedule exists" if solution.status is Status.INFEASIBLE else "no schedule found in time",
            False,
            target_bytes,
            allowed_overhead=allowed,
            least_overhead=least,
            solve_time_s=solution.solve_time_s,
        )
        overhead = None
        if solution.best is not None:
            self.schedules.append(solution.best.schedule)
            overhead = solution.best.simulation.overhead
            within = allowed is None or overhead <= allowed
            proved = " (proved)" if allowed is not None and least > allowed else ""
            trial = replace(
                trial,
                outcome="fits" if within else f"above the overhead{proved}",
                fits=within,
                predicted_peak_bytes=solution.best.simulation.peak_bytes,
                overhead=overhead,
            )
        if not trial.fits:
            self.misses.append(_Miss(index, target_bytes - graph.resident_bytes, overhead))
        self.report(trial)

    def confirm(self, candidate: LargestSize) -> None:
        """Runs the step, and updates the factor of the allocator."""
        assert self.problem.run is not None
        index = self.problem.sizes.index(candidate.size)
        graph = self.get_graph(index)
        simulation = simulate(graph, candidate.schedule)
        target_bytes, allowed = self.find_target_bytes(index), self.find_allowed_overhead(index)
        run = self.problem.run(candidate.size, candidate.schedule)
        above = run.measured_peak_bytes is not None and run.measured_peak_bytes > self.problem.budget_bytes
        outcome = run.failure or ("above the budget" if above else "confirmed")
        fits = outcome == "confirmed"
        if run.measured_peak_bytes is not None:
            num_failures = sum(trial.kind == "run" and not trial.fits for trial in self.trials)
            beside_bytes = run.measured_peak_bytes - graph.resident_bytes
            self.factor = beside_bytes / self.count_beside_bytes(index, candidate.schedule)
            self.factor *= 1 + _SLACK + _SLACK_FOR_FAILURES * num_failures
        if fits:
            self.confirmed = replace(candidate, run=run)
            self.ran_bytes = max(self.ran_bytes, simulation.peak_bytes)
        elif run.measured_peak_bytes is None:
            self.ran_out_bytes = simulation.peak_bytes
        self.report(
            Trial(
                candidate.size,
                "run",
                outcome,
                fits,
                target_bytes,
                simulation.peak_bytes,
                simulation.overhead,
                allowed,
                measured_peak_bytes=run.measured_peak_bytes,
                step_time_s=run.step_time_s,
            )
        )

    def report(self, trial: Trial) -> None:
        """Records a trial, and reports it to the caller."""
        self.trials.append(trial)
        self.on_trial(trial)

    def get_graph(self, index: int) -> Graph:
        """Returns the graph of the size with this index."""
        return self.problem.graph_at(self.problem.sizes[index])

    def find_target_bytes(self, index: int) -> int:
        """Returns the bytes that a schedule may request so that the step, with those that the allocator adds, fits."""
        resident_bytes = self.get_graph(index).resident_bytes
        target_bytes = resident_bytes + max(int((self.problem.budget_bytes - resident_bytes) / self.factor), 0)
        if self.ran_out_bytes is None:
            return target_bytes
        return min(target_bytes, (max(self.ran_bytes, resident_bytes) + self.ran_out_bytes) // 2)

    def find_allowed_overhead(self, index: int) -> float | None:
        """Returns the overhead allowed at a size; None for no limit."""
        return self.problem.allowed_overhead(self.get_graph(index))

    def is_allowed(self, index: int, schedule: Schedule) -> bool:
        """Returns whether a schedule is within the overhead allowed at a size."""
        allowed = self.find_allowed_overhead(index)
        return allowed is None or simulate(self.get_graph(index), schedule).overhead <= allowed

    def count_beside_bytes(self, index: int, schedule: Schedule) -> int:
        """Returns the bytes that a schedule requests beside the resident bytes."""
        graph = self.get_graph(index)
        return max(simulate(graph, schedule).peak_bytes - graph.resident_bytes, 1)

    def fits(self, index: int, schedule: Schedule) -> bool:
        """Returns whether a schedule is within the bytes and the overhead of a size."""
        peak_bytes = simulate(self.get_graph(index), schedule).peak_bytes
        return peak_bytes <= self.find_target_bytes(index) and self.is_allowed(index, schedule)

    def find_largest_index(self, number: int) -> int | None:
        """Returns the index of the largest size at which a schedule fits."""
        known = (number, self.factor, self.ran_bytes, self.ran_out_bytes)
        if known not in self._largest:
            index = self.find_first(lambda index: not self.fits(index, self.schedules[number]))
            self._largest[known] = index - 1 if index else None
        return self._largest[known]

    def find_first(self, missed: Callable[[int], bool]) -> int:
        """Returns the first index that fails; the number of sizes if none does. All larger sizes fail, too."""
        return bisect_left(range(len(self.problem.sizes)), True, key=missed)

    def find_index_from(self, size: float) -> int:
        """Returns the index of the first size that is at least this large."""
        sizes = self.problem.sizes
        return min(max(-int((sizes.start - size) // sizes.step), 0), len(sizes))
