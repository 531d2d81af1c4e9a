"""Finds the cost of a plan's patterns: in time within its budget, and in bytes if no schedule stays within it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.patterns import Kind, Steering, combine
from checkmate_tf.planning.asked_graph import AskedGraph
from checkmate_tf.schedule import Order
from checkmate_tf.solvers import Solution, solve


@dataclass(frozen=True)
class PatternCost:
    """The nodes that one pattern constrains, and its cost.

    Args:
        kind: "keep" or "recompute".
        pattern: the pattern as it was given.
        num_nodes: number of nodes that are kept, or recomputed.
        num_fixed: number of further nodes that the pattern matches and that cannot be recomputed.
        overhead_without: the least predicted overhead that was found for the same peak without this pattern.

    Example:

    >>> cost = PatternCost("keep", "*attention*", num_nodes=24, num_fixed=0, overhead_without=0.02)
    >>> f"{cost.kind} {cost.pattern}: {cost.overhead_without:.0%} without it"
    'keep *attention*: 2% without it'
    """

    kind: Kind
    pattern: str
    num_nodes: int
    num_fixed: int
    overhead_without: float


def price_patterns(
    graph: Graph, steering: Sequence[Steering], chosen: Solution, *, order: Order, time_limit_s: float, seed: int
) -> tuple[PatternCost, ...]:
    """Returns the cost of each pattern, by a short search without it for a schedule of the same peak.

    Args:
        chosen: the solution with all patterns.
        time_limit_s: seconds for all of them together.
    """
    return tuple(
        PatternCost(
            one.kind,
            one.pattern,
            len(one.nodes),
            one.num_fixed,
            _find_overhead(graph, others, chosen, order, time_limit_s / len(steering), seed),
        )
        for one, others in _leave_out_each(steering)
    )


def find_least_peaks(
    graph: Graph, steering: Sequence[Steering], *, order: Order, time_limit_s: float, seed: int
) -> list[tuple[Steering, int]]:
    """Returns the least known peak without each pattern, in bytes; `time_limit_s` is for all of them together."""
    from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory

    found = []
    for one, others in _leave_out_each(steering):
        asked = AskedGraph.of(graph, combine(others))
        least = minimum_memory(asked.graph, order=order, time_limit_s=time_limit_s / len(steering), seed=seed)
        found.append((one, asked.take_back(least.solution).scheduled.simulation.peak_bytes))
    return found


def _leave_out_each(steering: Sequence[Steering]) -> Iterator[tuple[Steering, list[Steering]]]:
    for one in steering:
        yield one, [other for other in steering if other is not one]


def _find_overhead(
    graph: Graph, others: Sequence[Steering], chosen: Solution, order: Order, time_limit_s: float, seed: int
) -> float:
    from checkmate_tf.solvers.portfolio.auto import Auto

    best = chosen.scheduled.simulation
    asked = AskedGraph.of(graph, combine(others), chosen.schedule)
    start = asked.hand_over(chosen)
    found = solve(
        asked.graph,
        best.peak_bytes,
        solver=Auto(start=None if start is None else start.schedule, workers=0),
        order=order,
        time_limit_s=time_limit_s,
        seed=seed,
    )
    if found.schedule is None:
        return best.overhead
    return min(best.overhead, asked.take_back(found).scheduled.simulation.overhead)
