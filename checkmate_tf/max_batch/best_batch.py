"""Finds the fastest way to an effective batch within a memory budget: `best_batch`."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf
from tqdm import tqdm

from checkmate_tf.arguments import check_size
from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import InfeasibleBudgetError, SearchInterrupt
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.keras_private import list_layers
from checkmate_tf.max_batch.arguments import check_resident, check_searchable, parse_budget_bytes, refuse_device
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.measurement.kept_state import keep_state
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.reports.batches import REFUSED, REMATERIALIZED, STOCK, BatchTable, BatchTrial
from checkmate_tf.reports.plan import Plan
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.training.accumulation import make_accumulating, take_optimizer, try_optimizer
from checkmate_tf.training.batches import Batch
from checkmate_tf.training.entry import Entry
from checkmate_tf.training.installed_step import InstalledStep, find_installed_step
from checkmate_tf.training.model_checks import check_traceable
from checkmate_tf.training.model_variables import build_for, list_training_variables
from checkmate_tf.training.replicas import get_scope
from checkmate_tf.training.step_planner import StepPlanner

# After this many sizes in a row that are slower than the best one, the search tries no larger ones.
_SLOWER_SIZES = 2
_TIMED_UPDATES = 2


@dataclass(frozen=True)
class BestBatch(BatchTable):
    """The result of `best_batch`: the ways that were tried, and a method that installs the fastest one.

    Args:
        plan: the plan of the fastest way.

    Example:

    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "time_limit_s": 1, "progress": False}
    >>> found = best_batch(model, effective_batch_size=7, budget="64MiB", **quick)
    >>> found.batch_size * found.accumulation_steps, len(found.trials) > 0
    (7, True)
    """

    plan: Plan
    _step: SizedStep
    _request: Request

    @property
    def batch_size(self) -> int:
        """Returns the micro-batch, the `batch_size` for `fit`."""
        return self.best.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Returns the number of steps whose gradients are accumulated before each update."""
        return self.best.accumulation_steps

    def install(self) -> Plan:
        """Installs the fastest way: an optimizer that accumulates gradients, and the planned step for its micro-batch.

        The step is planned again with that optimizer, which continues from the state of the present one. If that fails
        or is interrupted, the model keeps the present optimizer. Pass `batch_size=found.batch_size` to `fit`.
        """
        model = self._step.model
        before = model.optimizer
        take_optimizer(model, make_accumulating(before, self.accumulation_steps))
        step = find_installed_step(model) or InstalledStep(model, self._request)
        try:
            planned = step.plan(self._step.make_spec(self.batch_size).make_zeros(), self._request)
        except BaseException:
            model.optimizer = before
            raise
        step.install()
        return Plan(planned)


@plan_alone()
def best_batch(
    model: keras.Model,
    *,
    effective_batch_size: int,
    data: Any = None,
    budget: int | float | str = "auto",
    time_limit_s: float = 60.0,
    options: Options = Options(),
    progress: bool = True,
) -> BestBatch:
    """Finds the micro-batch, the gradient accumulation and the plan that train on the most samples per second.

    A batch of `effective_batch_size` rows is one step, or several steps of a smaller micro-batch whose gradients
    Keras's optimizer accumulates. Small micro-batches fit with the stock step, and larger ones only rematerialized. The
    search runs whole updates on zeros to measure which is fastest. It starts with the largest micro-batch whose stock
    step is predicted to fit, and tries larger and smaller ones as long as they are faster. It installs nothing and
    leaves the model's state unchanged; call `found.install()`.

    Args:
        model: the compiled model.
        effective_batch_size: rows per update of the weights. The search tries its divisors.
        data: as in `rematerialize`. Its first batch provides the shapes that the model does not declare.
        budget: bytes, "6GiB", or "auto", the device's free memory minus a margin. It covers parameters, optimizer
            state, accumulated gradients and the batch.
        time_limit_s, options: as in `rematerialize`, for each micro-batch.
        progress: whether to show a progress bar on standard error, if that is a terminal.

    Returns:
        The ways that were tried. `found.install()` installs the fastest.

    Raises:
        UnsupportedModelError: if `rematerialize` would refuse the model.
        BatchError: if the effective batch size or the data are not valid.
        BudgetError: if the budget cannot be read.
        InfeasibleBudgetError: if even one row does not fit.
        SearchInterrupt: on Ctrl-C. Its `found` is the best result so far, or None.

    Example:

    >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(8)]
    >>> model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "time_limit_s": 1, "progress": False}
    >>> found = best_batch(model, effective_batch_size=1331, budget="4.5MiB", **quick)
    >>> found.batch_size * found.accumulation_steps
    1331
    >>> found.best.peak_bytes <= found.budget_bytes
    True
    """
    began_s = time.perf_counter()
    request = Request(budget, time_limit_s, options, progress=progress)
    refuse_device(options, "best_batch")
    effective_batch_size = check_size(effective_batch_size, "effective_batch_size")
    check_searchable(model)
    check_traceable(model, has_data=data is not None)
    step = SizedStep.of(model, "batch", data=data)
    small = [size for size in range(1, math.isqrt(effective_batch_size) + 1) if effective_batch_size % size == 0]
    sizes = sorted({*small, *(effective_batch_size // size for size in small)})
    with try_optimizer(model, make_accumulating(model.optimizer, effective_batch_size)):
        budget_bytes = parse_budget_bytes(request, step, sizes[0])
        check_resident(step, sizes[0], budget_bytes)
        first = find_stock_size(step, sizes, budget_bytes)
    request = replace(request.fix_budget(budget_bytes), progress=False)

    with tqdm(desc="best batch", unit="size", disable=None if progress else True, leave=False) as bar:
        search = _Search(step, request, budget_bytes, sizes, bar, began_s)
        try:
            with plan_alone():
                search.run(first)
        except KeyboardInterrupt as interrupt:
            found = search.describe() if search.plans else None
            plural = "" if len(search.trials) == 1 else "s"
            told = f"with {len(search.trials)} size{plural} tried" if found else "before any size was found to fit"
            raise SearchInterrupt(f"interrupted {told}", found) from interrupt
    if not search.plans:
        assert search.refusal is not None
        raise search.refusal
    return search.describe()


@dataclass
class _Search:
    """Tries micro-batches, each once: with the stock step if that stays within the budget, otherwise rematerialized."""

    step: SizedStep
    request: Request
    budget_bytes: int
    sizes: Sequence[int]
    bar: tqdm
    began_s: float
    trials: dict[int, BatchTrial] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    refusal: InfeasibleBudgetError | None = None

    def run(self, first: int) -> None:
        """Tries sizes around the first one, as long as they get faster."""
        best = self.try_size(first)
        slower = 0
        for size in [size for size in self.sizes if size > first]:
            trial = self.try_size(size)
            slower = 0 if trial.samples_per_s > best.samples_per_s else slower + 1
            best = max(best, trial, key=lambda one: one.samples_per_s)
            if trial.outcome == REFUSED or slower == _SLOWER_SIZES:
                break
        for size in [size for size in reversed(self.sizes) if size < first]:
            trial = self.try_size(size)
            if trial.outcome != REFUSED and trial.samples_per_s <= best.samples_per_s:
                break
            best = max(best, trial, key=lambda one: one.samples_per_s)

    def try_size(self, size: int) -> BatchTrial:
        """Plans for a micro-batch and runs a whole update."""
        model, num_steps = self.step.model, self.sizes[-1] // size
        self.bar.set_postfix_str(f"{size} rows")
        with get_scope(model):
            optimizer = make_accumulating(model.optimizer, num_steps)
        with try_optimizer(model, optimizer):
            spec = self.step.make_spec(size)
            build_for(model, spec)
            batch = spec.make_zeros()
            try:
                entry = StepPlanner(model).plan(batch, self.request)
            except InfeasibleBudgetError as error:
                self.refusal = error
                trial = BatchTrial(size, num_steps, REFUSED)
            else:
                trial = self.measure(entry, batch, num_steps)
        self.trials[size] = trial
        self.bar.update()
        return trial

    def measure(self, entry: Entry, batch: Batch, num_steps: int) -> BatchTrial:
        """Runs a whole update. It is refused if it takes more than the budget."""
        assert entry.planned is not None
        planned, size = entry.planned, self.sizes[-1] // num_steps
        update_s, took_bytes = run_update(
            lambda: entry.run(batch.spec.pack(batch.tensors)), list_training_variables(self.step.model), num_steps
        )
        peak_bytes = planned.peak_bytes
        if took_bytes is not None and not self.step.model.jit_compile:
            peak_bytes = max(peak_bytes, planned.graph.resident_bytes + took_bytes)
        if peak_bytes > self.budget_bytes:
            self.refusal = InfeasibleBudgetError(
                f"an update of model {self.step.model.name!r} in steps of {size} rows takes "
                f"{format_bytes(peak_bytes)}, above the budget of {format_bytes(self.budget_bytes)}; "
                "use a larger budget",
                least_budget_bytes=peak_bytes,
            )
            return BatchTrial(size, num_steps, REFUSED, peak_bytes)
        plan = self.plans[size] = Plan(planned)
        outcome = REMATERIALIZED if plan.recomputed else STOCK
        return BatchTrial(size, num_steps, outcome, peak_bytes, update_s, plan.overhead, len(plan.recomputed))

    def describe(self) -> BestBatch:
        """Returns the best of the tried sizes, of which at least one fits."""
        trials = tuple(self.trials[size] for size in sorted(self.trials))
        best = max(trials, key=lambda trial: trial.samples_per_s)
        model = self.step.model
        return BestBatch(
            model.name,
            find_default_device(),
            self.budget_bytes,
            self.sizes[-1],
            trials,
            any(isinstance(layer, keras.layers.BatchNormalization) for layer in list_layers(model)),
            time.perf_counter() - self.began_s,
            self.plans[best.batch_size],
            self.step,
            self.request,
        )


def find_stock_size(step: SizedStep, sizes: Sequence[int], budget_bytes: int) -> int:
    """Predicts the largest size that fits without rematerialization; returns the smallest if none does."""
    small, large = sizes[0], sizes[-1]
    low, high = (simulate_stock(step.trace(size).graph).peak_bytes for size in (small, large))
    most = small
    for size in sizes[1:]:  # the memory of a step grows with its rows
        if low + (size - small) / (large - small) * (high - low) <= budget_bytes:
            most = size
    return most


def run_update(step: Callable[[], Any], variables: Sequence[Any], num_steps: int) -> tuple[float, int | None]:
    """Runs updates of so many steps, and restores the variables. Returns the seconds of the fastest, and the peak.

    The peak is in bytes above those in use before, and None if the device does not report it. An interrupt waits for
    the running step.
    """
    times = []
    with hold_interrupts() as let_interrupt_through, keep_state(variables):
        step()  # prepares the state that later steps, like those of training, find

        def run() -> None:
            for _ in range(_TIMED_UPDATES):
                began_s = time.perf_counter()
                for _ in range(num_steps):
                    let_interrupt_through()
                    step()
                if not find_default_device().startswith("CPU"):
                    tf.test.experimental.sync_devices()
                times.append(time.perf_counter() - began_s)

        took_bytes = measure_allocator_peak_bytes(run, device=find_default_device())
        if took_bytes is None:
            run()
    return min(times), took_bytes
