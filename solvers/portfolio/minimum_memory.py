"""Finds the least budget that works, and the cost over a range of budgets.

Both reuse work from one budget to the next. A schedule for a budget starts the search for the next lower one, and
serves every higher one. A bound on the cost for a budget holds for every lower one. Therefore, a higher budget never
leads to a lower peak, nor to a higher overhead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers.base import Scheduled, Solution, Status
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.settings import SETTINGS
from checkmate_tf.solvers.solving import solve


@dataclass(frozen=True)
class MinimumMemory:
    """The schedule of least peak that was found, and a proof: no budget below `lower_bound_bytes` works.

    The proof is within the requested order.
    """

    solution: Solution
    lower_bound_bytes: int

    @property
    def budget_bytes(self) -> int:
        """The least budget known to work."""
        return self.solution.scheduled.simulation.peak_bytes


def minimum_memory(
    graph: Graph,
    *,
    order: Order = "fixed",
    tolerance: float = 0.002,
    time_limit_s: float = 20.0,
    seed: int = 0,
    solver: Auto | None = None,
    known: Solution | None = None,
) -> MinimumMemory:
    """Bisects between budgets that work and budgets that do not, either by a proof or as far as the time allowed.

    Args:
        tolerance: the search ends when the two differ by at most this fraction.
        time_limit_s: limit for all budgets tried together.
        known: a schedule to begin with; the stock order by default.

    A budget that only seems not to work moves the bisection, but not the lower bound.
    """
    until_s = time.perf_counter() + time_limit_s
    solver = Auto() if solver is None else solver
    best = known or solve(graph, simulate_stock(graph).peak_bytes, solver="retain_all")
    proved = low = find_peak_bound(graph).peak_bytes - 1
    while time.perf_counter() < until_s:
        high = best.scheduled.simulation.peak_bytes
        if high - low <= max(1, tolerance * high):
            break
        limit_s = max(SETTINGS.budget_share * (until_s - time.perf_counter()), SETTINGS.least_budget_s)
        started = replace(solver, start=best.schedule, first_schedule=True)
        middle = (low + high) // 2
        found = solve(graph, middle, solver=started, order=order, time_limit_s=limit_s, seed=seed)
        if found.schedule is not None:
            best = found
            continue
        low = middle
        if found.status is Status.INFEASIBLE:
            proved = middle
    return MinimumMemory(best, proved + 1)


def solve_budgets(
    graph: Graph,
    budgets_bytes: Sequence[int],
    *,
    order: Order = "fixed",
    time_limit_s: float = 60.0,
    seed: int = 0,
    solver: Auto | None = None,
    known: Solution | None = None,
    on_solved: Callable[[int, Solution], None] = lambda budget, solution: None,
) -> tuple[Solution, ...]:
    """Solves for each budget, and returns the solutions in the order given: the Pareto curve of memory and cost.

    Args:
        time_limit_s: limit for all budgets together. Each gets an equal share of the remaining time.
        known: a solution whose schedule serves each budget that it stays within, unless a cheaper one is found.
        on_solved: called with each budget and its solution, the highest budget first.
    """
    until_s = time.perf_counter() + time_limit_s
    solver = Auto() if solver is None else solver
    descending = sorted(set(budgets_bytes), reverse=True)
    solutions: dict[int, Solution] = {}
    before: Solution | None = None
    for position, budget in enumerate(descending):
        limit_s = max((until_s - time.perf_counter()) / (len(descending) - position), SETTINGS.least_budget_s)
        start = None if before is None else before.schedule
        bound = 0 if before is None or before.bound_order == "free" else before.cost_lower_bound
        started = replace(solver, start=start, bound=bound)
        before = solve(graph, budget, solver=started, order=order, time_limit_s=limit_s, seed=seed)
        solutions[budget] = before
        on_solved(budget, before)
    if known is not None:
        peak_bytes = known.scheduled.simulation.peak_bytes
        mine = solutions.setdefault(peak_bytes, known)
        if mine.best is None:
            solutions[peak_bytes] = replace(mine, status=Status.FEASIBLE, best=known.best)
    _share(solutions)
    return tuple(solutions[budget] for budget in budgets_bytes)


def _share(solutions: dict[int, Solution]) -> None:
    """Assigns each budget the cheapest schedule that stays within it; of equally cheap ones, the one of least peak.

    A lower budget has fewer to choose from. Therefore, no peak is above that of a higher budget, and no cost below it.
    """
    found = [solution.best for solution in solutions.values() if solution.best is not None]
    for budget, mine in solutions.items():
        best = min((one for one in found if one.simulation.peak_bytes <= budget), key=_cost_and_peak, default=None)
        if best is None or (mine.best is not None and _cost_and_peak(mine.best) == _cost_and_peak(best)):
            continue
        is_cheaper = mine.best is None or best.simulation.cost < mine.best.simulation.cost
        proved = Status.OPTIMAL if best.simulation.cost <= mine.cost_lower_bound else Status.FEASIBLE
        solutions[budget] = replace(mine, status=proved if is_cheaper else mine.status, best=best)


def _cost_and_peak(scheduled: Scheduled) -> tuple[int, int]:
    return scheduled.simulation.cost, scheduled.simulation.peak_bytes
