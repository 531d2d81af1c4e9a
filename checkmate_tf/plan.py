"""What a rewritten training step will take: the plan, its table, and the search for one that measures within budget."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from checkmate_tf import extraction
from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.emission import EmittedFunction, Ordering
from checkmate_tf.errors import BudgetError, InfeasibleBudgetError
from checkmate_tf.extraction import TrainingGraph
from checkmate_tf.graph import Graph
from checkmate_tf.measuring import reserve_pool
from checkmate_tf.profiling.costs import CostModel, cost_training_graph
from checkmate_tf.progress import solver_bar
from checkmate_tf.schedule import Order, Schedule
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers import Solution, Solver, solve
from checkmate_tf.solvers.minimum_memory import minimum_memory

# What the allocator's chunks take at the least above what is asked for; what they take beyond is measured.
CHUNK_MARGIN = 0.02
# What other runs of a step take more at times: its steps come in another order, and so do the chunks.
ORDER_SPREAD = 0.04
_MAX_ROUNDS = 6
_ROUND_SHARE = 0.4  # of the solver's time that is left, for each round
# Of the budget: where a plan after the first leaves more, a larger one is tried.
_UNUSED = 0.04
# Targets closer than this share of the budget are not told apart.
_RESOLUTION = 0.002


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Always held during a training step."""

    parameters: int = 0
    optimizer: int = 0
    other_state: int = 0
    batch: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.other_state + self.batch


@dataclass(frozen=True)
class Options:
    """How to plan; the same for every batch shape of a model.

    Args:
        budget: bytes, "6GiB", "60%" of the stock peak, or "auto".
        time_limit_s: for all solver runs of one plan together.
        measure: run the step in place, on copies of the state, and tighten the plan until it measures within budget.
        progress: bars on standard error, where that is a terminal, while nodes are measured and while a solver runs.
    """

    budget: int | float | str
    solver: str | Solver = "auto"
    order: Order = "fixed"
    costs: str | CostModel = "measured"
    time_limit_s: float = 60.0
    seed: int = 0
    measure: bool = True
    progress: bool = True


@dataclass(frozen=True)
class Plan:
    """A training step within its budget. All peaks include what is resident.

    Args:
        stock_peak_bytes: predicted, without rematerialization, in the order of the trace.
        predicted_peak_bytes: of the rewritten step, requested bytes.
        measured_peak_bytes: of one rewritten step, by the device's allocator; None until one ran.
        update_peak_bytes: of the optimizer's update, while all gradients live; 0 where there is none.
    """

    name: str
    budget_bytes: int
    stock_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    update_peak_bytes: int
    resident: ResidentBytes
    graph: Graph
    solution: Solution

    @property
    def schedule(self) -> Schedule:
        assert self.solution.schedule is not None
        return self.solution.schedule

    @property
    def peak_bytes(self) -> int:
        """Measured, predicted where no step was measured."""
        return self.predicted_peak_bytes if self.measured_peak_bytes is None else self.measured_peak_bytes

    @property
    def overhead(self) -> float:
        """Predicted cost over the stock step's cost, minus 1."""
        assert self.solution.simulation is not None
        return self.solution.simulation.overhead

    @property
    def recomputed(self) -> dict[str, int]:
        """Times each node is computed again, the costliest first; by node name."""
        again = {node: count - 1 for node, count in Counter(self.schedule.order).items() if count > 1}
        ranked = sorted(again, key=lambda node: (-again[node] * self.graph.nodes[node].cost, node))
        return {self.graph.nodes[node].name: again[node] for node in ranked}

    def __str__(self) -> str:
        measured = self.measured_peak_bytes
        update = format_bytes(self.update_peak_bytes) if self.update_peak_bytes else "part of the step"
        rows = [
            ("budget", format_bytes(self.budget_bytes), ""),
            ("peak, stock (predicted)", format_bytes(self.stock_peak_bytes), ""),
            ("peak, rematerialized (predicted)", format_bytes(self.predicted_peak_bytes), self._share()),
            ("peak, rematerialized (measured)", "no step measured" if measured is None else format_bytes(measured), ""),
            ("  resident: parameters", format_bytes(self.resident.parameters), ""),
            ("  resident: optimizer state", format_bytes(self.resident.optimizer), ""),
            ("  resident: other state", format_bytes(self.resident.other_state), ""),
            ("  resident: batch", format_bytes(self.resident.batch), ""),
            ("  at the optimizer's update", update, ""),
            ("overhead (predicted)", f"{self.overhead:.1%}", f"nodes computed again: {len(self.recomputed)}"),
            ("solver", self.solution.solver, f"{self.solution.status}, {self.solution.solve_time_s:.1f} s"),
            ("gap to the lower bound", _percent(self.solution.gap), f"bound for {self.solution.bound_order} order"),
        ]
        rows += [("recomputed most" if i == 0 else "", name, "") for i, name in enumerate(list(self.recomputed)[:5])]
        return f"{self.name}\n{tabulate(rows, tablefmt='simple', disable_numparse=True)}"

    def _share(self) -> str:
        return f"{self.predicted_peak_bytes / self.stock_peak_bytes:.0%} of stock" if self.stock_peak_bytes else ""


@dataclass(frozen=True)
class Planned:
    """A plan and the function that carries it out, emitted in an ordering."""

    plan: Plan
    emitted: EmittedFunction
    ordering: Ordering = "overlap"


def make_plan(
    graph: Graph,
    options: Options,
    *,
    emit: Callable[[Schedule, Ordering], EmittedFunction],
    resident: ResidentBytes,
    update_peak_bytes: int = 0,
    measure: Callable[[EmittedFunction], int] | None = None,
    free_bytes: Callable[[], int] | None = None,
    margin: float = 0.0,
    spread: float = 0.0,
) -> Planned:
    """The cheapest schedule whose step keeps within the budget, by the model and, with `measure`, by measurement.

    The solver plans on requested bytes. Where the measured peak is above the budget (the allocator's chunks, XLA's own
    order), the next round plans for that much less than it predicted; where nothing is found for so little, or that
    leaves much of the budget unused, for something in between. Where no round succeeds, the schedules found are tried
    with each step waiting for the one before, at last the one of least memory.

    Args:
        graph: with all that is resident, and with costs filled in.
        emit: gives the function that carries a schedule out, its steps in an order as free as given.
        margin: where nodes must be recomputed, the first round plans for this share less of what is not resident.
        measure: gives the peak of a whole step with this function, resident bytes included.
        spread: share of what is not resident that other runs may take more than the one measured, in a free order of
            steps; where nothing is computed again, as much as stock's runs, and allowed.
        free_bytes: bytes that the budget "auto" stands for.

    Raises InfeasibleBudgetError, with the least budget known to work and the node that sets it, and
    BudgetError for a budget that cannot be read.
    """
    stock_bytes = max(simulate(graph, retain_all_schedule(graph)).peak_bytes, update_peak_bytes)
    budget_bytes = _budget_bytes(options.budget, stock_bytes, free_bytes)
    if update_peak_bytes > budget_bytes:
        raise InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} is below {format_bytes(update_peak_bytes)}, what the optimizer's "
            f"update of {graph.name!r} needs with all gradients live; no schedule changes that. "
            "Use an optimizer with less state, or a larger budget",
            least_budget_bytes=update_peak_bytes,
        )

    def tried(solution: Solution, ordering: Ordering = "overlap") -> Planned:
        assert solution.schedule is not None
        emitted = emit(solution.schedule, ordering)
        peak_bytes = measure(emitted) if measure else None
        plan = _plan(graph, solution, budget_bytes, stock_bytes, peak_bytes, resident, update_peak_bytes)
        return Planned(plan, emitted, ordering)

    def unused(planned: Planned) -> int:
        """Bytes of the budget left; negative where it may not be kept."""
        recomputes = len(planned.plan.schedule) > len(graph.nodes)
        kept_bytes = spread * (budget_bytes - graph.resident_bytes) if measure and recomputes else 0
        return int(budget_bytes - kept_bytes - _peak_bytes(planned))

    target_bytes, low_bytes = budget_bytes, 0
    found: list[Solution] = []
    within: Planned | None = None
    above: Planned | None = None
    if measure and budget_bytes < stock_bytes:
        target_bytes -= int(margin * max(budget_bytes - graph.resident_bytes, 0))
    for round_ in range(_MAX_ROUNDS):
        limit_s = options.time_limit_s * (_ROUND_SHARE * (1 - _ROUND_SHARE) ** round_ if measure else 1)
        solution = _solve(graph, target_bytes, options, limit_s)
        if solution.schedule is None:
            if within or (above is None and target_bytes >= budget_bytes):
                break
            # Halfway to what measured too much; without that, the budget itself.
            high_bytes = _predicted(above) if above else 2 * budget_bytes - target_bytes
            low_bytes = target_bytes
        else:
            found.append(solution)
            planned = tried(solution)
            unused_bytes = unused(planned)
            if unused_bytes >= 0:
                within = min(within or planned, planned, key=lambda one: one.plan.overhead)
                no_more = unused_bytes <= _UNUSED * budget_bytes or _predicted(planned) <= low_bytes
                if above is None or no_more:
                    return within
                low_bytes = _predicted(planned)
            else:
                above = min(above or planned, planned, key=_peak_bytes)
                high_bytes = _predicted(planned)
            target_bytes = _predicted(planned) + unused_bytes
        if high_bytes - low_bytes <= _RESOLUTION * budget_bytes:
            break
        if not low_bytes < target_bytes < high_bytes:
            target_bytes = (high_bytes + low_bytes) // 2
    if within:
        return within
    known = min(found, key=_predicted_bytes, default=None)
    least = minimum_memory(
        graph, order=options.order, time_limit_s=options.time_limit_s, seed=options.seed, known=known
    )
    closest = above
    again = sorted(found, key=_cost) if spread else []
    for solution in [*again, least.solution]:
        planned = tried(solution, "chain")
        if _peak_bytes(planned) <= budget_bytes:
            return planned
        closest = min(closest or planned, planned, key=_peak_bytes)
    assert closest is not None
    raise _infeasible(closest)


def training_graph_of(
    concrete_function: Any, *, name: str, resident_bytes: int, costs: str | CostModel, progress: bool = False
) -> TrainingGraph:
    """The function's training graph with the costs of a model or its name; `progress` shows a bar where it measures.

    Reserves the pool first for what the function takes as it stands.

    Raises ProfileError for an unknown name.
    """
    training_graph = extraction.extract(concrete_function, name=name, resident_bytes=resident_bytes)
    stock_bytes = simulate(training_graph.graph, retain_all_schedule(training_graph.graph)).peak_bytes
    reserve_pool(stock_bytes - resident_bytes)
    return cost_training_graph(training_graph, costs, progress=progress)


def _plan(
    graph: Graph,
    solution: Solution,
    budget_bytes: int,
    stock_bytes: int,
    measured_bytes: int | None,
    resident: ResidentBytes,
    update_peak_bytes: int,
) -> Plan:
    assert solution.simulation is not None
    return Plan(
        name=graph.name,
        budget_bytes=budget_bytes,
        stock_peak_bytes=stock_bytes,
        predicted_peak_bytes=max(solution.simulation.peak_bytes, update_peak_bytes),
        measured_peak_bytes=measured_bytes,
        update_peak_bytes=update_peak_bytes,
        resident=resident,
        graph=graph,
        solution=solution,
    )


def _budget_bytes(budget: int | float | str, stock_bytes: int, free_bytes: Callable[[], int] | None) -> int:
    if budget != "auto":
        return parse_budget(budget, peak_bytes=stock_bytes)
    if free_bytes is None:
        raise BudgetError('the budget "auto" needs a device that tells its free memory; give bytes or a percentage')
    return free_bytes()


def _solve(graph: Graph, budget_bytes: int, options: Options, time_limit_s: float) -> Solution:
    with solver_bar(graph, name="planning", time_limit_s=time_limit_s, shown=options.progress) as on_progress:
        return solve(
            graph,
            max(budget_bytes, 1),
            solver=options.solver,
            order=options.order,
            time_limit_s=time_limit_s,
            seed=options.seed,
            on_progress=on_progress,
        )


def _infeasible(best: Planned) -> InfeasibleBudgetError:
    """For a budget that no plan keeps; `best` is the one of least memory."""
    graph, budget_bytes, known = best.plan.graph, best.plan.budget_bytes, _peak_bytes(best)
    least = least_step(graph)
    bound = "no schedule needs less than" if least.peak_bytes > budget_bytes else "each schedule needs at least"
    return InfeasibleBudgetError(
        f"budget {format_bytes(budget_bytes)} cannot be met for {graph.name!r}: {bound} "
        f"{format_bytes(least.peak_bytes)} (step {graph.nodes[least.node].name}). The least budget known to work is "
        f"{format_bytes(known)} ({known} bytes; step {_peak_node(best)}); "
        "use a larger budget or a smaller batch",
        least_budget_bytes=known,
        proved=least.peak_bytes > budget_bytes,
    )


def _peak_node(planned: Planned) -> str:
    plan = planned.plan
    assert plan.solution.simulation is not None
    return plan.graph.nodes[plan.schedule.order[plan.solution.simulation.peak_step]].name


def _peak_bytes(planned: Planned) -> int:
    return planned.plan.peak_bytes


def _predicted(planned: Planned) -> int:
    return _predicted_bytes(planned.plan.solution)


def _predicted_bytes(solution: Solution) -> int:
    assert solution.simulation is not None
    return solution.simulation.peak_bytes


def _cost(solution: Solution) -> int:
    assert solution.simulation is not None
    return solution.simulation.cost


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
