"""Describes the memory and time of a rewritten training step: a plan can be printed, drawn and saved as a page."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from checkmate_tf.errors import make_printable
from checkmate_tf.executors.step import Chunks, ResidentBytes
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.difference import UpdateDifference
from checkmate_tf.origins import Origins
from checkmate_tf.planning.pattern_costs import PatternCost
from checkmate_tf.planning.plan_file import load_planned, save_planned
from checkmate_tf.planning.planned_step import PlannedStep
from checkmate_tf.reports.budget_curve import Pareto
from checkmate_tf.reports.page import save_page
from checkmate_tf.reports.pictures import make_notebook_view, plot_memory, plot_schedule
from checkmate_tf.reports.records import (
    OffloadedValue,
    PeakValue,
    Recomputation,
    list_offloaded,
    list_peak_values,
    list_recomputations,
)
from checkmate_tf.reports.summary import summarize
from checkmate_tf.reports.trace import save_trace
from checkmate_tf.reports.view import PlanView
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers import Solution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plan:
    """A plan of a training step within a budget. It can be printed, drawn and saved. All peaks include resident bytes.

    Example:

    >>> plan.budget_bytes, plan.predicted_peak_bytes, plan.stock_peak_bytes
    (4000, 4000, 5000)
    >>> f"{plan.overhead:.1%}"
    '14.3%'
    """

    planned: PlannedStep = field(repr=False)

    @property
    def name(self) -> str:
        """Returns the name of the model, or of the function."""
        return self.planned.graph.name

    @property
    def budget_bytes(self) -> int:
        """Returns the budget for which the step was planned."""
        return self.planned.budget_bytes

    @property
    def stock_peak_bytes(self) -> int:
        """Returns the peak of the step without rematerialization, by the device's allocator if it was measured."""
        return self.planned.stock.peak_bytes

    @property
    def predicted_stock_peak_bytes(self) -> int:
        """Returns the predicted peak of the stock step, in requested bytes, in the order of the trace.

        Under XLA, if nothing was measured, it is the peak of the compiled step.
        """
        return self.planned.stock.predicted_bytes

    @property
    def predicted_peak_bytes(self) -> int:
        """Returns the predicted peak of the rewritten step, in requested bytes."""
        return self.planned.predicted_peak_bytes

    @property
    def measured_peak_bytes(self) -> int | None:
        """Returns the peak of several rewritten steps, by the device's allocator; None if none was run.

        If XLA compiles the step, it is the peak of XLA's buffer assignment; see `is_compiled`.
        """
        return self.planned.measured_peak_bytes

    @property
    def peak_bytes(self) -> int:
        """Returns the measured peak; the predicted one if no step was measured."""
        return self.planned.peak_bytes

    @property
    def is_compiled(self) -> bool:
        """Returns whether `measured_peak_bytes` comes from the module that XLA compiled, instead of a run."""
        return self.planned.run is not None and self.planned.run.is_compiled

    @property
    def overhead(self) -> float:
        """Returns the predicted cost divided by the stock step's cost, minus 1.

        Blocks in `chunks` count as much in the stock step, although their gradients compute each chunk again.
        """
        return self.planned.overhead

    @property
    def measured_overhead(self) -> float | None:
        """Returns the time of the step divided by that of the stock step, minus 1.

        At the end of planning, the two run in turn three to ten times, and the median of their ratios counts. With
        offloaded optimizer state, they are timed apart. It is None unless steps were measured, and under XLA.
        """
        return self.planned.measured_overhead

    @property
    def resident(self) -> ResidentBytes:
        """Returns the bytes that are held throughout the step. All peaks include them."""
        return self.planned.resident

    @property
    def graph(self) -> Graph:
        """Returns the training graph, with its costs."""
        return self.planned.graph

    @property
    def origins(self) -> Origins:
        """Returns the Keras layers and source lines from which the nodes of the graph come."""
        return self.planned.origins

    @property
    def solution(self) -> Solution:
        """Returns the solver's solution: the schedule, and the proved bound."""
        return self.planned.solution

    @property
    def patterns(self) -> tuple[PatternCost, ...]:
        """Returns the patterns of nodes to keep or to recompute, and the cost of each."""
        return self.planned.patterns

    @property
    def schedule(self) -> Schedule:
        """Returns the schedule that the step follows."""
        return self.planned.schedule

    @property
    def chunks(self) -> tuple[Chunks, ...]:
        """Returns the parts of the step that are computed in chunks of rows, in an order of rewriting; none by default.

        `graph` has one node for each loop over chunks.
        """
        return self.planned.chunks

    @property
    def device(self) -> str:
        """Returns the model and the driver of the device on which the step was planned."""
        return self.planned.conditions.device

    @property
    def difference(self) -> float | None:
        """Returns the difference between one rewritten and one stock step from the same state and batch.

        It is the largest difference of a variable or a result, relative to its largest change in the stock step: 0.0 if
        all numbers were equal up to their last bit, and None if the two steps were not compared.
        """
        found = self.planned.difference
        return None if found is None else found.share

    @property
    def differs_most(self) -> str:
        """Returns the name of the variable or result with the largest difference."""
        found = self.planned.difference
        return "" if found is None else found.name

    @property
    def differing_updates(self) -> tuple[UpdateDifference, ...]:
        """Lists the weights whose first update differs from that of the stock step, the largest difference first.

        An optimizer such as Adam divides a gradient by its size, so rounding decides the update of a weight whose
        gradient is zero but for rounding. `difference` leaves such updates out. It compares the averages of gradients
        that the optimizer keeps.
        """
        found = self.planned.difference
        return () if found is None else found.updates

    def save(self, path: str | Path) -> None:
        """Writes a plan file, which `load_plan` reads and `rematerialize(model, plan=path)` installs.

        The file contains the training graph, the schedule, the measurements, and the conditions of the plan: batch,
        executor, device and versions. It contains no weights and no code.

        >>> plan.save("plan.json")
        >>> load_plan("plan.json").schedule == plan.schedule
        True
        """
        save_planned(self.planned, path)

    @cached_property
    def recomputed(self) -> tuple[Recomputation, ...]:
        """Lists the recomputed nodes, the most expensive first: how often, at what cost, and for which nodes.

        >>> [(one.name, one.times, one.freed_bytes, one.readers) for one in plan.recomputed]
        [('f0', 1, 1000, ('b1', 'b0'))]
        """
        return list_recomputations(self.view)

    @cached_property
    def offloaded(self) -> tuple[OffloadedValue, ...]:
        """Lists the values that each step copies out of memory and back, the largest first.

        >>> plan.offloaded
        ()
        """
        return list_offloaded(self.view)

    @property
    def hidden_share(self) -> float:
        """Returns the predicted share of this copying during which the step computes; 1.0 if nothing is copied."""
        return self.view.rematerialized.timing.hidden_share

    def peak_values(self) -> tuple[PeakValue, ...]:
        """Lists the values at the predicted peaks of the stock and the rematerialized step, the largest first.

        The sizes of each step add up to its predicted peak. `pandas.DataFrame(plan.peak_values())` makes a table.

        >>> rows = plan.peak_values()
        >>> sum(row.size_bytes for row in rows if row.step == "rematerialized") == plan.predicted_peak_bytes
        True
        """
        return list_peak_values(self.view)

    def summary(self) -> str:
        """Returns a text with the peak, the extra time, and the parts of memory at the peak.

        >>> print(plan.summary())  # doctest: +ELLIPSIS
        The training step of 'chain-3' takes 3.91 KiB at its peak (predicted).
        ...
        """
        return make_printable(summarize(self.view))

    def plot_memory(self) -> "Figure":
        """Draws memory over time, stock above rematerialized, with its parts, the budget and the peaks.

        >>> plan.plot_memory().savefig("memory.png")
        """
        return plot_memory(self.view)

    def plot_schedule(self) -> "Figure":
        """Draws Checkmate's R matrix: the nodes that each stage computes, with recomputations marked.

        >>> plan.plot_schedule().savefig("schedule.svg")
        """
        return plot_schedule(self.view)

    def to_html(self, path: str | Path, *, pareto: Pareto | None = None) -> None:
        """Writes one page for a browser, which loads nothing else: memory over the step, live values, schedule, tables.

        Args:
            pareto: a curve of `checkmate_tf.pareto` for the same model and batch. The page then also shows the costs of
                other budgets, with the budget of this plan marked.

        >>> plan.to_html("plan.html")
        """
        save_page(self.view, path, pareto=pareto)

    def to_trace(self, path: str | Path) -> None:
        """Writes a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: nodes over time, and memory as counters.

        >>> plan.to_trace("plan.json")
        """
        save_trace(self.view, path)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Shows summary and memory in a notebook."""
        return make_notebook_view(self.view)

    @cached_property
    def view(self) -> PlanView:
        """Returns the view of the plan that reports use."""
        resident = self.resident
        return PlanView(
            name=self.name,
            graph=self.graph,
            schedule=self.schedule,
            origins=self.origins,
            budget_bytes=self.budget_bytes,
            resident={
                "parameters": resident.parameters,
                "optimizer state": resident.optimizer,
                "other state": resident.other_state,
                "batch": resident.batch,
                "batches prefetched": resident.prefetched,
            },
            solution=self.solution,
            measured=None if self.measured_peak_bytes is None else (self.stock_peak_bytes, self.measured_peak_bytes),
            how="compiled" if self.is_compiled else "measured",
            device=self.device,
            stock_peak_bytes=self.predicted_stock_peak_bytes,
            patterns=self.planned.patterns,
            margin_bytes=self.planned.margin_bytes,
            difference=None if self.difference is None else (self.difference, self.differs_most),
            updates=self.differing_updates,
            chunks=self.chunks,
            offloaded_state_bytes=resident.offloaded,
            state_cost=self.planned.state_cost,
            measured_overhead=self.measured_overhead,
        )


def load_plan(path: str | Path) -> Plan:
    """Reads the plan file that `Plan.save` wrote. The plan can be printed and drawn without the model.

    Args:
        path: the file.

    Returns:
        The plan. Nothing is traced, solved or installed.

    Raises:
        PlanError: if the file is missing, not JSON or not a plan.

    Example:

    >>> plan.save("plan.json")
    >>> print(load_plan("plan.json"))  # doctest: +ELLIPSIS
    The training step of 'chain-3' takes 3.91 KiB at its peak (predicted).
    ...
    """
    return Plan(load_planned(path))
