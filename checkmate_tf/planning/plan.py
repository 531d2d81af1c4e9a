"""Describes what a rewritten training step will take: the plan and its table."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.emission.function import EmittedFunction
from checkmate_tf.emission.ordering import Ordering
from checkmate_tf.errors import SolverError, make_printable
from checkmate_tf.graph import Graph
from checkmate_tf.profiling.costs import CostModel, make_cost_model
from checkmate_tf.schedule import Order, Schedule
from checkmate_tf.solvers import Solution, Solver, Status
from checkmate_tf.solvers.registry import get_solver

OnInfeasible = Literal["run", "raise"]
_NAME_WIDTH = 76


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Resident bytes are held throughout a training step.

    `prefetched` are the batches that `fit` makes ready for the next steps, where these lie on the device.
    """

    parameters: int = 0
    optimizer: int = 0
    other_state: int = 0
    batch: int = 0
    prefetched: int = 0

    @property
    def state(self) -> int:
        """Sums what is there before the first batch comes."""
        return self.parameters + self.optimizer + self.other_state

    @property
    def total(self) -> int:
        """Sums all parts."""
        return self.state + self.batch + self.prefetched


@dataclass(frozen=True)
class Options:
    """Options say how to plan; they are the same for every batch shape of a model.

    Args:
        budget: bytes, "6GiB", "60%" of the stock peak, or "auto".
        time_limit_s: for all solver runs of one plan together.
        measure: run the step in place, on copies of the state, and tighten the plan until it measures within budget.
        progress: bars on standard error, where that is a terminal, while nodes are measured and while a solver runs.
        on_infeasible: what batches of another shape do that training meets and no plan keeps within the budget: "run"
            the plan of least memory, after a warning, or "raise".
    """

    budget: int | float | str
    solver: str | Solver = "auto"
    order: Order = "fixed"
    costs: str | CostModel = "measured"
    time_limit_s: float = 60.0
    seed: int = 0
    measure: bool = True
    progress: bool = True
    on_infeasible: OnInfeasible = "run"

    def __post_init__(self) -> None:
        """Raises SolverError or ProfileError for a name of no solver or cost model, and SolverError for other words."""
        if isinstance(self.solver, str):
            get_solver(self.solver)
        if isinstance(self.costs, str):
            make_cost_model(self.costs)
        for name, types in (("order", Order), ("on_infeasible", OnInfeasible)):
            if getattr(self, name) not in get_args(types):
                raise SolverError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(types))}")


@dataclass(frozen=True)
class Plan:
    """A plan is a training step within its budget; all its peaks include what is resident.

    Args:
        stock_peak_bytes: of the step without rematerialization, by the device's allocator where it was measured.
        predicted_stock_peak_bytes: of the same, requested bytes, in the order of the trace.
        predicted_peak_bytes: of the rewritten step, requested bytes.
        measured_peak_bytes: of several rewritten steps, by the device's allocator; None where none was run.
        resident: what all these include.
    """

    name: str
    budget_bytes: int
    stock_peak_bytes: int
    predicted_stock_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    resident: ResidentBytes
    graph: Graph
    solution: Solution

    @property
    def schedule(self) -> Schedule:
        """Gives the schedule that the step follows."""
        return self.solution.scheduled.schedule

    @property
    def peak_bytes(self) -> int:
        """Gives the measured peak, the predicted one where no step was measured."""
        return self.predicted_peak_bytes if self.measured_peak_bytes is None else self.measured_peak_bytes

    @property
    def overhead(self) -> float:
        """Gives the predicted cost over the stock step's cost, minus 1."""
        return self.solution.scheduled.simulation.overhead

    @property
    def recomputed(self) -> dict[str, int]:
        """Counts how often each node is computed again, by its name, the costliest first."""
        again = {node: count - 1 for node, count in Counter(self.schedule.order).items() if count > 1}
        ranked = sorted(again, key=lambda node: (-again[node] * self.graph.nodes[node].cost, node))
        return {self.graph.nodes[node].name: again[node] for node in ranked}

    def __str__(self) -> str:
        resident = self.resident
        rows = [
            ("budget", format_bytes(self.budget_bytes), ""),
            ("peak, stock", format_bytes(self.stock_peak_bytes), self._describe_source()),
            ("peak, rematerialized", format_bytes(self.peak_bytes), self._describe_source(self.predicted_peak_bytes)),
            ("  of that parameters", format_bytes(resident.parameters), ""),
            ("  optimizer state", format_bytes(resident.optimizer), ""),
            ("  other state", format_bytes(resident.other_state), ""),
            ("  batch, batches prefetched", format_bytes(resident.batch), format_bytes(resident.prefetched)),
            ("overhead (predicted)", f"{self.overhead:.1%}", f"nodes computed again: {len(self.recomputed)}"),
            ("solver", self.solution.solver, f"{self.solution.solve_time_s:.1f} s"),
            ("gap to the lower bound", self._describe_gap(), f"bound for {self.solution.bound_order} order"),
        ]
        lines = [self.name, tabulate(rows, tablefmt="simple", disable_numparse=True)]
        if self.recomputed:
            lines.append("recomputed, the costliest first:")
            lines += [f"  {_shorten(name)}" for name in list(self.recomputed)[:5]]
        return make_printable("\n".join(lines))

    def _describe_gap(self) -> str:
        """Tells how far the cost may be above the least possible."""
        gap = self.solution.gap
        if self.solution.status == Status.OPTIMAL:
            return "0, proved optimal"
        if gap is None:
            return "unknown"
        return "below 0.1%" if gap < 0.001 else f"{gap:.1%}"

    def _describe_source(self, predicted_bytes: int | None = None) -> str:
        if self.measured_peak_bytes is None:
            return "predicted: no step measured"
        return "measured" if predicted_bytes is None else f"measured; {format_bytes(predicted_bytes)} predicted"


@dataclass(frozen=True)
class PlannedStep:
    """A planned step is a plan and the function that carries it out: the stock step where nothing is computed again,
    else one emitted in an ordering.
    """

    plan: Plan
    function: EmittedFunction
    ordering: Ordering | None = None


def _shorten(name: str) -> str:
    """Returns a node's name with its middle left out where a line would not hold it."""
    if len(name) <= _NAME_WIDTH:
        return name
    kept = (_NAME_WIDTH - 3) // 2
    return f"{name[:kept]}...{name[-kept:]}"
