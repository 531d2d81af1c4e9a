"""Keeps what batches of each spec run, of a model as it is compiled now, and plans those that training meets first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.step import Step
from checkmate_tf.keras_private import get_compiled_loss, list_layers, make_training_function
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import PlannedStep, ReadyStep, Stock
from checkmate_tf.planning.search import plan_again
from checkmate_tf.planning.targets import Settings
from checkmate_tf.progress import show_planning
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batch_dtypes import convert_dtypes
from checkmate_tf.training.batches import Batch, BatchSpec
from checkmate_tf.training.entry import Entry
from checkmate_tf.training.remat_scope import call_as_built_in_no_scope
from checkmate_tf.training.step_planner import KnownStep, StepPlanner
from checkmate_tf.user_warnings import warn

# A batch whose tensors are converted to narrower ones takes more than was counted; so much of a budget does not matter.
_NEGLIGIBLE_SHARE = 0.01
# A stock step that is not measured is expected to take this share more than measured ones did: in smaller tensors, more
# of the allocator's chunks is left unused.
_MARGIN = 0.05
# Each schedule that is tried in training may take more than the budget: the first one that does not is taken.
_IN_TRAINING = Settings(good_use=0.0)


@dataclass(frozen=True, eq=False)
class CompiledState:
    """A compiled state is what a plan was made for: the objects themselves, so that no identity is ever reused."""

    optimizer: Any
    loss: Any
    trainable: tuple[Any, ...]
    dtypes: tuple[str, ...]
    jit_compile: bool

    @staticmethod
    def of(model: keras.Model) -> "CompiledState":
        """Notes how a model is compiled now."""
        policies = tuple(layer.dtype_policy.name for layer in list_layers(model))
        trainable = tuple(model.trainable_weights)
        return CompiledState(model.optimizer, get_compiled_loss(model), trainable, policies, bool(model.jit_compile))

    def list_changes(self, now: "CompiledState") -> list[str]:
        """Says what differs now, in words."""
        same_weights = len(self.trainable) == len(now.trainable) and all(
            mine is theirs for mine, theirs in zip(self.trainable, now.trainable, strict=True)
        )
        differs = {
            "the optimizer": self.optimizer is not now.optimizer,
            "the loss": self.loss is not now.loss,
            "the trainable weights": not same_weights,
            "a dtype policy": self.dtypes != now.dtypes,
            "jit_compile": self.jit_compile != now.jit_compile,
        }
        return [what for what, changed in differs.items() if changed]


@dataclass(eq=False)
class PlannedBatches:
    """Planned batches are what batches of each spec run, of a model as it is compiled now.

    Args:
        request: by which batches that training meets are planned; once a plan was made, its budget is in bytes.
        state: how the model is compiled.
        planner: plans the steps of the model as it is compiled so.
        former: what was planned before the model was compiled again, by spec.
        changes: what that changed, in words.
        newest: the batch of the newest plan that was asked for, without its tensors; None where none was.
        entries: what batches of each spec run.
        converted: what those of other dtypes run, by spec and by whether batches are made ahead.
    """

    model: keras.Model
    request: Request
    state: CompiledState
    planner: StepPlanner
    former: Mapping[str, PlannedStep] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    newest: Batch | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    converted: dict[tuple[str, bool], Entry] = field(default_factory=dict)

    @staticmethod
    def of(model: keras.Model, request: Request) -> "PlannedBatches":
        """Starts without any plan."""
        return PlannedBatches(model, request, CompiledState.of(model), StepPlanner(model))

    @cached_property
    def stock(self) -> Callable[[Any], Any]:
        """Returns Keras's own train function, of an iterator."""
        return make_training_function(self.model, call_as_built_in_no_scope(self.model, self.model.train_step))

    def start_over(self) -> "PlannedBatches":
        """Returns itself where the model is compiled as it was, else planned batches that remember the plans alone."""
        now = CompiledState.of(self.model)
        changes = self.state.list_changes(now)
        if not changes:
            return self
        planned = {key: entry.planned for key, entry in self.entries.items() if entry.planned is not None}
        former, changed = {**self.former, **planned}, tuple(changes)
        return PlannedBatches(self.model, self.request, now, StepPlanner(self.model), former, changed, self.newest)

    def plan(self, batch: Batch, request: Request) -> PlannedStep:
        """Plans for the batch's spec; what was planned before is kept only where this succeeds."""
        entry = self.planner.plan(batch, request, others=reversed(self.entries.values()))
        assert entry.planned is not None
        self.keep(entry, request, entry.planned)
        self.newest = batch.describe()
        return entry.planned

    def plan_smaller(self, batch: Batch) -> None:
        """Plans for a further spec of the data that was planned for, within the same bytes, unless its stock step fits.

        Raises InfeasibleBudgetError where nothing keeps within the budget.
        """
        if self.is_known_to_fit(batch.spec):
            self.entries[batch.spec.key] = self.make_stock_entry(batch.spec)
        else:
            entry = self.planner.plan(batch, self.request, others=reversed(self.entries.values()))
            self.entries[batch.spec.key] = entry

    def take(self, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph, request: Request) -> None:
        """Makes batches of a spec run a step that was planned elsewhere."""
        self.keep(self.planner.make_entry(spec, ready, training_graph, request), request, ready.planned)

    def keep(self, entry: Entry, request: Request, planned: PlannedStep) -> None:
        """Makes batches of an entry's spec run it, and later shapes be planned by its request."""
        self.entries[entry.spec.key] = entry
        self.state = CompiledState.of(self.model)
        # A share of the peak is one number of bytes for all shapes to come: the device has no more for larger ones.
        self.request = replace(request.fix_budget(planned.budget_bytes), plan=None)

    def find(self, batch: Batch, *, is_ahead: bool) -> Entry:
        """Finds what a batch runs; planned now where its shape is new.

        `is_ahead` says that other batches are made ready meanwhile.
        """
        spec = batch.spec
        if spec.key in self.entries:
            return self.entries[spec.key]
        key = (spec.key, is_ahead)
        if key not in self.converted:
            like = self.find_like(spec, is_ahead=is_ahead)
            if like is None:
                return self.plan_first(batch)
            self.converted[key] = like
        return self.converted[key]

    def find_like(self, spec: BatchSpec, *, is_ahead: bool) -> Entry | None:
        """Finds what batches run that Keras would convert to what was planned, such as floats of 64 bits.

        None where holding them, and one converted, takes more than the plan allows for.
        """
        for entry in self.entries.values():
            as_planned = convert_dtypes(self.model, spec, entry.spec)
            if entry.planned is None or as_planned is None or as_planned.key != entry.spec.key:
                continue
            planned = entry.planned
            counted_bytes = planned.resident.batch + planned.resident.prefetched
            num_held = counted_bytes / max(entry.spec.size_bytes, 1) if is_ahead else 1
            more_bytes = num_held * spec.size_bytes + entry.spec.size_bytes - counted_bytes
            free_bytes = max(planned.budget_bytes - planned.peak_bytes, _NEGLIGIBLE_SHARE * planned.budget_bytes)
            if spec.size_bytes <= entry.spec.size_bytes or more_bytes <= free_bytes:
                return entry.convert()
        return None

    def plan_first(self, batch: Batch) -> Entry:
        """Plans what batches of a spec that training meets for the first time run."""
        self.entries[batch.spec.key] = self.make_entry(batch)
        return self.entries[batch.spec.key]

    def make_entry(self, batch: Batch) -> Entry:
        """Makes what batches of a shape met in training run.

        That is the stock step where it keeps within the budget, the plan of least memory where none does.
        """
        if self.is_known_to_fit(batch.spec):
            return self.make_stock_entry(batch.spec)
        batch = replace(batch, prefetched_bytes=self.expect_prefetched(batch.spec))
        try:
            return self.plan_new(batch)
        except InfeasibleBudgetError as error:
            if self.request.on_infeasible == "raise" or error.closest is None:
                raise
            least = error.closest.planned
            warn(
                f"batches of {batch.spec.key} of model {self.model.name!r} need at least "
                f"{format_bytes(least.peak_bytes)}, above the budget of {format_bytes(least.budget_bytes)}; they train "
                f"with the schedule of least memory: {error}"
            )
            return self.planner.make_entry(batch.spec, error.closest, None, self.request)

    def make_stock_entry(self, spec: BatchSpec) -> Entry:
        """Makes what batches run whose stock step keeps within the budget: Keras's own step."""
        return Entry(spec, lambda batch: self.stock(iter([batch])))

    def plan_new(self, batch: Batch) -> Entry:
        """Plans what batches of a spec met in training run, unless the stock step is expected to fit.

        The stock step is not run, as it may take more than the budget, and the first schedule that keeps within the
        budget is taken.
        """
        request, budget_bytes = self.request, int(self.request.budget)
        with plan_alone(), show_planning(shown=request.progress) as bar:
            bar.set_subject(f"for new batches of {batch.spec.key}")
            traced = self.planner.trace(batch, request, bar)
            resized = self.planner.resize(traced)
            others = tuple(reversed(self.entries.values()))
            known = (
                self.planner.make_step(traced, batch, request, others=others, reserve=False)
                if resized is None
                else KnownStep(resized)
            )
            ready = self.plan_as_before(batch.spec, known.step)
            if ready is not None:
                return self.planner.make_entry(batch.spec, ready, known.step.training_graph, request)
            expected_bytes = self.expect_stock(known.step)
            if self.entries and expected_bytes <= budget_bytes:
                if known.step.uses_xla:  # which compiles the whole step, of which only a part was traced
                    return self.make_stock_entry(batch.spec)
                return Entry.of_traced(batch.spec, known.step.stock)
            bar.set_subject(
                f"for new batches of {batch.spec.key}, as the stock step may take {format_bytes(expected_bytes)} of "
                f"{format_bytes(budget_bytes)}"
            )
            warn(self.explain_planning(batch.spec))
            if resized is not None:
                known = self.planner.make_step(traced, batch, request)
            stock = self.describe_stock(known.step)
            return self.planner.search(batch, known, request, bar, stock=stock, settings=_IN_TRAINING)

    def plan_as_before(self, spec: BatchSpec, step: Step) -> ReadyStep | None:
        """Carries out the plan that a spec had before the model was compiled again; None where it had no such plan."""
        former = self.former.get(spec.key)
        if former is None or former.budget_bytes != self.request.budget:
            return None
        with tf.init_scope():
            return plan_again(self.request.let_offload(step), former)

    def explain_planning(self, spec: BatchSpec) -> str:
        """Says why a step is planned in the middle of training."""
        if self.changes and not self.entries:
            return f"{' and '.join(self.changes)} of model {self.model.name!r} changed: its step is planned again"
        planned = [entry.spec for entry in self.entries.values()]
        like = [other for other in planned if len(other.flat) == len(spec.flat)]
        return (
            f"batches of model {self.model.name!r} have {spec.describe_differences((like or planned)[-1])}: their step "
            "is planned now; rematerialize(model, data=...) with such a batch plans it before training"
        )

    def is_known_to_fit(self, spec: BatchSpec) -> bool:
        """Returns whether the stock step keeps within the budget at another spec that is nowhere smaller than this one.

        A tensor may be as large in a step of fewer rows, such as one that is read from a table, but not larger.
        """
        for entry in self.entries.values():
            as_planned = convert_dtypes(self.model, spec, entry.spec) or spec
            is_smaller = spec.size_bytes <= entry.spec.size_bytes and as_planned.is_within(entry.spec)
            if is_smaller and entry.keeps_as_stock:
                return True
        return False

    def expect_stock(self, step: Step) -> int:
        """Returns the bytes that a stock step is expected to take at most.

        It is expected to take as much more than is predicted as the planned steps of other shapes do, and those of the
        model as it was compiled before, and a margin.
        """
        resident_bytes, excess = step.graph.resident_bytes, 1.0
        if step.exceeds_as_stock:
            planned = [entry.planned for entry in self.entries.values() if entry.planned is not None]
            excess = max([1.0, *map(_find_stock_excess, [*planned, *self.former.values()])])
        return resident_bytes + int((1 + _MARGIN) * excess * (step.stock_peak_bytes - resident_bytes))

    def describe_stock(self, step: Step) -> Stock | None:
        """Says what the stock step is expected to take; None where that is known without running it, from XLA."""
        if step.uses_xla:
            return None
        return Stock(step.stock_peak_bytes, expected_bytes=self.expect_stock(step))

    def expect_prefetched(self, spec: BatchSpec) -> int | None:
        """Returns what `fit` is expected to hold of other batches, by the data of the newest plan; None if unknown."""
        if self.newest is None or self.newest.prefetched_bytes is None:
            return None
        growth = spec.size_bytes / max(self.newest.spec.size_bytes, 1)
        return int(max(growth, 1.0) * self.newest.prefetched_bytes)


def _find_stock_excess(planned: PlannedStep) -> float:
    """Finds how many times the predicted bytes, beside resident ones, the stock step of a plan takes."""
    resident_bytes = planned.graph.resident_bytes
    return (planned.stock.peak_bytes - resident_bytes) / max(planned.stock.predicted_bytes - resident_bytes, 1)
