"""Describes what a rewritten training step will take: the plan, which can be printed, drawn and saved as a page."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from checkmate_tf.errors import make_printable
from checkmate_tf.executors.step import LossChunks, ResidentBytes
from checkmate_tf.graph import Graph
from checkmate_tf.origins import Origins
from checkmate_tf.planning.planned_step import PlannedStep
from checkmate_tf.reports.budget_curve import Pareto
from checkmate_tf.reports.page import save_page
from checkmate_tf.reports.pictures import make_notebook_view, plot_memory, plot_schedule
from checkmate_tf.reports.records import PeakValue, Recomputation, list_peak_values, list_recomputations
from checkmate_tf.reports.summary import summarize
from checkmate_tf.reports.trace import save_trace
from checkmate_tf.reports.view import PlanView
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers import Solution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plan:
    """A plan is a training step within its budget; all its peaks include what is resident.

    Args:
        stock_peak_bytes: of the step without rematerialization, by the device's allocator where it was measured.
        predicted_stock_peak_bytes: of the same, requested bytes, in the order of the trace; under XLA, where
            nothing was measured, as it is compiled.
        predicted_peak_bytes: of the rewritten step, requested bytes.
        measured_peak_bytes: of several rewritten steps, by the device's allocator; None where none was run. Of a step
            that XLA compiles, the peak of XLA's buffer assignment: `is_compiled`.
        resident: what all these include.
        origins: the Keras layers and source lines that the nodes of the graph come from.
        device: that the step was planned for: its model and driver.
        difference: how far one rewritten step ended from one stock step, from the same state and batch: the largest
            difference of a variable or a result, as a share of the most that the stock step changes it by. 0.0 where
            all numbers were equal; None where the two were not compared.
        differs_most: the variable or result that `difference` is of.
        chunks: the parts in which the loss is computed; None where it is computed as the stock step does. `graph` then
            has one node for the loop over them.
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
    origins: Origins
    device: str = ""
    difference: float | None = None
    differs_most: str = ""
    is_compiled: bool = False
    chunks: LossChunks | None = None

    @staticmethod
    def of(planned: PlannedStep) -> "Plan":
        """Describes a planned step."""
        run = planned.run
        difference = None if run is None else run.difference
        return Plan(
            name=planned.graph.name,
            budget_bytes=planned.budget_bytes,
            stock_peak_bytes=planned.stock.peak_bytes,
            predicted_stock_peak_bytes=planned.stock.predicted_bytes,
            predicted_peak_bytes=planned.predicted_peak_bytes,
            measured_peak_bytes=planned.measured_peak_bytes,
            resident=planned.resident,
            graph=planned.graph,
            solution=planned.solution,
            origins=planned.origins,
            device=planned.device,
            difference=None if difference is None else difference.share,
            differs_most="" if difference is None else difference.name,
            is_compiled=run is not None and run.is_compiled,
            chunks=planned.chunks,
        )

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

    @cached_property
    def recomputed(self) -> tuple[Recomputation, ...]:
        """Lists the nodes that are computed again, the costliest first: how often, at what cost, and for what.

        >>> [(one.name, one.times, one.freed_bytes, one.readers) for one in plan.recomputed]
        [('f0', 1, 1000, ('b1', 'b0'))]
        """
        return list_recomputations(self.view)

    def peak_values(self) -> tuple[PeakValue, ...]:
        """Lists what is in memory at the predicted peaks of the stock and the rematerialized step, the largest first.

        The sizes of each step add up to its predicted peak. `pandas.DataFrame(plan.peak_values())` makes a table.

        >>> rows = plan.peak_values()
        >>> sum(row.size_bytes for row in rows if row.step == "rematerialized") == plan.predicted_peak_bytes
        True
        """
        return list_peak_values(self.view)

    def summary(self) -> str:
        """Says what the step takes, what that costs, and what is in memory at its peak.

        >>> print(plan.summary())  # doctest: +ELLIPSIS
        The training step of 'chain-3' takes 3.91 KiB at its peak (predicted).
        ...
        """
        return make_printable(summarize(self.view))

    def plot_memory(self) -> "Figure":
        """Draws memory over time, stock above rematerialized: what it is made of, the budget, the peaks.

        >>> plan.plot_memory().savefig("memory.png")
        """
        return plot_memory(self.view)

    def plot_schedule(self) -> "Figure":
        """Draws Checkmate's R matrix: which nodes each stage computes, and which of them again.

        >>> plan.plot_schedule().savefig("schedule.svg")
        """
        return plot_schedule(self.view)

    def to_html(self, path: str | Path, *, pareto: Pareto | None = None) -> None:
        """Writes one page for a browser, which fetches nothing: memory over the step, live values, schedule, tables.

        Args:
            pareto: a curve of `checkmate_tf.pareto` for the same model and batch. The page then also shows what other
                budgets cost, with the budget of this plan marked.

        >>> plan.to_html("plan.html")
        """
        save_page(self.view, path, pareto=pareto)

    def to_trace(self, path: str | Path) -> None:
        """Writes a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the nodes in time, memory as counters.

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
        """Gives what reports see of the plan."""
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
            difference=None if self.difference is None else (self.difference, self.differs_most),
            loss_chunks=None if self.chunks is None else (self.chunks.num_chunks, self.chunks.chunk_rows),
        )
