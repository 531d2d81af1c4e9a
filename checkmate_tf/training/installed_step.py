"""Holds the training step that `rematerialize` installs in a model: its plans by batch shape, and which one a batch
runs.

Keras's `fit` and `train_on_batch` hand each batch to `model.train_function`. What is installed there looks at the
batch's shape and calls the function that was planned and measured for it: the same one for all ways of training.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import InfeasibleBudgetError, UnsupportedModelError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.keras_private import get_compiled_loss, list_layers, make_training_function
from checkmate_tf.measurement.runs import plan_alone
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import PlannedStep, ReadyStep
from checkmate_tf.planning.search import find_plan, plan_again
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.progress import PlanningBar, show_planning
from checkmate_tf.schedule import Schedule
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batch_dtypes import convert_dtypes
from checkmate_tf.training.batches import Batch, BatchSpec, drop_optionals, flatten_batch
from checkmate_tf.training.replicas import count_replicas, get_current_replica, split_batch
from checkmate_tf.training.step_parts import check_model, choose_part
from checkmate_tf.training.traced_model import TracedModel
from checkmate_tf.user_warnings import warn

# A batch whose tensors are converted to narrower ones takes more than was counted; so much of a budget does not matter.
_NEGLIGIBLE_SHARE = 0.01
# A stock step that is not measured is expected to take this share more than measured ones did: in smaller tensors, more
# of the allocator's chunks is left unused.
_MARGIN = 0.05

_TENSORFLOW_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


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


@dataclass(frozen=True)
class Entry:
    """An entry says what batches of one static spec run.

    Args:
        planned: None where the stock step keeps within the budget without a plan.
        run: the step of a batch on one device; gives its logs.
        training_graph: that the plan is for.
        functions: what carries the plan out on each replica; emitted when that is first traced.
    """

    spec: BatchSpec
    planned: PlannedStep | None
    run: Callable[[Any], Any]
    training_graph: TrainingGraph | None
    functions: dict[int, EmittedFunction]


@dataclass(frozen=True)
class KnownStep:
    """A known step is a traced step, and the schedules of other batch shapes that it may follow too."""

    step: GraphStep | XlaStep
    schedules: tuple[Schedule, ...] = ()


class InstalledStep:
    """An installed step holds the plans of one model, and trains with them.

    `entries` are what batches of each spec run, and `converted` what those of other dtypes do, by spec and by whether
    batches are made ahead. `former` are the plans that were made before the model was compiled again, and `changes`
    what that changed. `last_entry` says what the last batch ran; None before the first one, and where several replicas
    train. `compiled` are the steps that XLA compiled, by batch spec and by whether metrics are rewritten with the step:
    to plan for another budget, the stock step is not compiled again. `newest` is the batch of the newest plan that was
    asked for, without its tensors.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self.entries: dict[str, Entry] = {}
        self.converted: dict[tuple[str, bool], Entry] = {}
        self.former: dict[str, PlannedStep] = {}
        self.changes: list[str] = []
        self.compiled: dict[tuple[str, bool], KnownStep] = {}
        self.request: Request | None = None
        self.state: CompiledState | None = None
        self.stock: Callable[[Any], Any] | None = None
        self.of_replicas: dict[tuple[str, ...], Callable[[Any], Any]] = {}
        self.last_entry: Entry | None = None
        self.newest: Batch | None = None
        self.lock = threading.RLock()

    def plan(self, batch: Batch, request: Request) -> PlannedStep:
        """Plans for the batch's spec; what was planned before is kept only where this succeeds."""
        with self.lock:
            self.note_changes()
            entry = self.plan_entry(batch, request)
            assert entry.planned is not None
            self.keep(entry, request, entry.planned)
            self.newest = replace(batch, tensors=())
        return entry.planned

    def take(self, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph, request: Request) -> None:
        """Has batches of a spec run what was planned elsewhere."""
        with self.lock:
            self.keep(self.make_planned_entry(spec, ready, training_graph, request), request, ready.planned)

    def keep(self, entry: Entry, request: Request, planned: PlannedStep) -> None:
        """Has batches of an entry's spec run it, and later shapes be planned by its request."""
        self.entries[entry.spec.key] = entry
        self.state = CompiledState.of(self.model)
        # A share of the peak is one number of bytes for all shapes to come: the device has no more for larger ones.
        self.request = replace(request, budget=planned.budget_bytes, plan=None)

    def install(self) -> None:
        """Makes `fit` and `train_on_batch` run the planned steps."""

        def make_train_function(force: bool = False) -> None:
            self.make_train_function(force=force)

        make_train_function.installed = self  # type: ignore[attr-defined]
        self.drop_train_function()  # first, so that the model trains as before or as planned at any moment
        self.model.make_train_function = make_train_function
        self.model.__reduce__ = self.reduce_model

    def remove(self) -> None:
        """Puts Keras's own training back."""
        self.drop_train_function()
        del self.model.make_train_function, self.model.__reduce__

    def drop_train_function(self) -> None:
        """Has the model make its train function anew, also in the middle of `fit`, which asks for it at its start."""
        if self.model.train_function is not None:
            self.model.train_function = partial(_make_and_train, self.model)

    def reduce_model(self) -> Any:
        """Pickles the model, which Keras does as it saves one: without what is installed, so that a warning says so."""
        warn(
            f"a pickled copy of model {self.model.name!r} trains with the stock step, without a memory budget: call "
            "rematerialize on the copy"
        )
        of_class: Any = type(self.model)
        return of_class.__reduce__(self.model)

    def make_train_function(self, *, force: bool) -> None:
        """Sets the model's train function, as Keras asks before it trains; `compile` leaves none."""
        model = self.model
        if model.train_function is not None and not force:
            return
        if model.run_eagerly:
            warn(f"model {model.name!r} runs eagerly, with its stock training step: no memory budget holds")
            model.train_function = self.get_stock_function()
            return
        check_model(model)
        self.note_changes()
        model.train_function = self

    def note_changes(self) -> None:
        """Drops what runs the model as it was compiled before, if that changed, and remembers the plans."""
        now = CompiledState.of(self.model)
        changes = [] if self.state is None else self.state.list_changes(now)
        if not changes:
            return
        self.former |= {key: entry.planned for key, entry in self.entries.items() if entry.planned is not None}
        self.entries, self.converted, self.compiled, self.of_replicas, self.stock = {}, {}, {}, {}, None
        self.state, self.changes = now, changes

    def __call__(self, iterator: Iterator[Any]) -> Any:
        """Trains on the next batches of an iterator, `steps_per_execution` of them; the last one's logs."""
        logs = None
        for number in range(self.model.steps_per_execution):
            try:
                batch = next(iterator)
            except StopIteration:
                if number:
                    break
                self.run_without_batch(iterator)
                raise
            # Batches of a dataset are made ahead, where they lie in the memory that a plan is about.
            is_ahead = isinstance(iterator, _TENSORFLOW_ITERATORS) and find_default_device().startswith("CPU")
            logs = self.train(batch, is_ahead=is_ahead)
        return logs

    def run_without_batch(self, iterator: Iterator[Any]) -> None:
        """Runs Keras's own step on an iterator that has no more data, as `fit` does at the end of an epoch.

        TensorFlow runs all operations of that step that do not wait for the batch, before it reports the end: they
        advance the states of random numbers and the optimizer's iterations, and count rows where every batch has as
        many. A step that XLA compiles, and steps within one execution, begin only with a batch. On several devices the
        end of the data may stop some of these operations: two stock runs differ there too.

        Raises tf.errors.OutOfRangeError where the iterator is one of TensorFlow's.
        """
        starts_at_once = self.model.steps_per_execution == 1 and not self.model.jit_compile
        if starts_at_once and isinstance(iterator, _TENSORFLOW_ITERATORS):
            self.get_stock_function()(iterator)

    def train(self, data: Any, *, is_ahead: bool) -> Any:
        """Runs one training step; returns its logs. `is_ahead` says that other batches are made ready meanwhile."""
        batch = drop_optionals(data)
        if count_replicas(self.model) > 1:
            return self.train_replicas(batch)
        spec = BatchSpec.of(batch)
        self.last_entry = self.find_entry(Batch(spec, tuple(flatten_batch(batch))), is_ahead=is_ahead)
        return self.last_entry.run(batch)

    def find_entry(self, batch: Batch, *, is_ahead: bool) -> Entry:
        """Finds what a batch runs; planned now where its shape is new."""
        spec = batch.spec
        with self.lock:
            if spec.key in self.entries:
                return self.entries[spec.key]
            key = (spec.key, is_ahead)
            if key not in self.converted:
                like = self.find_like_entry(spec, is_ahead=is_ahead)
                if like is None:
                    self.entries[spec.key] = self.make_entry(batch)
                    return self.entries[spec.key]
                self.converted[key] = like
            return self.converted[key]

    def find_like_entry(self, spec: BatchSpec, *, is_ahead: bool) -> Entry | None:
        """Finds what batches run that Keras would convert to what was planned, such as floats of 64 bits.

        None where holding them, and one converted, takes more than the plan allows for.
        """
        for entry in self.entries.values():
            as_planned = convert_dtypes(self.model, spec, entry.spec)
            if entry.planned is None or as_planned is None or as_planned.key != entry.spec.key:
                continue
            plan = entry.planned
            counted_bytes = plan.resident.batch + plan.resident.prefetched
            num_held = counted_bytes / max(entry.spec.size_bytes, 1) if is_ahead else 1
            more_bytes = num_held * spec.size_bytes + entry.spec.size_bytes - counted_bytes
            free_bytes = max(plan.budget_bytes - plan.peak_bytes, _NEGLIGIBLE_SHARE * plan.budget_bytes)
            if spec.size_bytes <= entry.spec.size_bytes or more_bytes <= free_bytes:
                return replace(entry, run=partial(_run_as, entry))
        return None

    def is_known_to_fit(self, spec: BatchSpec) -> bool:
        """Tells whether the stock step keeps within the budget at another spec that is nowhere smaller than this one.

        A tensor may be as large in a step of fewer rows, such as one that is read from a table, but not larger.
        """
        for entry in self.entries.values():
            as_planned = convert_dtypes(self.model, spec, entry.spec) or spec
            is_smaller = spec.size_bytes <= entry.spec.size_bytes and as_planned.is_within(entry.spec)
            if is_smaller and _keeps_as_stock(entry):
                return True
        return False

    def expect_stock(self, step: GraphStep | XlaStep) -> int:
        """Returns the bytes that a stock step is expected to take at most.

        It is expected to take as much more than is predicted as the planned steps of other shapes do, and a margin.
        """
        resident_bytes, excess = step.graph.resident_bytes, 1.0
        if step.exceeds_as_stock:
            plans = [entry.planned for entry in self.entries.values() if entry.planned is not None]
            excess = max([1.0, *map(_find_stock_excess, plans)])
        return resident_bytes + int((1 + _MARGIN) * excess * (step.stock_peak_bytes - resident_bytes))

    def make_entry(self, batch: Batch) -> Entry:
        """Makes what batches of a shape met in training run.

        That is the stock step where it keeps within the budget, the plan of least memory where none does.
        """
        assert self.request is not None
        if self.is_known_to_fit(batch.spec):
            return self.make_stock_entry(batch.spec)
        batch = replace(batch, prefetched_bytes=self.expect_prefetched(batch.spec))
        try:
            return self.plan_new_entry(batch, self.request)
        except InfeasibleBudgetError as error:
            if self.request.on_infeasible == "raise" or error.closest is None:
                raise
            least = error.closest.planned
            warn(
                f"batches of {batch.spec.key} of model {self.model.name!r} take {format_bytes(least.peak_bytes)} at "
                f"the least, above the budget of {format_bytes(least.budget_bytes)}, and train so: {error}"
            )
            return self.make_planned_entry(batch.spec, error.closest, None, self.request)

    def plan_as_before(self, spec: BatchSpec, known: KnownStep) -> ReadyStep | None:
        """Carries out the plan that a spec had before the model was compiled again; None where it had no such plan."""
        assert self.request is not None
        former = self.former.get(spec.key)
        if former is None or former.budget_bytes != self.request.budget:
            return None
        with tf.init_scope():
            return plan_again(known.step, former)

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

    def expect_prefetched(self, spec: BatchSpec) -> int | None:
        """Returns what `fit` is expected to hold of other batches, by the data of the newest plan; None if unknown."""
        if self.newest is None or self.newest.prefetched_bytes is None:
            return None
        growth = spec.size_bytes / max(self.newest.spec.size_bytes, 1)
        return int(max(growth, 1.0) * self.newest.prefetched_bytes)

    def make_stock_entry(self, spec: BatchSpec, stock: EmittedFunction | None = None) -> Entry:
        """Makes what batches run that need no plan: the traced step, Keras's own where there is none."""
        if stock is not None:
            return Entry(spec, None, partial(_run_flat, stock), None, {})
        function = self.get_stock_function()
        return Entry(spec, None, lambda batch: function(iter([batch])), None, {})

    def get_stock_function(self) -> Callable[[Any], Any]:
        """Returns Keras's own train function, of an iterator."""
        if self.stock is None:
            self.stock = make_training_function(self.model, self.model.train_step)
        return self.stock

    def plan_new_entry(self, batch: Batch, request: Request) -> Entry:
        """Plans what batches of a spec met in training run, unless the stock step is expected to fit.

        Of a model that was compiled anew, no step was measured that would tell what to expect.
        """
        budget_bytes = int(request.budget)
        with plan_alone(), show_planning(shown=request.progress) as bar:
            bar.set_subject(f"for new batches of {batch.spec.key}")
            resized = self.resize_compiled(batch, request, bar)
            known = self.trace_step(batch, request, bar, reserve=False) if resized is None else KnownStep(resized)
            ready = self.plan_as_before(batch.spec, known)
            if ready is not None:
                return self.make_planned_entry(batch.spec, ready, known.step.training_graph, request)
            expected_bytes = self.expect_stock(known.step)
            if self.entries and expected_bytes <= budget_bytes:
                return self.make_stock_entry(batch.spec, known.step.stock if resized is None else None)
            bar.set_subject(
                f"for new batches of {batch.spec.key}, as the stock step may take {format_bytes(expected_bytes)} of "
                f"{format_bytes(budget_bytes)}"
            )
            warn(self.explain_planning(batch.spec))
            if resized is not None:
                known = self.trace_step(batch, request, bar)
            with tf.init_scope():
                ready = find_plan(known.step, request, bar, known=known.schedules)
        return self.make_planned_entry(batch.spec, ready, known.step.training_graph, request)

    def trace(self, batch: Batch, request: Request) -> TracedModel:
        """Traces the model for a batch."""
        with_metrics = request.options.chunk_loss is not None
        return TracedModel.of(
            self.model, batch.spec, prefetched_bytes=batch.prefetched_bytes, with_metrics=with_metrics
        )

    def resize_compiled(self, batch: Batch, request: Request, bar: PlanningBar) -> XlaStep | None:
        """Resizes a step that XLA compiled for another spec, without compiling it; None where none is alike."""
        with_metrics = request.options.chunk_loss is not None
        alike = [known.step for key, known in self.compiled.items() if key[1] == with_metrics]
        compiled = [step for step in alike if isinstance(step, XlaStep)]
        if not compiled or (batch.spec.key, with_metrics) in self.compiled:
            return None
        bar.begin_stage("tracing the step")
        traced = self.trace(batch, request)
        for step in compiled:
            with contextlib.suppress(UnsupportedModelError), tf.init_scope():
                return traced.resize(step)
        return None

    def plan_entry(self, batch: Batch, request: Request) -> Entry:
        """Plans now what batches of this one's spec run."""
        with plan_alone(), show_planning(shown=request.progress) as bar:
            known = self.trace_step(batch, request, bar)
            with tf.init_scope():
                ready = find_plan(known.step, request, bar, known=known.schedules)
        return self.make_planned_entry(batch.spec, ready, known.step.training_graph, request)

    def trace_step(self, batch: Batch, request: Request, bar: PlanningBar, *, reserve: bool = True) -> KnownStep:
        """Traces the step of this batch's spec, ready to be planned; `reserve` as for GraphStep."""
        key = (batch.spec.key, request.options.chunk_loss is not None)
        if key in self.compiled:
            return self.compiled[key]
        bar.begin_stage("tracing the step")
        traced = self.trace(batch, request)
        with tf.init_scope():
            return self.make_step(traced, batch if request.measure else None, reserve=reserve)

    def make_step(self, traced: TracedModel, batch: Batch | None, *, reserve: bool) -> KnownStep:
        """Makes the traced step, and the schedules of other shapes that it may follow too."""
        if self.model.jit_compile:
            known = KnownStep(traced.make_xla_step())
            self.compiled[traced.spec.key, traced.with_metrics] = known
            return known
        make = partial(traced.make_graph_step, batch, reserve=reserve)
        for entry in reversed(self.entries.values()):
            if entry.planned is None or entry.training_graph is None:
                continue
            try:
                like = make(like=entry.training_graph)
            except UnsupportedModelError:
                continue
            return KnownStep(like, (entry.planned.schedule,))
        return KnownStep(make())

    def make_planned_entry(
        self, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph | None, request: Request
    ) -> Entry:
        """Makes what batches of a spec run by a plan."""
        function = ready.function
        compiled = self.model.jit_compile
        run = self.compile_run(spec, function, request) if compiled else partial(_run_flat, function)
        return Entry(spec, ready.planned, run, training_graph, {get_current_replica(): function})

    def compile_run(self, spec: BatchSpec, function: EmittedFunction, request: Request) -> Callable[[Any], Any]:
        """Makes what compiles and runs a whole step; a batch is given to it in the one structure that was compiled."""
        part = choose_part(self.model, with_metrics=request.options.chunk_loss is not None)
        compiled = make_training_function(self.model, lambda batch: part.finish(batch, function(*flatten_batch(batch))))
        return lambda batch: compiled(iter([spec.pack(flatten_batch(batch))]))

    def train_replicas(self, data: Any) -> Any:
        """Runs one training step on all replicas."""
        key = tuple(BatchSpec.of(batch).key for batch in split_batch(self.model, data))
        if key not in self.of_replicas:
            self.of_replicas[key] = make_training_function(self.model, self.run_replica_step)
        return self.of_replicas[key](iter([data]))

    def run_replica_step(self, batch: Any) -> Any:
        """Runs one replica's part of a step, as its context traces it."""
        spec, part = BatchSpec.of(batch), choose_part(self.model)
        with self.lock:
            if spec.key not in self.entries:
                with tf.init_scope():
                    zeros = spec.make_zeros()
                self.entries[spec.key] = self.make_entry(zeros)
            entry = self.entries[spec.key]
        if entry.planned is None:
            return self.model.train_step(batch)
        return part.finish(batch, self.get_replica_function(entry)(*flatten_batch(batch)))

    def get_replica_function(self, entry: Entry) -> EmittedFunction:
        """Returns the planned step on the variables of the replica that is traced now."""
        replica = get_current_replica()
        with self.lock:
            if replica not in entry.functions:
                assert entry.planned is not None
                traced, planned = TracedModel.of(self.model, entry.spec), entry.planned
                with tf.init_scope():
                    function = emit(traced.extract(), planned.schedule, ordering=planned.ordering or "chain")
                entry.functions[replica] = function
        return entry.functions[replica]


def _keeps_as_stock(entry: Entry) -> bool:
    """Tells whether the stock step of an entry's spec keeps within the budget."""
    return entry.planned is None or entry.planned.stock.peak_bytes <= entry.planned.budget_bytes


def _find_stock_excess(planned: PlannedStep) -> float:
    """Finds how many times the predicted bytes, beside resident ones, the stock step of a plan takes."""
    resident_bytes = planned.graph.resident_bytes
    return (planned.stock.peak_bytes - resident_bytes) / max(planned.stock.predicted_bytes - resident_bytes, 1)


def _make_and_train(model: keras.Model, iterator: Iterator[Any]) -> Any:
    """Makes the model's train function, and trains with it."""
    model.train_function = None
    model.make_train_function()
    return model.train_function(iterator)


def _run_flat(function: EmittedFunction, batch: Any) -> Any:
    return function.function(*flatten_batch(batch))


def _run_as(entry: Entry, batch: Any) -> Any:
    """Runs an entry on a batch whose integers are of another width."""
    tensors = [tf.cast(tensor, spec.dtype) for tensor, spec in zip(flatten_batch(batch), entry.spec.flat, strict=True)]
    return entry.run(entry.spec.pack(tensors))


def find_installed_step(model: keras.Model) -> InstalledStep | None:
    """Finds what is installed in the model; None where nothing is."""
    return getattr(model.__dict__.get("make_train_function"), "installed", None)
