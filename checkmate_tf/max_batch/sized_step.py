"""Traces and runs the training step of a compiled model at any size: of the batch, of images or of sequences."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import keras

from checkmate_tf.arguments import check_size
from checkmate_tf.errors import BatchError, UnsupportedModelError, quote
from checkmate_tf.executors.graph.writer import arrange, emit
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.measurement.process import run_step_apart
from checkmate_tf.measurement.step_run import ProcessRun
from checkmate_tf.planning.options import ChunkRows
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.tf_private import call_flat
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batches import BatchSpec, choose_batch, guess_spec
from checkmate_tf.training.model_variables import build_for, list_training_variables
from checkmate_tf.training.step_part import choose_part, complete_step
from checkmate_tf.training.traced_model import TracedModel, count_resident

AxisName = Literal["batch", "height", "width", "image", "length"]
# The dimensions of an input that each axis sets.
_DIMENSIONS = {"batch": (0,), "height": (1,), "width": (2,), "image": (1, 2), "length": (1,)}


@dataclass(frozen=True)
class Axis:
    """The dimension to enlarge, and the allowed sizes.

    Args:
        name: "batch"; "height", "width" or "image" (both) of images; "length" of sequences.
        minimum: the smallest size allowed; by default that of `multiple_of`.
        maximum: the largest size allowed.
        multiple_of: sizes are multiples of this.

    Raises:
        BatchError: for an unknown name, or if no size is allowed.

    Example:

    >>> Axis("batch", maximum=32, multiple_of=8).list_sizes()
    range(8, 33, 8)
    """

    name: AxisName
    minimum: int | None = None
    maximum: int = 4096
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """Raises BatchError for an unknown name, or if no size is allowed."""
        if not isinstance(self.name, str) or self.name not in _DIMENSIONS:
            raise BatchError(f"axis {quote(self.name)} is unknown; use one of {', '.join(_DIMENSIONS)}")
        self.list_sizes()

    def list_sizes(self) -> range:
        """Lists the sizes allowed. Raises BatchError if there is none."""
        multiple_of, maximum = check_size(self.multiple_of, "multiple_of"), check_size(self.maximum, "maximum")
        minimum = multiple_of if self.minimum is None else check_size(self.minimum, "minimum")
        sizes = range(-(-minimum // multiple_of) * multiple_of, maximum + 1, multiple_of)
        if not sizes:
            raise BatchError(f"no multiple of {multiple_of} lies between minimum {minimum} and maximum {maximum}")
        return sizes


@dataclass(frozen=True, eq=False)
class SizedStep:
    """Traces and runs the step of any size. Nothing is installed in the model.

    Args:
        axis: the dimension of a size.
        batch_size: rows, if the axis is not the batch.
        example: a batch that provides the shapes that the model leaves open.
        chunk_loss, chunk_rows: the loss, and blocks, are computed in chunks of at most so many rows; None if they are
            not.
    """

    model: keras.Model
    axis: AxisName
    batch_size: int | None
    example: BatchSpec | None
    chunk_loss: int | None = None
    chunk_rows: int | None = None

    @staticmethod
    def of(
        model: keras.Model,
        axis: AxisName,
        *,
        batch_size: int | None = None,
        data: Any = None,
        chunk_loss: ChunkRows = None,
        chunk_rows: ChunkRows = None,
    ) -> "SizedStep":
        """Makes a step. Raises BatchError if other sizes are open, or if chunks have no number of rows."""
        for name, rows in (("chunk_loss", chunk_loss), ("chunk_rows", chunk_rows)):
            if rows == "auto":
                raise BatchError(
                    f'{name}="auto" chooses the chunk for one batch, but this function tries many; give a '
                    f"number of rows, such as {name}=512"
                )
        assert chunk_loss != "auto"
        assert chunk_rows != "auto"
        if (axis == "batch") != (batch_size is None):
            raise BatchError(
                f'axis {axis!r} with batch_size={batch_size!r}: pass batch_size for every axis except "batch"'
            )
        example = None if data is None else choose_batch(model, batch_size=batch_size, data=data).spec
        step = SizedStep(model, axis, batch_size, example, chunk_loss, chunk_rows)
        large, larger = step.make_spec(1000), step.make_spec(2000)
        if large.key == larger.key:
            raise BatchError(
                f"model {model.name!r} has no input whose {axis} is open; build it with None for that dimension"
            )
        if axis == "batch" and large.replace_rows(2000).key == larger.key:
            return replace(step, example=large)  # Asking the model for each size would take long.
        return step

    def make_spec(self, size: int) -> BatchSpec:
        """Returns the spec of a batch of a size. Raises BatchError if sizes stay open."""
        if self.batch_size is not None:
            shape = self.example.flat[0].shape if self.example else ()
            open_sizes = {**dict(enumerate(shape)), **dict.fromkeys(_DIMENSIONS[self.axis], size)}
            return guess_spec(self.model, self.batch_size, open_sizes)
        if self.example is None:
            return guess_spec(self.model, size)
        return self.example.replace_rows(size)

    def count_resident_bytes(self, size: int, traced: TrainingGraph | None = None) -> ResidentBytes:
        """Returns the bytes that are always held. `traced` is the step of any size, if there is one already."""
        if traced is None:
            return self.trace_model(size).resident
        return count_resident(self.model, self.make_spec(size), traced.function)

    def trace_model(self, size: int) -> TracedModel:
        """Traces the step of a size."""
        spec = self.make_spec(size)
        build_for(self.model, spec)
        traced = TracedModel.of(self.model, spec, with_metrics=self.chunk_loss is not None)
        return traced.chunk(self.chunk_loss, self.chunk_rows)

    def trace(self, size: int, like: TrainingGraph | None = None) -> TrainingGraph:
        """Traces the training graph of a size, with analytic costs and the nodes and values of `like`.

        Raises UnsupportedModelError if the step has other operations than that of `like`.
        """
        traced = self.trace_model(size)
        try:
            return traced.extract(like=like)
        except UnsupportedModelError as error:
            if like is None:
                raise
            raise UnsupportedModelError(
                f"model {self.model.name!r} at {self.axis} {size}: {error}, so that its sizes cannot be modelled. "
                "Remove what depends on the size from call(), or plan each size with rematerialize"
            ) from error

    def complete(self, size: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns a function that completes a function of a size's flat batch to the whole step."""
        part = choose_part(self.model, with_metrics=self.chunk_loss is not None)
        return partial(complete_step, part, self.make_spec(size))

    def run(self, size: int, graph: TrainingGraph, schedule: Schedule | None, *, timeout_s: float) -> ProcessRun:
        """Runs the whole step of a size in a process of its own.

        Args:
            graph: the traced graph of the step of that size.
            schedule: a schedule of its nodes; None for the stock step.
        """
        function = graph.function if schedule is None else emit(graph, arrange(graph, schedule)).function
        simulation = simulate_stock(graph.graph) if schedule is None else simulate(graph.graph, schedule)
        return run_step_apart(
            lambda *tensors: call_flat(function, tensors),
            self.make_spec(size).flat,
            list_training_variables(self.model),
            resident_bytes=self.count_resident_bytes(size, graph).total,
            predicted_bytes=simulation.peak_bytes,
            timeout_s=timeout_s,
        )
