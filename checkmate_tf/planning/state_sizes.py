"""Chooses how much optimizer state and frozen weights a step offloads, where that is allowed."""

from collections.abc import Iterator

from checkmate_tf.executors.step import Step
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import Stock
from checkmate_tf.planning.targets import Settings, find_first_target
from checkmate_tf.progress import PlanningBar, Stage
from checkmate_tf.simulator import find_peak_bound
from checkmate_tf.solvers import solve

_NUM_PARTS = 4
_SHARE = 0.05  # of the solver's time, for each size


def list_state_sizes(
    step: Step, request: Request, bar: PlanningBar, budget_bytes: int, stock: Stock, settings: Settings
) -> Iterator[int]:
    """Lists the bytes of state to offload, to be planned for one after the other if a budget is infeasible.

    The first has the cheapest prediction. Recomputation and copies of activations cost less if more of the state is
    offloaded, and its own copies cost more. The second, if the first has another size, moves all of the state.
    """
    all_bytes = step.movable_bytes
    if stock.peak_bytes <= budget_bytes or not all_bytes:
        yield 0
        return
    bar.begin_stage(Stage.TIME_NODES)
    step = request.add_costs(step, bar)
    bar.begin_stage(Stage.SOLVE)
    costs: dict[int, int] = {}
    stock_bytes = stock.peak_bytes if request.measure else None
    for part in range(_NUM_PARTS + 1):
        size_bytes = part * all_bytes // _NUM_PARTS
        moved = step.move_state(size_bytes)
        target_bytes = find_first_target(moved, budget_bytes, stock_bytes=stock_bytes, settings=settings)
        if find_peak_bound(moved.graph).peak_bytes > target_bytes:
            continue
        solution = solve(
            moved.graph,
            target_bytes,
            solver=request.options.solver,
            order=request.options.order,
            time_limit_s=_SHARE * request.time_limit_s,
            seed=request.options.seed,
        )
        if solution.best is None:
            continue
        costs[size_bytes] = solution.best.simulation.cost + moved.state_cost
        if solution.best.simulation.cost == moved.graph.baseline_cost:
            break  # To offload more would only cost more.
    first = min(costs, key=lambda size_bytes: costs[size_bytes], default=all_bytes)
    yield first
    if first != all_bytes:
        yield all_bytes
