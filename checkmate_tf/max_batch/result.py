"""Defines the result of `max_batch_size`, which can be printed and installed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.max_batch.modelled_step import ModelledStep
from checkmate_tf.max_batch.search import Trial
from checkmate_tf.measurement.device_memory import reserve_pool
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import ReadyStep
from checkmate_tf.reports.plan import Plan
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.installed_step import InstalledStep, find_installed_step


@dataclass(frozen=True)
class MaxBatch:
    """The result of `max_batch_size`: the largest size, its plan, and all sizes that were tried.

    Args:
        size: rows of the batch, or the size of another axis.
        batch_size: rows; `size` itself for the axis "batch".
        stock_size: the predicted largest size that fits without rematerialization; None if none does.
        confirmed: whether the step of this size ran within the budget, or XLA compiled it to stay within the budget.
        beyond: a text about larger sizes: the next one ran above the budget, or the search ended before it.
        cost_error: largest relative error of the cost model at the traced sizes.
        plan: the plan for this size. `install` installs it.

    Example:

    >>> import keras
    >>> from checkmate_tf import Axis, Options, max_batch_size
    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "time_limit_s": 1, "measure": False, "progress": False}
    >>> found = max_batch_size(model, budget="64MiB", axis=Axis("batch", maximum=32), **quick)
    >>> found.size, found.confirmed, found.plan.predicted_peak_bytes <= found.budget_bytes
    (32, False, True)
    """

    axis: str
    size: int
    batch_size: int
    stock_size: int | None
    budget_bytes: int
    max_overhead: float | str | None
    confirmed: bool
    beyond: str
    trials: tuple[Trial, ...]
    plan: Plan
    cost_error: float
    took_s: float
    _modelled: ModelledStep
    _ready: ReadyStep
    _traced: TrainingGraph
    _request: Request

    @property
    def num_solves(self) -> int:
        """Returns the number of runs of the solver."""
        return sum(trial.kind == "solve" for trial in self.trials)

    def install(self) -> Plan:
        """Makes `model.fit` run this step, as `rematerialize` does. `restore` removes it."""
        step = self._modelled.step
        reserve_pool(self.plan.stock_peak_bytes)  # the step ran in another process, whose pool had room for it
        install = find_installed_step(step.model) or InstalledStep(step.model, self._request)
        install.take(step.make_spec(self.size), self._ready, self._traced, self._request)
        install.install()
        return self.plan

    @property
    def reference_size(self) -> int:
        """Returns the size whose trace defines the plan's nodes (see `extract(like=)`)."""
        return self._modelled.sizes.largest

    def __str__(self) -> str:
        stock = "none" if self.stock_size is None else str(self.stock_size)
        how = "predicted"
        if self.confirmed:
            how = "confirmed by running it" if self._modelled.compiled is None else "confirmed by compiling it"
        return (
            f"largest {self.axis} within {format_bytes(self.budget_bytes)} and {_word_overhead(self.max_overhead)}: "
            f"{self.size}, {how} (without rematerialization {stock}, predicted); {self.beyond}; "
            f"{self.num_solves} solves, {self.took_s:.0f} s\n\n{tabulate_trials(self.trials)}\n\n{self.plan}"
        )


def tabulate_trials(trials: Sequence[Trial]) -> str:
    """Makes a table with a line for each size tried."""
    rows = [
        {
            "size": trial.size,
            "by": trial.kind,
            "outcome": trial.outcome,
            "budget": format_bytes(trial.target_bytes),
            "predicted": format_or_dash(trial.predicted_peak_bytes, format_bytes),
            "measured": format_or_dash(trial.measured_peak_bytes, format_bytes),
            "overhead": format_or_dash(trial.overhead, "{:.1%}".format),
            "overhead bound": format_or_dash(trial.least_overhead, "{:.1%}".format),
            "overhead limit": format_or_dash(trial.allowed_overhead, "{:.1%}".format),
            "seconds": f"{trial.solve_time_s:.1f}"
            if trial.kind == "solve"
            else format_or_dash(trial.step_time_s, "{:.2f}".format),
        }
        for trial in trials
    ]
    return tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)


def format_or_dash(figure: Any, form: Callable[[Any], str]) -> str:
    """Returns a figure as text; a dash for None."""
    return "-" if figure is None else form(figure)


def _word_overhead(max_overhead: float | str | None) -> str:
    if max_overhead is None:
        return "any overhead"
    if isinstance(max_overhead, str):
        return f"an overhead of {max_overhead}"
    return f"an overhead of {max_overhead:.1%}"
