"""Shows how fast each way to an effective batch trains, as records, a table and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import make_printable
from checkmate_tf.reports.pictures import escape_label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STOCK, REMATERIALIZED, REFUSED = "stock", "rematerialized", "refused"
_COLORS = {STOCK: "#7b8794", REMATERIALIZED: "#e08a3c"}
_MARKS = {STOCK: "s", REMATERIALIZED: "o"}


@dataclass(frozen=True)
class BatchTrial:
    """One way to the effective batch: a micro-batch, and the number of its steps over which to accumulate gradients.

    Args:
        outcome: how the step stays within the budget: "stock" without changes, "rematerialized", or "refused".
        peak_bytes: peak of a whole update, if it was measured; None if refused.
        update_s: the time of one update, which includes all its steps.
        overhead: predicted overhead of the schedule.
        num_recomputed: number of nodes that are computed more than once.

    Example:

    >>> trial = BatchTrial(batch_size=8, accumulation_steps=4, outcome="stock", peak_bytes=90, update_s=2.0)
    >>> trial.samples_per_s
    16.0
    """

    batch_size: int
    accumulation_steps: int
    outcome: str
    peak_bytes: int | None = None
    update_s: float | None = None
    overhead: float = 0.0
    num_recomputed: int = 0

    @property
    def samples_per_s(self) -> float:
        """Returns the number of samples trained per second; 0 if refused."""
        return self.batch_size * self.accumulation_steps / self.update_s if self.update_s else 0.0


@dataclass(frozen=True)
class BatchTable:
    """The ways to an effective batch that were tried. `pandas.DataFrame(table.trials)` makes a table of them.

    Args:
        trials: in the order of the micro-batch, the smallest first.
        normalizes: whether the model normalizes over the batch, so that the micro-batch changes its results.
        took_s: total time.

    >>> trials = (BatchTrial(8, 4, "stock", 90, 2.0), BatchTrial(16, 2, "rematerialized", 99, 1.6, 0.1, 3))
    >>> table = BatchTable("net", "CPU:0", 100, 32, trials, False, 1.0)
    >>> table.best.batch_size, table.best_stock.samples_per_s
    (16, 16.0)
    >>> table.plot().savefig("batches.png")
    """

    name: str
    device: str
    budget_bytes: int
    effective_batch_size: int
    trials: tuple[BatchTrial, ...]
    normalizes: bool
    took_s: float

    @property
    def best(self) -> BatchTrial:
        """The way that trains on the most samples per second."""
        return max(self.trials, key=lambda trial: trial.samples_per_s)

    @property
    def best_stock(self) -> BatchTrial | None:
        """The fastest way without rematerialization; None if none fits."""
        return _find_fastest([trial for trial in self.trials if trial.outcome == STOCK])

    @property
    def largest(self) -> BatchTrial | None:
        """The largest micro-batch that fits; None if none does."""
        return max((trial for trial in self.trials if trial.update_s), key=lambda one: one.batch_size, default=None)

    def __str__(self) -> str:
        rows = [
            {
                "micro-batch": trial.batch_size,
                "accumulated": trial.accumulation_steps,
                "step": f"{trial.outcome}, the best" if trial is self.best else trial.outcome,
                "peak": "-" if trial.peak_bytes is None else format_bytes(trial.peak_bytes),
                "overhead": "-" if trial.outcome == REFUSED else f"{trial.overhead:.1%}",
                "update": "-" if trial.update_s is None else f"{trial.update_s:.3g} s",
                "samples a second": "-" if trial.update_s is None else f"{trial.samples_per_s:.4g}",
            }
            for trial in self.trials
        ]
        table = tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)
        return make_printable("\n".join([*self._list_sentences(), "", table]))

    def _list_sentences(self) -> list[str]:
        best, stock, largest = self.best, self.best_stock, self.largest
        size = self.effective_batch_size
        accumulated = f"accumulate over {best.accumulation_steps} of them" if best.accumulation_steps > 1 else "at once"
        how = "as the model stands" if best.outcome == STOCK else f"with {best.num_recomputed} nodes computed again"
        lines = [
            f"{self.name} trains on batches of {size} the fastest in steps of {best.batch_size} rows, {accumulated}, "
            f"{how}: {best.samples_per_s:.4g} samples a second, within {format_bytes(self.budget_bytes)} "
            f"on {self.device}."
        ]
        if stock is None:
            lines.append("Without rematerialization no size that was tried fits.")
        elif stock is not best:
            lines.append(
                f"Without rematerialization the fastest are steps of {stock.batch_size} rows: "
                f"{stock.samples_per_s:.4g} samples a second."
            )
        elif largest is not None and largest.outcome == REMATERIALIZED:
            lines.append(
                f"Rematerialized steps of {largest.batch_size} rows fit, and are slower: "
                f"{largest.samples_per_s:.4g} samples a second."
            )
        if self.normalizes and best.accumulation_steps > 1:
            lines.append(
                f"The model normalizes over the batch: it takes statistics of {best.batch_size} rows, not of {size}, "
                "which accumulation does not change back. Rematerialization changes no number."
            )
        return lines

    def plot(self) -> "Figure":
        """Draws samples per second against the micro-batch with matplotlib, stock and rematerialized."""
        figure = new_figure(8, 4.5)
        axes = figure.subplots()
        for outcome, color in _COLORS.items():
            ran = [trial for trial in self.trials if trial.outcome == outcome]
            sizes, speeds = [trial.batch_size for trial in ran], [trial.samples_per_s for trial in ran]
            if ran:
                axes.plot(sizes, speeds, marker=_MARKS[outcome], color=color, label=outcome)
        refused = [trial.batch_size for trial in self.trials if trial.outcome == REFUSED]
        if refused:
            axes.plot(refused, [0.0] * len(refused), "x", color="#c0392b", label="refused: nothing keeps to the budget")
        if self.best.update_s:
            axes.plot(
                self.best.batch_size, self.best.samples_per_s, "o", markersize=14, fillstyle="none", color="#1b1f24",
                label="the fastest",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        every = [trial.batch_size for trial in self.trials]
        axes.set_xticks(every, labels=[str(size) for size in every])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel=f"micro-batch (rows of {self.effective_batch_size})", ylabel="samples a second")
        axes.grid(color="0.92")
        figure.suptitle(f"{escape_label(self.name)}: within {format_bytes(self.budget_bytes)}")
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def _find_fastest(trials: Sequence[BatchTrial]) -> BatchTrial | None:
    return max(trials, key=lambda trial: trial.samples_per_s, default=None)
