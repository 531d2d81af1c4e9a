"""The least cost of schedules that recompute and offload, found by trying every one: the oracle for tiny graphs."""

from collections.abc import Iterator
from itertools import combinations, product

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule, to_stages
from checkmate_tf.simulator import make_retain_all_schedule, simulate


def find_least_cost(
    graph: Graph, budget_bytes: int, *, most_repeats: int = 1, most_fetches: int = 2, stages: bool = False
) -> int | None:
    """The least cost of all schedules in fixed order with at most so many recomputations and fetches, None without one.

    With `stages`, only of those in Checkmate's stages. Orders come by their compute time, which is the least that a
    schedule of an order costs.
    """
    stock = make_retain_all_schedule(graph).order
    orders = {stock}
    for _ in range(most_repeats):
        orders |= {
            (*order[:place], node, *order[place:])
            for order in orders
            for node in stock
            if graph.nodes[node].recomputable
            for place in range(order.index(node) + 2, len(order) + 1)
        }
    if stages:
        orders = {order for order in orders if _is_in_stages(graph, order)}
    least: int | None = None
    for order in sorted(orders, key=lambda each: (_sum_costs(graph, each), each)):
        if least is not None and _sum_costs(graph, order) >= least:
            break
        for schedule in _list_schedules(graph, order, budget_bytes, most_fetches):
            simulation = simulate(graph, schedule)
            if simulation.peak_bytes <= budget_bytes and (least is None or simulation.cost < least):
                least = simulation.cost
    return least


def _sum_costs(graph: Graph, order: tuple[int, ...]) -> int:
    return sum(graph.nodes[node].cost for node in order)


def _list_schedules(graph: Graph, order: tuple[int, ...], budget_bytes: int, most_fetches: int) -> Iterator[Schedule]:
    """Yields the schedules of an order; no value is held for its copy where even without that memory is short."""
    offloadable = [number for number, value in enumerate(graph.values) if value.fetch_cost is not None]
    pairs = [(position, value) for position in range(len(order)) for value in offloadable]
    for number in range(most_fetches + 1):
        for fetches in combinations(pairs, number):
            plain = Schedule(order, fetches)
            if not _is_valid(graph, plain) or simulate(graph, plain).peak_bytes > budget_bytes:
                continue
            values = sorted({value for _, value in fetches})
            for held in product([None, *range(len(order))], repeat=len(values)):
                ends = zip(held, values, strict=True)
                offloads = tuple(sorted((end, value) for end, value in ends if end is not None))
                schedule = Schedule(order, fetches, offloads)
                if _is_valid(graph, schedule):
                    yield schedule


def _is_valid(graph: Graph, schedule: Schedule) -> bool:
    try:
        check_schedule(graph, schedule, order="fixed")
    except ScheduleError:
        return False
    return True


def _is_in_stages(graph: Graph, order: tuple[int, ...]) -> bool:
    try:
        to_stages(graph, Schedule(order))
    except ScheduleError:
        return False
    return True
