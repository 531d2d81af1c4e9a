"""Runs a training step in place, several times, and puts its state back after."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.measurement.kept_state import keep_state, move_to_fitting_chunks
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes, record_peak_bytes
from checkmate_tf.tf_private import call_flat, keep_mode
from checkmate_tf.tracing.loops import WHILE_TYPES
from checkmate_tf.tracing.semantics import list_reached_op_types

_MEASURED_STEPS = 3
# Where peaks differ from one step to the next, by what runs at the same time, more steps are measured.
_MOST_MEASURED_STEPS = 8
# A peak below this share of the predicted one means that many tensors are too small for the allocator to count. The
# records know nothing of tensors that take over the memory of others, so that they can tell more than a step takes.
_MUCH_LESS = 0.8

_planning = threading.RLock()


@contextmanager
def plan_alone() -> Iterator[None]:
    """Keeps other threads of this process from planning within the block: their memory would count in measurements.

    TensorFlow's mode is put back, which an interrupt may leave changed.
    """
    with _planning, keep_mode():
        yield


def run_steps(
    function: tf.types.experimental.ConcreteFunction,
    arguments: Sequence[tf.Tensor],
    *,
    resident_bytes: int,
    predicted_bytes: int,
    budget_bytes: int | None = None,
    on_first: Callable[[Sequence[Any], Any], None] | None = None,
) -> StepRun:
    """Runs several steps and returns the highest peak and the least time of them; variables are put back.

    An interrupt ends it between two steps, and never while the variables are put back.

    Peaks are by the allocator's statistics; where it keeps none, by the runtime's allocation records. On a CPU the
    statistics leave out what is small: where they say much less than was predicted, and of loops, whose lists may be of
    many small tensors, the records count too. The first step does not count: it prepares what the later ones, those of
    training, find.

    Bytes that the steps leave in use count too: constants that TensorFlow computes ahead and keeps, and the part of the
    chunks in which variables lie that is larger than these.

    Args:
        resident_bytes: of arguments and variables; peaks are what comes on top of these.
        predicted_bytes: the peak, with what is resident.
        budget_bytes: a step that takes more ends the measuring; None to run all steps.
        on_first: told, after the first step, the values of the variables before it, in host memory, and its results.
    """
    most_bytes = math.inf if budget_bytes is None else budget_bytes - resident_bytes
    with hold_interrupts() as let_interrupt_through, keep_state(function.graph.variables) as before:
        excess_bytes = move_to_fitting_chunks(function.graph.variables)
        bytes_before = count_bytes_in_use() - excess_bytes
        results = call_flat(function, arguments)
        if on_first is not None:
            on_first(before, results)
        del results
        runs = _measure_runs(function, arguments, most_bytes, let_interrupt_through)
        held = max(0, count_bytes_in_use() - bytes_before)
    peaks = list(runs.peaks_bytes)
    if (
        not peaks
        or may_leave_out_small(max(peaks), predicted_bytes - resident_bytes)
        or (find_default_device().startswith("CPU") and WHILE_TYPES & list_reached_op_types(function.graph))
    ):
        peaks.append(record_or_predict(function, arguments, predicted_bytes - resident_bytes))
    return StepRun(resident_bytes + held + max(peaks), min(runs.times_s), held)


@dataclass(frozen=True)
class _Runs:
    """The time of each step, and its peak, where the allocator keeps statistics."""

    times_s: tuple[float, ...]
    peaks_bytes: tuple[int, ...]


def _measure_runs(
    function: tf.types.experimental.ConcreteFunction,
    arguments: Sequence[tf.Tensor],
    most_bytes: float,
    let_interrupt_through: Callable[[], None],
) -> _Runs:
    """Runs several steps, until one takes more than `most_bytes`."""
    device = find_default_device()
    counts = measure_allocator_peak_bytes(lambda: None, device=device) is not None
    peaks: list[int] = []
    times: list[float] = []

    def run() -> None:
        let_interrupt_through()
        began_s = time.perf_counter()
        call_flat(function, batch)
        if not device.startswith("CPU"):
            tf.test.experimental.sync_devices()
        times.append(time.perf_counter() - began_s)

    batch = _copy_tensors(arguments)
    while len(times) < (_MEASURED_STEPS if len(set(peaks)) < 2 else _MOST_MEASURED_STEPS):
        # As in training, each batch has a place of its own, and may come before the last one has gone.
        if len(times) % 2:
            batch = []
        batch = _copy_tensors(arguments)
        if not counts:
            run()
            continue
        peaks.append(measure_allocator_peak_bytes(run, device=device) or 0)
        if peaks[-1] > most_bytes:
            break
    return _Runs(tuple(times), tuple(peaks))


def may_leave_out_small(peak_bytes: int, predicted_bytes: int) -> bool:
    """Returns whether the allocator's peak may lack tensors: on a CPU it counts none below 256
    KiB.
    """
    return find_default_device().startswith("CPU") and peak_bytes < _MUCH_LESS * predicted_bytes


def record_or_predict(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], predicted_bytes: int
) -> int:
    """Returns the recorded peak, or the predicted one if the function captures a resource that cannot be copied, such
    as a lookup table.
    """
    try:
        return record_peak_bytes(function, arguments)
    except ProfileError:
        return predicted_bytes


def _copy_tensors(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies tensors; the handle of a variable stays that of the same one."""
    return [tensor if tensor.dtype == tf.resource else tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]
