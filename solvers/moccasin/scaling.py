"""Scales costs and sizes of a problem to the small integers that CP-SAT needs, without rounding if possible."""

from dataclasses import dataclass
from math import gcd

from checkmate_tf.solvers.problem import Problem

# Sums of memory stay below 2^40, so that time x memory (the energy of a cumulative constraint) fits in 64 bits.
MAX_BUDGET = 2**40


@dataclass(frozen=True)
class Scaled:
    """Sizes in units of `size_unit_bytes`, rounded up; the budget, without resident bytes, rounded down.

    `lossless` means that nothing was rounded, so a proof about the scaled problem holds for the problem. Otherwise,
    rounding can only exclude schedules, and no schedule above the budget is ever admitted. Costs of nodes and of copies
    out and back are in units of `cost_unit`, their greatest common divisor. Copies of values that cannot be offloaded
    cost 0.
    """

    sizes: tuple[int, ...]
    workspaces: tuple[int, ...]
    budget: int
    costs: tuple[int, ...]
    offload_costs: tuple[int, ...]
    fetch_costs: tuple[int, ...]
    size_unit_bytes: int
    cost_unit: int
    lossless: bool


def scaled(problem: Problem, *, max_budget: int = MAX_BUDGET) -> Scaled:
    """Divides sizes by their greatest common divisor, and by more only if the budget would exceed `max_budget`."""
    graph = problem.graph
    sizes = [value.size_bytes for value in graph.values]
    workspaces = [node.workspace_bytes for node in graph.nodes]
    room_bytes = max(problem.budget_bytes - graph.resident_bytes, 0)
    common = gcd(*sizes, *workspaces) or 1
    unit = common
    while room_bytes // unit > max_budget:
        unit *= 2
    out = [int(value.offload_cost or 0) for value in graph.values]
    back = [int(value.fetch_cost or 0) for value in graph.values]
    cost_unit = gcd(*(node.cost for node in graph.nodes), *out, *back) or 1
    return Scaled(
        sizes=tuple(-(-size // unit) for size in sizes),
        workspaces=tuple(-(-size // unit) for size in workspaces),
        budget=room_bytes // unit,
        costs=tuple(node.cost // cost_unit for node in graph.nodes),
        offload_costs=tuple(cost // cost_unit for cost in out),
        fetch_costs=tuple(cost // cost_unit for cost in back),
        size_unit_bytes=unit,
        cost_unit=cost_unit,
        lossless=all(size % unit == 0 for size in (*sizes, *workspaces)),
    )
