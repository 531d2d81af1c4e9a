"""Keeps the best schedule and the best lower bound that a search knows."""

from dataclasses import dataclass, field

import numpy as np

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Result, Scope
from checkmate_tf.solvers.search import Search, Update
from checkmate_tf.solvers.stages import rows_of, schedule_of_events, staged_events


@dataclass
class Incumbent:
    """The best results of one search so far. It reports every improvement of the schedule or the bound to the caller.

    Args:
        schedule, cost, peak_bytes: the best schedule within the budget; None while none is known.
        events, events_cost: the best recomputations in stages, int64 [num_events, 2] of (stage, node), which are shared
            with other searches. The schedule may lie outside of the stages.
        bound: lower bound on the cost of every schedule within the budget, in the problem's order; at least the
            baseline cost.
        infeasible_in: the schedules that a search proved to exceed the budget.
        won: the solver that found the schedule.
        failed: the reason of each solver that failed.
    """

    search: Search
    schedule: Schedule | None = None
    cost: int | None = None
    peak_bytes: int = 0
    events: np.ndarray | None = None
    events_cost: int | None = None
    bound: int = 0
    infeasible_in: Scope | None = None
    won: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    reported: tuple[int | None, int] = (None, 0)

    def __post_init__(self) -> None:
        self.problem = self.search.problem
        self.bound = max(self.bound, self.problem.graph.baseline_cost)

    def is_closed(self, tolerance: float = 0.0) -> bool:
        """Returns whether the cost exceeds the bound by at most this fraction of the baseline cost."""
        return self.cost is not None and self.cost - self.bound <= tolerance * self.problem.graph.baseline_cost

    def offer(self, schedule: Schedule, won: str = "") -> bool:
        """Takes a schedule if it stays within the budget and costs less. Returns whether it did."""
        simulation = simulate(self.problem.graph, schedule)
        is_within = simulation.peak_bytes <= self.problem.budget_bytes
        if not is_within or (self.cost is not None and simulation.cost >= self.cost):
            return False
        self.schedule, self.cost, self.peak_bytes, self.won = schedule, simulation.cost, simulation.peak_bytes, won
        self.report()
        return True

    def raise_bound(self, bound: int) -> bool:
        """Takes a better bound, limited to the cost of the schedule. Returns whether it is better."""
        bound = bound if self.cost is None else min(bound, self.cost)
        is_better = bound > self.bound
        self.bound = max(self.bound, bound)
        if is_better:
            self.report()
        return is_better

    def learn(self, update: Update, won: str) -> bool:
        """Takes over improvements from another search of the problem. Returns whether there were any."""
        is_better_bound = self.raise_bound(update.cost_lower_bound)
        if update.cost is None or update.events is None:
            return is_better_bound
        is_better = self.events_cost is None or update.cost < self.events_cost
        if is_better:
            self.events, self.events_cost = update.events, update.cost
        if self.cost is None or update.cost < self.cost:
            self.offer(schedule_of_events(len(self.problem.graph.nodes), update.events), won)
        return is_better or is_better_bound

    def learn_result(self, result: Result, won: str) -> bool:
        """Takes over improvements from a solver's result in the problem's order, which may lie outside of stages."""
        self.infeasible_in = self.infeasible_in or result.infeasible_in
        is_better_bound = self.raise_bound(result.cost_lower_bound)
        return (result.schedule is not None and self.learn_schedule(result.schedule, won)) or is_better_bound

    def learn_schedule(self, schedule: Schedule, won: str) -> bool:
        """Takes over a schedule if it is better, and its recomputations if they stay within the budget, too."""
        self.offer(schedule, won)
        return self.learn(update_of(self.search, schedule), won)

    def update(self) -> Update:
        """Returns the update to share with other searches."""
        return Update(self.search.elapsed_s, self.events_cost, self.problem.budget_bytes, self.bound, self.events)

    def report(self) -> None:
        if self.cost is not None and (self.cost, self.bound) != self.reported:
            self.reported = self.cost, self.bound
            self.search.report(self.cost, self.bound, peak_bytes=self.peak_bytes)

    def result(self) -> Result:
        """Returns the result in the form of a solver in fixed order."""
        stats = {"won": self.won} if self.won else {}
        stats |= {f"failed_{name}": reason for name, reason in self.failed.items()}
        infeasible_in = self.infeasible_in if self.schedule is None else None
        return Result(self.schedule, self.bound, "fixed", infeasible_in, stats)


def update_of(search: Search, schedule: Schedule) -> Update:
    """Returns an update with a schedule's recomputations; without, if they exceed the budget in stages."""
    problem = search.problem
    events = rows_of(staged_events(schedule))
    simulation = simulate(problem.graph, schedule_of_events(len(problem.graph.nodes), events))
    if simulation.peak_bytes > problem.budget_bytes:
        return Update(search.elapsed_s, None, 0, problem.graph.baseline_cost)
    return Update(search.elapsed_s, simulation.cost, simulation.peak_bytes, problem.graph.baseline_cost, events)
