"""Runs a training step in place and puts its state back after; tells what memory the device has left."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf import process_memory
from checkmate_tf.errors import BudgetError
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes, record_peak_bytes
from checkmate_tf.profiling.pool import CPU_POOL_MIN_BYTES
from checkmate_tf.tf_private import call_flat, find_memory_limit, keep_mode
from checkmate_tf.tracing.loops import WHILE_TYPES
from checkmate_tf.tracing.semantics import list_reached_op_types

_MEASURED_STEPS = 3
# Where peaks differ from one step to the next, by what runs at the same time, more steps are measured.
_MOST_MEASURED_STEPS = 8
# A peak below this share of the predicted one means that many tensors are too small for the allocator to count. The
# records know nothing of tensors that take over the memory of others, so that they can tell more than a step takes.
_MUCH_LESS = 0.8
# Kernels' scratch and what lies between chunks come on top of what a step asks for.
_RESERVED_PER_STEP = 1.5
# TensorFlow uses arrays in place whose address is a multiple of this (EIGEN_MAX_ALIGN_BYTES).
_ALIGNMENT = 64

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
    most = math.inf if budget_bytes is None else budget_bytes - resident_bytes
    on_cpu = find_default_device().startswith("CPU")
    counts = measure_allocator_peak_bytes(lambda: None, device=find_default_device()) is not None
    peaks: list[int] = []
    times: list[float] = []

    def run() -> None:
        let_interrupt_through()
        began = time.perf_counter()
        call_flat(function, batch)
        if not on_cpu:
            tf.test.experimental.sync_devices()
        times.append(time.perf_counter() - began)

    with hold_interrupts() as let_interrupt_through, keep_state(function.graph.variables) as before:
        excess_bytes = move_to_fitting_chunks(function.graph.variables)
        bytes_before = count_bytes_in_use() - excess_bytes
        results = call_flat(function, arguments)
        if on_first is not None:
            on_first(before, results)
        del results
        batch = _copy_tensors(arguments)
        while len(times) < (_MEASURED_STEPS if len(set(peaks)) < 2 else _MOST_MEASURED_STEPS):
            # As in training, each batch has a place of its own, and may come before the last one has gone.
            if len(times) % 2:
                batch = []
            batch = _copy_tensors(arguments)
            if not counts:
                run()
                continue
            peaks.append(measure_allocator_peak_bytes(run, device=find_default_device()) or 0)
            if peaks[-1] > most:
                break
        batch = []
        held = max(0, count_bytes_in_use() - bytes_before)
    if (
        not counts
        or may_leave_out_small(max(peaks), predicted_bytes - resident_bytes)
        or (on_cpu and WHILE_TYPES & list_reached_op_types(function.graph))
    ):
        peaks.append(record_peak_bytes(function, arguments))
    return StepRun(resident_bytes + held + max(peaks), min(times), held)


def may_leave_out_small(peak_bytes: int, predicted_bytes: int) -> bool:
    """Returns whether the allocator's peak may lack tensors: on a CPU it counts none below 256
    KiB.
    """
    return find_default_device().startswith("CPU") and peak_bytes < _MUCH_LESS * predicted_bytes


def count_bytes_in_use() -> int:
    """Asks the device's allocator for the bytes in use; 0 where it keeps no statistics."""
    try:
        return int(tf.config.experimental.get_memory_info(find_default_device())["current"])
    except (ValueError, RuntimeError, tf.errors.OpError):
        return 0


def reserve_pool(step_bytes: int | None = None) -> int:
    """Reserves one free region in the CPU's pool for a step that takes so many bytes, by default half of what is free.

    The pool grows by regions that double, and a tensor takes the free rest of one whole where that is less than twice
    the tensor: without this, what a step takes depends on all that was allocated before it. Of pages that nothing
    touches only the pool's own table takes memory, 8 bytes in 256. To be called before anything else makes the pool
    grow. Gives the bytes reserved, 0 where that is impossible or the device is no CPU.
    """
    if not find_default_device().startswith("CPU"):
        return 0
    try:
        free = find_free_bytes(find_default_device())
        reserved = free // 2 if step_bytes is None else min(int(_RESERVED_PER_STEP * step_bytes), free)
        tf.raw_ops.Empty(shape=[-(-reserved >> 20), 1 << 20], dtype=tf.uint8, init=False)  # sizes are int32
    except (BudgetError, tf.errors.ResourceExhaustedError):
        return 0
    return reserved


def move_to_fitting_chunks(variables: Sequence[Any]) -> int:
    """Moves variables to chunks of the pool that are about as large as they are.

    Where they were made, beside the temporary tensors of their initializers, they may lie in chunks of nearly twice
    their size, for as long as they live.

    Returns:
        The bytes by which the chunks are larger than the variables.
    """
    counted_from = CPU_POOL_MIN_BYTES if find_default_device().startswith("CPU") else 0
    with keep_state(variables) as values:
        _free(variables)
        bytes_without = count_bytes_in_use()
    chunk_bytes = count_bytes_in_use() - bytes_without
    return max(0, chunk_bytes - sum(value.nbytes for value in values if value.nbytes >= counted_from))


def _copy_tensors(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies tensors; the handle of a variable stays that of the same one."""
    return [tensor if tensor.dtype == tf.resource else tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]


@contextmanager
def keep_state(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Puts the variables back as they were, from copies in host memory, which it yields.

    The pool serves a tensor from any free chunk of less than twice its size whole. An assignment also takes new memory
    before it frees the old, so variables that are assigned again and again lie in ever other chunks, and the same step
    takes more or less. Here all are freed before the first one is put back, small ones first, as these split the free
    chunks that would be too large for others: the state lies in the same chunks each time.
    """
    saved = [_copy_unaligned(np.asarray(variable.numpy())) for variable in variables]
    try:
        yield saved
    finally:
        _free(variables)
        for variable, value in sorted(zip(variables, saved, strict=True), key=lambda pair: pair[1].nbytes):
            _replace(variable, value)


def _free(variables: Sequence[Any]) -> None:
    """Frees the memory of variables, which must then be assigned."""
    for variable in variables:
        if not isinstance(variable, tf.distribute.DistributedValues):
            _replace(variable, tf.zeros([0], variable.dtype))


def _copy_unaligned(array: np.ndarray) -> np.ndarray:
    """Copies an array to a place where TensorFlow does not use it in place.

    An array that happens to be aligned to 64 bytes becomes the memory of the variable that it is assigned to. That lies
    outside of the pool until a step changes the variable, and then comes on top of what the step takes.
    """
    if array.dtype.hasobject:
        return array
    memory = np.empty(array.nbytes + 2 * _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT + _ALIGNMENT // 2
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _replace(variable: Any, value: Any) -> None:
    """Assigns a tensor or an array of any shape to a variable."""
    if isinstance(variable, tf.distribute.DistributedValues):
        variable.assign(value)
    else:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def find_free_bytes(device: str, *, margin: float = 0.1) -> int:
    """Finds how many bytes one more allocation on the device could take, less a margin: a share of them.

    Raises BudgetError where the device does not report it.
    """
    if device.startswith("CPU"):
        free = process_memory.find_free_bytes()
        if free is None:
            raise BudgetError("this system does not report its free memory; give the budget in bytes")
        return int((1 - margin) * free)
    kind, _, index = device.partition(":")
    limit = find_memory_limit(kind, index)
    if limit is not None:
        in_use = tf.config.experimental.get_memory_info(device)["current"]
        return int((1 - margin) * (limit - in_use))
    raise BudgetError(f'{device} does not report its free memory; give the budget in bytes instead of "auto"')
