"""Traces the training step of a compiled model for a batch: the one way from a model to a step that can be planned.

`prepare_batch` chooses the batch and creates the model's variables. `TracedModel.of` traces the step that trains on
that batch. Its resident bytes, its graph, and the step that an executor runs all come from that one trace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.executors.xla.compilers import choose_compiler
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.profiling.devices import DeviceFigures
from checkmate_tf.rewriting.chunks import find_block_regions, find_loss_region, write_chunks
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.training.batches import Batch, BatchSpec, choose_batch, count_tensor_bytes, describe_batch
from checkmate_tf.training.model_checks import check_model, check_traceable
from checkmate_tf.training.model_variables import build_for, list_training_variables, return_state
from checkmate_tf.training.prefetched import count_prefetched_batches
from checkmate_tf.training.replicas import check_distribution, count_replicas, get_scope, trace_on_replica
from checkmate_tf.training.step_part import StepPart, choose_part, complete_step, make_gradient_part


@dataclass(frozen=True, eq=False)
class TracedModel:
    """The training step of a model, traced for batches of one spec.

    It reads the variables of `model`, so it is of no use without it.

    Args:
        part: the rewritten part of the step, and the part that stays Keras's.
        function: the part that is rewritten, as a function of the flat batch.
        resident: the bytes that the whole step always holds.
        with_metrics: all of the step is rewritten, under XLA, too.
        unchunked: the part as it was traced, if `function` computes some of it in chunks; otherwise None.
    """

    model: keras.Model
    spec: BatchSpec
    part: StepPart
    function: tf.types.experimental.ConcreteFunction
    resident: ResidentBytes
    with_metrics: bool = False
    unchunked: tf.types.experimental.ConcreteFunction | None = None

    @staticmethod
    def of(
        model: keras.Model, spec: BatchSpec, *, prefetched_bytes: int | None = None, with_metrics: bool = False
    ) -> "TracedModel":
        """Traces the step of a model that has all its variables, on the replica that is being traced or on the first.

        Do not call it in an init scope, which stops gradient tapes.

        Args:
            prefetched_bytes: of other batches that `fit` holds; by default, the most that it holds of arrays.
            with_metrics: as for `choose_part`.

        Raises UnsupportedModelError for a distributed model whose step cannot be rewritten replica by replica.
        """
        check_distribution(model, has_own_step=make_gradient_part(model) is None)
        return_state(model)
        part = choose_part(model, with_metrics=with_metrics)
        function = trace_on_replica(model, lambda: part.trace(spec))
        resident = count_resident(model, spec, function, prefetched_bytes)
        return TracedModel(model, spec, part, function, resident, with_metrics)

    def chunk(self, chunk_loss: int | None, chunk_rows: int | None) -> "TracedModel":
        """Returns the step with its loss, and its blocks, in chunks of at most these rows; None leaves them whole.

        Raises UnsupportedModelError if they cannot be computed in chunks.
        """
        function = self.function
        if chunk_loss is not None:
            function = write_chunks(function, [find_loss_region(function)], chunk_loss).function
        if chunk_rows is not None:
            function = write_chunks(function, find_block_regions(function), chunk_rows).function
        return self if function is self.function else replace(self, function=function, unchunked=self.function)

    def extract(self, *, like: TrainingGraph | None = None) -> TrainingGraph:
        """Extracts the graph of the rewritten part, with analytic costs; `like` as for `extract`."""
        graph = extract(self.function, name=self.model.name, resident_bytes=self.resident.total, like=like)
        return replace(graph, traced=self.unchunked)

    @property
    def complete(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns a function that makes the whole step of a flat batch from a function that replaces the traced one."""
        return partial(complete_step, self.part, self.spec)

    def make_graph_step(
        self, batch: Batch | None = None, *, like: TrainingGraph | None = None, reserve: bool = True
    ) -> GraphStep:
        """Makes the step that the graph executor runs.

        Args:
            batch: the batch on which it runs; None if it must not run.
            like, reserve: as for `GraphStep`.
        """
        return GraphStep.of(
            self.function,
            name=self.model.name,
            resident=self.resident,
            arguments=None if batch is None else batch.tensors,
            like=like,
            is_made_up=batch is not None and batch.is_made_up,
            reserve=reserve,
        )

    def make_xla_step(self, device: DeviceFigures | None = None) -> XlaStep:
        """Makes the step that XLA compiles, for a device that is not here or, by default, for this machine's.

        Raises UnsupportedModelError if XLA does not compile it.
        """
        compiler = choose_compiler(device)
        return XlaStep.of(self.extract(), self.complete, self.spec.flat, resident=self.resident, compiler=compiler)

    def resize(self, step: XlaStep) -> XlaStep:
        """Returns the step of this spec from one that XLA compiled for another spec, without compiling it.

        Raises UnsupportedModelError if the operations of the two steps differ.
        """
        graph = self.extract(like=step.training_graph)
        return step.resize(graph, self.complete, self.spec.flat, resident=self.resident)


def prepare_batch(model: keras.Model, *, batch_size: int | None, data: Any, is_run: bool = True) -> Batch:
    """Checks a model, chooses the batch on which it would train, and creates the variables of its first step.

    Args:
        batch_size, data: as in `rematerialize`.
        is_run: whether the step is to run on the batch. Otherwise, the batch has no tensors.

    Raises UnsupportedModelError or BatchError if the model's step cannot be traced.
    """
    check_traceable(model, has_data=data is not None)
    choose = choose_batch if is_run else describe_batch
    with get_scope(model):
        batch = choose(model, batch_size=batch_size, data=data)
        build_for(model, batch.spec)
        check_model(model)
    return batch


def trace_model(model: keras.Model, *, batch_size: int | None = None, data: Any = None) -> TracedModel:
    """Traces the step of a compiled model that `rematerialize` plans for the same arguments, without running it.

    Raises UnsupportedModelError or BatchError if `rematerialize` would.
    """
    batch = prepare_batch(model, batch_size=batch_size, data=data, is_run=False)
    return TracedModel.of(model, batch.spec, prefetched_bytes=batch.prefetched_bytes)


def count_resident(
    model: keras.Model,
    spec: BatchSpec,
    function: tf.types.experimental.ConcreteFunction,
    prefetched_bytes: int | None = None,
) -> ResidentBytes:
    """Returns the bytes that are held throughout a step.

    They include variables that only a step of the user's own uses, such as those of a second optimizer.
    `prefetched_bytes` are those of other batches that `fit` holds; by default, the most that it holds of arrays.
    """
    weights = {id(variable): variable for variable in model.variables}
    optimizer = {id(variable): variable for variable in model.optimizer.variables if id(variable) not in weights}
    others = [v for v in list_training_variables(model) if id(v) not in weights and id(v) not in optimizer]
    known = {id(variable.value) for variable in list_training_variables(model)}
    if count_replicas(model) == 1:
        others += [variable for variable in function.graph.variables if id(variable) not in known]
    if prefetched_bytes is None:
        prefetched_bytes = count_prefetched_batches() * spec.size_bytes
    return ResidentBytes(
        sum(map(count_tensor_bytes, weights.values())),
        sum(map(count_tensor_bytes, optimizer.values())),
        sum(map(count_tensor_bytes, others)),
        spec.size_bytes,
        prefetched_bytes,
    )
