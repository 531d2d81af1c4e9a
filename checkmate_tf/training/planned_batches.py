"""Keeps the step that batches of each spec run, and plans steps for specs that first appear in training."""

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
from checkmate_tf.training.model_variables import return_state
from checkmate_tf.training.remat_scope import call_as_built_in_no_scope
from checkmate_tf.training.step_planner import KnownStep, StepPlanner
from checkmate_tf.user_warnings import warn

# A batch whose tensors are converted to a narrower dtype takes more memory than the plan counts. This share of the
# budget does not matter.
_NEGLIGIBLE_SHARE = 0.01
# A stock step that is not measured is expected to exceed its prediction by this share more than measured ones did:
# with smaller tensors, a larger part of the allocator's chunks is unused.
_MARGIN = 0.05
# Any schedule that is tried in training may exceed the budget, so the first one within the budget is taken.
_IN_TRAINING = Settings(good_use=0.0)


@dataclass(frozen=True, eq=False)
class CompiledState:
    """The results of `compile` on which a plan depends.

    It holds the objects themselves, so that no other object can get the identity of one of them.
    """

    optimizer: Any
    loss: Any
    trainable: tuple[Any, ...]
    dtypes: tuple[str, ...]
    jit_compile: bool

    @staticmethod
    def of(model: keras.Model) -> "CompiledState":
        """Returns the present state of a model."""
        policies = tuple(layer.dtype_policy.name for layer in list_layers(model))
        trainable = tuple(model.trainable_weights)
        return CompiledState(model.optimizer, get_compiled_loss(model), trainable, policies, bool(model.jit_compile))

    def list_changes(self, now: "CompiledState") -> list[str]:
        """Lists the differences from the state `now`, in words."""
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
        return [name for name, changed in differs.items() if changed]


@dataclass(eq=False)
class PlannedBatches:
    """The steps that batches of each spec run, of a model in one compiled state.

    Args:
        request: the request by which shapes that first appear in training are planned. Once a plan was made, its budget
            is in bytes.
        state: the compiled state.
        planner: plans the steps of the model in this state.
        former: the plans from before the model was compiled again, by spec.
        changes: the differences that this made, in words.
        newest: the batch of the last plan that the user asked for, without its tensors; None before the first.
        entries: the step of each spec.
        converted: the steps of batches of other dtypes, by spec and by whether batches are prefetched.
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
        """Returns planned batches without any plan."""
        return PlannedBatches(model, request, CompiledState.of(model), StepPlanner(model))

    @cached_property
    def stock(self) -> Callable[[Any], Any]:
        """Returns Keras's own train function, which takes an iterator."""
        return self.make_stock()

    def make_stock(self) -> Callable[[Any], Any]:
        """Makes Keras's own train function, which is traced when it first runs."""
        return make_training_function(self.model, call_as_built_in_no_scope(self.model, self.model.train_step))

    def start_over(self) -> "PlannedBatches":
        """Returns itself if the compiled state is the same; otherwise, planned batches that remember only the plans."""
        now = CompiledState.of(self.model)
        changes = self.state.list_changes(now)
        if not changes:
            return self
        planned = {key: entry.planned for key, entry in self.entries.items() if entry.planned is not None}
        former, changed = {**self.former, **planned}, tuple(changes)
        return PlannedBatches(self.model, self.request, now, StepPlanner(self.model), former, changed, self.newest)

    def copy(self) -> "PlannedBatches":
        """Returns a copy, to which further plans can be added."""
        return replace(self, entries=dict(self.entries), converted=dict(self.converted))

    def plan(self, batch: Batch, request: Request) -> PlannedStep:
        """Plans for the batch's spec. After an error, the previous plans stay."""
        entry = self.planner.plan(batch, request, others=reversed(self.entries.values()))
        assert entry.planned is not None
        self.keep(entry, request, entry.planned)
        self.newest = batch.describe()
        return entry.planned

    def plan_smaller(self, batch: Batch) -> None:
        """Plans for a further spec of the same data, within the same number of bytes, unless its stock step fits.

        Raises InfeasibleBudgetError if no plan within the budget was found.
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
        """Keeps an entry for batches of its spec, and its request for the plans of later shapes."""
        self.entries[entry.spec.key] = entry
        self.state = CompiledState.of(self.model)
        # A share of the peak becomes a number of bytes for all later shapes, as the device has no more for larger ones.
        self.request = replace(request.fix_budget(planned.budget_bytes), plan=None)

    def find(self, batch: Batch, *, is_ahead: bool) -> Entry:
        """Returns the entry of a batch, planned now if its shape is new.

        With `is_ahead`, other batches are prefetched while its step runs.
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
        """Returns the entry for batches that Keras would convert to planned dtypes, such as 64-bit floats.

        Returns None if such batches, and one that is converted, take more memory than the plan allows for.
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
        """Makes and keeps the entry of a spec that first appears in training."""
        self.entries[batch.spec.key] = self.make_entry(batch)
        return self.entries[batch.spec.key]

    def make_entry(self, batch: Batch) -> Entry:
        """Makes the entry of a spec that first appears in training.

        Its step is the stock step if that is within the budget, and the plan of least memory if no plan is.
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
        """Makes an entry that runs Keras's own step, with all state in the device's memory."""
        if self.request.options.offload != "host":
            return Entry(spec, lambda batch: self.stock(iter([batch])))
        stock = self.make_stock()

        def run(batch: Any) -> Any:
            return_state(self.model)
            return stock(iter([batch]))

        return Entry(spec, run)

    def plan_new(self, batch: Batch) -> Entry:
        """Plans a step for a spec that first appears in training, unless the stock step is expected to fit.

        The stock step never runs here, because it may exceed the budget. The first schedule within the budget is taken.
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
                if known.step.uses_xla:  # XLA compiles the whole step, and only a part of it was traced
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
        """Applies the plan that the spec had before the model was compiled again; None if it had none."""
        former = self.former.get(spec.key)
        if former is None or former.budget_bytes != self.request.budget:
            return None
        with tf.init_scope():
            return plan_again(self.request.let_offload(step), former)

    def explain_planning(self, spec: BatchSpec) -> str:
        """Returns the reason for planning a step in the middle of training."""
        if self.changes and not self.entries:
            return f"{' and '.join(self.changes)} of model {self.model.name!r} changed: its step is planned again"
        planned = [entry.spec for entry in self.entries.values()]
        like = [other for other in planned if len(other.flat) == len(spec.flat)]
        return (
            f"batches of model {self.model.name!r} have {spec.describe_differences((like or planned)[-1])}: their step "
            "is planned now; rematerialize(model, data=...) with such a batch plans it before training"
        )

    def is_known_to_fit(self, spec: BatchSpec) -> bool:
        """Returns whether the stock step of another spec, which is nowhere smaller, is within the budget.

        With fewer rows, no tensor is larger. Some are as large, such as one that is read from a table.
        """
        for entry in self.entries.values():
            as_planned = convert_dtypes(self.model, spec, entry.spec) or spec
            is_smaller = spec.size_bytes <= entry.spec.size_bytes and as_planned.is_within(entry.spec)
            if is_smaller and entry.keeps_as_stock:
                return True
        return False

    def expect_stock(self, step: Step) -> int:
        """Returns the bytes that a stock step is expected to take at most.

        The prediction is raised by the largest excess of the stock steps of other plans, those from before the model
        was compiled again included, and by a margin.
        """
        resident_bytes, excess = step.graph.resident_bytes, 1.0
        if step.exceeds_as_stock:
            planned = [entry.planned for entry in self.entries.values() if entry.planned is not None]
            excess = max([1.0, *map(_find_stock_excess, [*planned, *self.former.values()])])
        return resident_bytes + int((1 + _MARGIN) * excess * (step.stock_peak_bytes - resident_bytes))

    def describe_stock(self, step: Step) -> Stock | None:
        """Returns the expected peak of the stock step; None under XLA, which reports the peak without a run."""
        if step.uses_xla:
            return None
        return Stock(step.stock_peak_bytes, expected_bytes=self.expect_stock(step))

    def expect_prefetched(self, spec: BatchSpec) -> int | None:
        """Returns the expected bytes of prefetched batches, from the data of the newest plan; None if unknown."""
        if self.newest is None or self.newest.prefetched_bytes is None:
            return None
        growth = spec.size_bytes / max(self.newest.spec.size_bytes, 1)
        return int(max(growth, 1.0) * self.newest.prefetched_bytes)


def _find_stock_excess(planned: PlannedStep) -> float:
    """Returns the ratio of a stock step's peak to its prediction, both without resident bytes."""
    resident_bytes = planned.graph.resident_bytes
    return (planned.stock.peak_bytes - resident_bytes) / max(planned.stock.predicted_bytes - resident_bytes, 1)
