"""Combines a solver that recomputes with offloading.

The solver solves the graph for the budget itself and for larger budgets, below the peak without recomputation. With a
larger budget it recomputes less, and offloading then brings the schedule within the budget. In each schedule,
recomputations are replaced by fetches, and fetches by recomputations, where that is cheaper. The cheapest result is
returned. It costs no more than offloading alone, and no more than the recomputation that the solver finds in its share
of the time. The solver's bounds are about recomputation and do not apply here. In fixed order the bound is that of
`bound.py`, in free order the cost of computing every node once.
"""

from collections.abc import Callable
from dataclasses import replace

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.offloading.conversions import convert_copies
from checkmate_tf.solvers.offloading.transfers import offload_to_fit
from checkmate_tf.solvers.search import Search

_BUDGETS = (0.0, 0.1, 0.2, 0.4)  # on the way from the budget itself to the stock step's peak
_OWN_SHARE = 0.5  # share of the time for the solver with the budget itself
_FIRST_SHARE = 0.05  # share of the time for offloading alone and its conversion
_BOUND_SHARE = 0.1  # share of the time for the bound


def has_transfers(graph: Graph) -> bool:
    """Returns whether any value can be offloaded."""
    return any(value.fetch_cost is not None for value in graph.values)


def drop_transfers(graph: Graph) -> Graph:
    """Returns the graph without costs of transfers, so that its values are either retained or computed again."""
    if not has_transfers(graph):
        return graph
    return replace(graph, values=tuple(replace(value, offload_cost=None, fetch_cost=None) for value in graph.values))


def choose_transfers(
    solve_plain: Callable[[Search], Result], search: Search, *, first_schedule: bool = False
) -> Result:
    """Finds a schedule that retains, recomputes and offloads, with a solver of graphs without transfers.

    Args:
        first_schedule: whether to end with the first schedule within the budget.
    """
    problem = search.problem
    graph, plain = problem.graph, drop_transfers(problem.graph)
    stock_bytes = simulate_stock(graph).peak_bytes
    best: Schedule | None = None
    best_cost = 0

    def learn(schedule: Schedule | None, until_s: float) -> None:
        nonlocal best, best_cost
        if schedule is None:
            return
        if simulate(graph, schedule).peak_bytes > problem.budget_bytes:
            schedule = offload_to_fit(graph, schedule, problem.budget_bytes)
        if schedule is None:
            return
        if not first_schedule:
            schedule = convert_copies(graph, schedule, problem.budget_bytes, deadline_s=until_s)
        cost = simulate(graph, schedule).cost
        if best is None or cost < best_cost:
            best, best_cost = schedule, cost
            search.report(cost, bound)

    def end_of(share: float) -> float:
        return search.deadline_s - (1 - share) * search.remaining_s

    bound = graph.baseline_cost
    if not first_schedule:
        learn(make_retain_all_schedule(graph), end_of(_FIRST_SHARE))
        if problem.order == "fixed" and best_cost != bound:
            from checkmate_tf.solvers.offloading.bound import bound_cost  # needs SciPy and HiGHS

            bound = bound_cost(graph, problem.budget_bytes, deadline_s=end_of(_BOUND_SHARE))
    started_s = search.elapsed_s
    for number, larger in enumerate(_BUDGETS):
        if search.remaining_s <= 0 or (best is not None and (first_schedule or best_cost == bound)):
            break
        budget_bytes = problem.budget_bytes + int(larger * (stock_bytes - problem.budget_bytes))
        share = 1 / (len(_BUDGETS) - number)
        limit_s = search.remaining_s * (share / 2 if number else _OWN_SHARE)
        within = replace(problem, graph=plain, budget_bytes=budget_bytes)
        learn(solve_plain(Search(within, limit_s, search.seed)).schedule, end_of(share))
    if first_schedule and best is None:  # offloading alone comes last, because it costs most
        learn(make_retain_all_schedule(graph), search.deadline_s)
    stats = {"fetches": 0 if best is None else len(best.fetches), "searched_s": search.elapsed_s - started_s}
    return Result(best, bound, problem.order, stats=stats)
