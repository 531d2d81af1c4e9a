"""Installs planned steps in a model: Keras's `fit` and `train_on_batch` then run them.

Keras passes each batch to `model.train_function`. The installed train function looks up the batch's shape, and calls
the function that was planned and measured for it. All ways of training call the same function.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.keras_private import make_training_function
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import PlannedStep, ReadyStep
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batches import Batch, BatchSpec, drop_optionals, flatten_batch
from checkmate_tf.training.entry import Entry
from checkmate_tf.training.model_checks import check_model
from checkmate_tf.training.model_variables import return_state
from checkmate_tf.training.planned_batches import PlannedBatches
from checkmate_tf.training.replicas import count_replicas, get_current_replica, split_batch
from checkmate_tf.training.step_part import choose_part
from checkmate_tf.training.traced_model import TracedModel
from checkmate_tf.user_warnings import warn

_TENSORFLOW_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


class InstalledStep:
    """The train function of one model, which runs the step that was planned for each batch.

    `batches` are the steps that batches of each spec run. `of_replicas` are the steps of all replicas, by the keys of
    their batches. `last_entry` is the step of the last batch; None before the first batch, and if several replicas
    train.
    """

    def __init__(self, model: keras.Model, request: Request):
        self.model = model
        self.batches = PlannedBatches.of(model, request)
        self.of_replicas: dict[tuple[str, ...], Callable[[Any], Any]] = {}
        self.last_entry: Entry | None = None
        self.lock = threading.RLock()

    def plan(self, batch: Batch, request: Request) -> PlannedStep:
        """Plans for the batch's spec, and for as many further specs of its data as the request asks for.

        After an error in any of these plans, the steps stay as they were.
        """
        with self.lock:
            self.note_changes()
            batches = self.batches.copy()
            planned = batches.plan(batch, request)
            for smaller in batch.smaller[: request.options.num_shapes - 1]:
                batches.plan_smaller(smaller)
            self.batches = batches
            return planned

    def take(self, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph, request: Request) -> None:
        """Makes batches of a spec run a step that was planned elsewhere."""
        with self.lock:
            self.batches.take(spec, ready, training_graph, request)

    def install(self) -> None:
        """Makes `fit` and `train_on_batch` run the planned steps."""

        def make_train_function(force: bool = False) -> None:
            self.make_train_function(force=force)

        make_train_function.installed = self  # type: ignore[attr-defined]
        self.drop_train_function()  # first, so that at any moment the model trains either as before or as planned
        self.model.make_train_function = make_train_function
        self.model.__reduce__ = self.reduce_model

    def remove(self) -> None:
        """Restores Keras's own training."""
        return_state(self.model)
        self.drop_train_function()
        del self.model.make_train_function, self.model.__reduce__

    def drop_train_function(self) -> None:
        """Makes the model rebuild its train function at the next batch, even during `fit`."""
        if self.model.train_function is not None:
            self.model.train_function = partial(_make_and_train, self.model)

    def reduce_model(self) -> Any:
        """Pickles the model without the installed step, after a warning. Keras pickles a model when it saves one."""
        warn(
            f"a pickled copy of model {self.model.name!r} trains with the stock step, without a memory budget: call "
            "rematerialize on the copy"
        )
        of_class: Any = type(self.model)
        return of_class.__reduce__(self.model)

    def make_train_function(self, *, force: bool) -> None:
        """Sets the model's train function. Keras calls this before it trains; after `compile` there is none."""
        model = self.model
        if model.train_function is not None and not force:
            return
        if model.run_eagerly:
            warn(
                f"model {model.name!r} runs eagerly, with its stock training step, without a memory budget; compile it "
                "with run_eagerly=False to train within the budget"
            )
            model.train_function = self.batches.stock
            return
        check_model(model)
        self.note_changes()
        model.train_function = self

    def note_changes(self) -> None:
        """Drops the steps of the model as it was compiled before, if that changed, and remembers their plans."""
        before = self.batches
        self.batches = before.start_over()
        if self.batches is not before:
            self.of_replicas = {}

    def __call__(self, iterator: Iterator[Any]) -> Any:
        """Trains on the next `steps_per_execution` batches of an iterator. Returns the logs of the last one."""
        logs = None
        for number in range(self.model.steps_per_execution):
            try:
                batch = next(iterator)
            except StopIteration:
                if number:
                    break
                self.run_without_batch(iterator)
                raise
            # A dataset prefetches batches; on a CPU, they are in the memory of the plan.
            is_ahead = isinstance(iterator, _TENSORFLOW_ITERATORS) and find_default_device().startswith("CPU")
            logs = self.train(batch, is_ahead=is_ahead)
        return logs

    def run_without_batch(self, iterator: Iterator[Any]) -> None:
        """Runs Keras's own step on an iterator without further data, as `fit` does at the end of an epoch.

        TensorFlow runs all operations of that step that do not wait for the batch before it reports the end. They
        advance the states of random numbers and the optimizer's iterations, and count rows if all batches have the same
        number. A step that XLA compiles, and steps within one execution, begin only with a batch. On several devices,
        the end of the data may stop some of these operations, so that two stock runs differ, too.

        Raises tf.errors.OutOfRangeError if the iterator is one of TensorFlow's.
        """
        starts_at_once = self.model.steps_per_execution == 1 and not self.model.jit_compile
        if starts_at_once and isinstance(iterator, _TENSORFLOW_ITERATORS):
            self.batches.stock(iterator)

    def train(self, data: Any, *, is_ahead: bool) -> Any:
        """Runs one training step, and returns its logs. With `is_ahead`, other batches are prefetched meanwhile."""
        batch = drop_optionals(data)
        if count_replicas(self.model) > 1:
            return self.train_replicas(batch)
        spec = BatchSpec.of(batch)
        with self.lock:
            entry = self.batches.find(Batch(spec, tuple(flatten_batch(batch))), is_ahead=is_ahead)
        self.last_entry = entry
        return entry.run(batch)

    def train_replicas(self, data: Any) -> Any:
        """Runs one training step on all replicas."""
        key = tuple(BatchSpec.of(batch).key for batch in split_batch(self.model, data))
        if key not in self.of_replicas:
            self.of_replicas[key] = make_training_function(self.model, self.run_replica_step)
        return self.of_replicas[key](iter([data]))

    def run_replica_step(self, batch: Any) -> Any:
        """Runs one replica's part of a step, in the trace of its context."""
        spec, part = BatchSpec.of(batch), choose_part(self.model)
        with self.lock:
            entry = self.batches.entries.get(spec.key)
            if entry is None:
                with tf.init_scope():
                    zeros = spec.make_zeros()
                entry = self.batches.plan_first(zeros)
        if entry.planned is None:
            return self.model.train_step(batch)
        return part.finish(batch, self.get_replica_function(entry, entry.planned)(*flatten_batch(batch)))

    def get_replica_function(self, entry: Entry, planned: PlannedStep) -> EmittedFunction:
        """Returns the planned step on the variables of the replica that is being traced."""
        replica = get_current_replica()
        with self.lock:
            if replica not in entry.functions:
                traced = TracedModel.of(self.model, entry.spec)
                with tf.init_scope():
                    function = emit(traced.extract(), planned.schedule, ordering=planned.ordering or "chain")
                entry.functions[replica] = function
        return entry.functions[replica]


def _make_and_train(model: keras.Model, iterator: Iterator[Any]) -> Any:
    """Makes the model's train function, and trains with it."""
    model.train_function = None
    model.make_train_function()
    return model.train_function(iterator)


def find_installed_step(model: keras.Model) -> InstalledStep | None:
    """Returns the step that is installed in the model; None if there is none."""
    return getattr(model.__dict__.get("make_train_function"), "installed", None)
