"""Runs a training step in a process of its own: running out of memory there, or being killed, is an answer.

The step is handed over as a SavedModel, with its variables, so that the process needs none of the caller's code; it
runs on a batch of zeros. The process starts while the step is still being saved, so that it can remove what was saved
should this one end first.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.measurement.device_memory import reserve_pool
from checkmate_tf.measurement.measured_steps import may_leave_out_small, record_or_predict
from checkmate_tf.measurement.step_run import ProcessRun
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.tf_private import trace

# Peaks differ from step to step: by what runs at the same time, and by where the variables' new values lie in the pool.
_STEPS = 3
_OUT_OF_MEMORY = "out of memory"
_MODEL, _RESULT = "model", "result.json"
_LOOK_S = 0.01
# An allocator that gives up leaves one of these words behind where the process does not survive it.
_SIGNS_OF_NO_MEMORY = ("bad_alloc", "OOM when allocating", "RESOURCE_EXHAUSTED", "Out of memory", "MemoryError")


def run_step_apart(
    step: Any,
    specs: Sequence[tf.TensorSpec],
    variables: Sequence[Any],
    *,
    resident_bytes: int,
    predicted_bytes: int,
    timeout_s: float,
) -> ProcessRun:
    """Runs a step of flat tensors four times in a new process; the first time is not measured.

    Args:
        step: a Python function of tensors, or a ConcreteFunction.
        specs: of its arguments, static.
        variables: Keras's or TensorFlow's, at least all that it reads or writes.
        resident_bytes: of variables and batch, added to what the allocator counts beside them.
        predicted_bytes: the peak, with what is resident.
        timeout_s: after so long the process is ended, and that is the answer.

    Raises UnsupportedModelError where the step cannot be handed over, or fails for another reason than memory.
    """
    with TemporaryDirectory(prefix="checkmate_tf-") as folder:
        errors = Path(folder, "errors.txt")
        try:
            with errors.open("wb") as output:
                process = start_process(
                    __name__, folder, str(predicted_bytes - resident_bytes), output=output, folder=folder
                )
        except OSError as error:
            raise UnsupportedModelError(
                f"the training step cannot run in a separate process: {error}; pass measure=False to predict only"
            ) from error
        try:
            _save(step, specs, variables, folder)
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return ProcessRun(failure=f"did not end within {timeout_s:g} s")
        finally:
            end_process(process)
        return _read_answer(folder, status, errors.read_text(errors="replace"), resident_bytes)


def _read_answer(folder: str, status: int, errors: str, resident_bytes: int) -> ProcessRun:
    result = Path(folder, _RESULT)
    if status == 0 and result.exists():
        found = json.loads(result.read_text())
        if found["failure"]:
            return ProcessRun(failure=found["failure"])
        return ProcessRun(resident_bytes + found["peak_bytes"], found["step_time_s"])
    if any(sign in errors for sign in _SIGNS_OF_NO_MEMORY):
        return ProcessRun(failure=_OUT_OF_MEMORY)
    if status < 0:
        return ProcessRun(failure=f"killed by {signal.Signals(-status).name}")
    last = errors.strip().splitlines()[-1:] or ["it says nothing"]
    raise UnsupportedModelError(
        f"the training step cannot run in a separate process (exit status {status}): {last[0]}; "
        "pass measure=False to predict only"
    )


def _save(step: Any, specs: Sequence[tf.TensorSpec], variables: Sequence[Any], folder: str) -> None:
    module = tf.Module()
    module.step = tf.function(step, autograph=False, input_signature=list(specs))
    concrete = trace(module.step, [])
    # Captured variables must be found on what is saved.
    module.kept = [*(getattr(variable, "_value", variable) for variable in variables), *concrete.graph.variables]
    unfinished = Path(folder, "unfinished")
    try:
        # With a signature, for servers, TensorFlow would generate code in a file that stays where a signal comes.
        tf.saved_model.save(module, str(unfinished), signatures={})
    except (AssertionError, ValueError, TypeError, tf.errors.OpError) as error:
        raise UnsupportedModelError(
            f"the training step cannot be passed to a separate process: {error}; pass measure=False to predict only"
        ) from error
    unfinished.rename(Path(folder, _MODEL))


def _run(folder: str, predicted_bytes: int) -> dict[str, Any]:
    while not Path(folder, _MODEL).exists():
        time.sleep(_LOOK_S)
    reserve_pool()
    loaded = tf.saved_model.load(str(Path(folder, _MODEL)))
    (step,) = loaded.step.concrete_functions
    specs = tf.nest.flatten(step.structured_input_signature)
    device = find_default_device()
    try:
        arguments = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
        step(*arguments)  # traces, compiles, and allocates what is kept for good
        peaks_bytes: list[int] = []
        times_s: list[float] = []
        for _ in range(_STEPS):
            began_s = time.perf_counter()
            peak_bytes = measure_allocator_peak_bytes(lambda: step(*arguments), device=device)
            peaks_bytes += [] if peak_bytes is None else [peak_bytes]
            tf.test.experimental.sync_devices()
            times_s.append(time.perf_counter() - began_s)
        if not peaks_bytes or may_leave_out_small(max(peaks_bytes), predicted_bytes):
            peaks_bytes.append(record_or_predict(step, arguments, predicted_bytes))
    except tf.errors.ResourceExhaustedError:
        return {"failure": _OUT_OF_MEMORY}
    return {"failure": "", "peak_bytes": max(peaks_bytes), "step_time_s": min(times_s)}


def main(arguments: Sequence[str]) -> None:
    """Runs the step saved in a folder, and leaves what it took there."""
    folder, predicted_bytes = arguments
    Path(folder, _RESULT).write_text(json.dumps(_run(folder, int(predicted_bytes))))
    # This skips the interpreter's long way out: nothing is left to save.
    sys.stdout.flush()
    os._exit(0)
