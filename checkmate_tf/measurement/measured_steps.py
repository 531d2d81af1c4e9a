"""Runs a training step several times in this process, and restores its variables afterwards."""

import math
import statistics
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
# If peaks differ from step to step, because different operations run at the same time, more steps are measured.
_MOST_MEASURED_STEPS = 8
# A step within its budget runs more often, for at most these seconds: one step in ten may take a larger chunk.
_CONFIRMED_STEPS = 16
_CONFIRMED_S = 2.0
# Two steps are timed in turn at least and at most this often; in between, not again after these seconds.
_LEAST_TIMED_ROUNDS = 3
_TIMED_ROUNDS = 10
_TIMED_S = 2.0
# If the peak is below this share of the prediction, many tensors are too small for the allocator to count. Otherwise,
# allocation records are not used: they miss that a tensor takes over the memory of another, and may exceed the peak.
_MUCH_LESS = 0.8

_planning = threading.RLock()


@contextmanager
def plan_alone() -> Iterator[None]:
    """Keeps other threads of this process from planning within the block, as their memory would count in measurements.

    It also restores TensorFlow's mode, which an interrupt may leave changed.
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
    on_begin: Callable[[], Sequence[Any]] = tuple,
    on_first: Callable[[Sequence[Any], Any], None] | None = None,
) -> StepRun:
    """Runs several steps, restores the variables, and returns the highest peak and the shortest time.

    An interrupt takes effect between two steps, and never while variables are restored.

    Peaks come from the allocator's statistics or, if it keeps none, from the runtime's allocation records. On a CPU,
    the statistics do not count small tensors. The records count, too, if the statistics are far below the prediction,
    and for steps with loops, whose lists may consist of many small tensors. The first step does not count, because it
    prepares the function for all later steps of a training.

    Bytes that steps leave in use count, too. These are constants that TensorFlow computes once and keeps, and the
    unused parts of the chunks that contain variables.

    Args:
        resident_bytes: of arguments and variables. The measured bytes are added to them.
        predicted_bytes: the predicted peak, including resident bytes.
        budget_bytes: no further step runs after one that exceeds it, and more steps run to confirm that none does. None
            if there is no budget to keep.
        on_begin: called before the first step; returns the variables that are not in the device's memory from then on.
        on_first: called after the first step with the values of the variables before it, in host memory, and with its
            results.
    """
    most_bytes = math.inf if budget_bytes is None else budget_bytes - resident_bytes
    with hold_interrupts() as let_interrupt_through, keep_state(function.graph.variables) as before:
        elsewhere = {id(variable) for variable in on_begin()}
        excess_bytes = move_to_fitting_chunks([one for one in function.graph.variables if id(one) not in elsewhere])
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
    """The time of each step, and its peak if the allocator keeps statistics."""

    times_s: tuple[float, ...]
    peaks_bytes: tuple[int, ...]


def _measure_runs(
    function: tf.types.experimental.ConcreteFunction,
    arguments: Sequence[tf.Tensor],
    most_bytes: float,
    let_interrupt_through: Callable[[], None],
) -> _Runs:
    """Runs several steps, until one exceeds `most_bytes`."""
    device = find_default_device()
    counts = measure_allocator_peak_bytes(lambda: None, device=device) is not None
    peaks: list[int] = []
    times: list[float] = []

    def run() -> None:
        let_interrupt_through()
        times.append(_time(lambda: call_flat(function, batch)))

    batch = _copy_tensors(arguments)
    while len(times) < (_MEASURED_STEPS if len(set(peaks)) < 2 else _MOST_MEASURED_STEPS) or (
        peaks and math.isfinite(most_bytes) and len(times) < _CONFIRMED_STEPS and sum(times) < _CONFIRMED_S
    ):
        # As in training, each batch is at another place in memory, and may be made before the previous one is freed.
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


def time_in_turn(
    first: Callable[[], object], second: Callable[[], object], variables: Sequence[Any]
) -> tuple[float, float]:
    """Runs two steps in turn, restores their variables, and returns the time of each, in seconds.

    The time of the second one is that of the first times the median of the ratios of neighbouring runs. On a busy
    machine, this varies far less than the shortest times do. An interrupt takes effect between two steps.
    """
    times: list[list[float]] = []
    began_s = time.perf_counter()
    with hold_interrupts() as let_interrupt_through, keep_state(variables):
        while len(times) < _LEAST_TIMED_ROUNDS or (
            len(times) < _TIMED_ROUNDS and time.perf_counter() - began_s < _TIMED_S
        ):
            found = []
            for step in (first, second):
                let_interrupt_through()
                found.append(_time(step))
            times.append(found)
    first_s = statistics.median(one for one, _ in times)
    return first_s, first_s * statistics.median(other / one for one, other in times)


def _time(step: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    step()
    if not find_default_device().startswith("CPU"):
        tf.test.experimental.sync_devices()
    return time.perf_counter() - began_s


def may_leave_out_small(peak_bytes: int, predicted_bytes: int) -> bool:
    """Returns whether the allocator's peak may lack tensors. On a CPU, the allocator counts none below 256 KiB."""
    return find_default_device().startswith("CPU") and peak_bytes < _MUCH_LESS * predicted_bytes


def record_or_predict(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], predicted_bytes: int
) -> int:
    """Returns the recorded peak.

    If the function captures a resource that cannot be copied, such as a table that it changes, it returns the predicted
    peak.
    """
    try:
        return record_peak_bytes(function, arguments)
    except ProfileError:
        return predicted_bytes


def _copy_tensors(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies tensors. A copied handle of a variable refers to the same variable."""
    return [tensor if tensor.dtype == tf.resource else tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]
