"""Determines the step that batches of one spec run: a planned step, or the stock step if it is within the budget."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.keras_private import make_training_function
from checkmate_tf.planning.planned_step import PlannedStep, ReadyStep
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batches import BatchSpec, flatten_batch
from checkmate_tf.training.replicas import get_current_replica
from checkmate_tf.training.step_part import StepPart


@dataclass(frozen=True)
class Entry:
    """The step that batches of one static spec run.

    Args:
        run: runs the step of a batch on one device, and returns its logs.
        planned: the plan of the step; None if the stock step is within the budget without one.
        training_graph: the graph of the plan.
        functions: the emitted function of each replica, made when its step is first traced.
    """

    spec: BatchSpec
    run: Callable[[Any], Any]
    planned: PlannedStep | None = None
    training_graph: TrainingGraph | None = None
    functions: dict[int, EmittedFunction] = field(default_factory=dict)

    @staticmethod
    def of_plan(
        model: keras.Model, part: StepPart, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph | None
    ) -> "Entry":
        """Makes the entry of batches that run a planned step; `part` is the rewritten part of the step.

        State that the step offloads is moved now.
        """
        function = ready.function
        function.on_begin()
        run = _compile(model, part, spec, function) if model.jit_compile else partial(_run_flat, function)
        return Entry(spec, run, ready.planned, training_graph, {get_current_replica(): function})

    @staticmethod
    def of_traced(spec: BatchSpec, stock: EmittedFunction) -> "Entry":
        """Makes the entry of batches that run the stock step, as traced."""
        return Entry(spec, partial(_run_flat, stock))

    @property
    def keeps_as_stock(self) -> bool:
        """Returns whether the stock step of the spec is within the budget."""
        return self.planned is None or self.planned.stock.peak_bytes <= self.planned.budget_bytes

    def convert(self) -> "Entry":
        """Returns an entry that converts batches of other dtypes, and then runs this one."""
        return replace(self, run=partial(_run_as, self))


def _compile(model: keras.Model, part: StepPart, spec: BatchSpec, function: EmittedFunction) -> Callable[[Any], Any]:
    """Returns a function that compiles and runs a whole step. It packs each batch into the compiled structure."""
    compiled = make_training_function(model, lambda batch: part.finish(batch, function(*flatten_batch(batch))))
    return lambda batch: compiled(iter([spec.pack(flatten_batch(batch))]))


def _run_flat(function: EmittedFunction, batch: Any) -> Any:
    function.on_begin()
    logs = function.function(*flatten_batch(batch))
    function.on_end()
    return logs


def _run_as(entry: Entry, batch: Any) -> Any:
    """Runs an entry on a batch of other dtypes."""
    tensors = [tf.cast(tensor, spec.dtype) for tensor, spec in zip(flatten_batch(batch), entry.spec.flat, strict=True)]
    return entry.run(entry.spec.pack(tensors))
