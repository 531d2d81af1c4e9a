"""Runs a training step in a separate process, so that the caller survives if the step runs out of memory.

The step is passed as a SavedModel with its variables, so that the process needs none of the caller's code. It runs on a
batch of zeros. The process starts before the step is saved, so that it can remove the files if the caller ends first.
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

# Peaks differ from step to step, as do the operations that run at the same time and the variables' places in the pool.
_STEPS = 3
_OUT_OF_MEMORY = "out of memory"
_MODEL, _RESULT = "model", "result.json"
_LOOK_S = 0.01
# TensorFlow imports Keras, which imports these packages if they are installed. A saved step needs none of them.
_UNNEEDED = ("matplotlib", "pandas", "sklearn")
# If the process does not survive a failed allocation, its error output contains one of these.
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
    """Runs a step of flat tensors four times in a new process. The first run is not measured.

    Args:
        step: a Python function of tensors, or a ConcreteFunction.
        specs: of its arguments, static.
        variables: Keras's or TensorFlow's; at least all that the step reads or writes.
        resident_bytes: of variables and batch. The measured bytes are added to them.
        predicted_bytes: the predicted peak, including resident bytes.
        timeout_s: after this time, the process is ended, and the result is a failure.

    Raises UnsupportedModelError if the step cannot be passed to the process, or fails for a reason other than memory.
    """
    with TemporaryDirectory(prefix="checkmate_tf-") as folder:
        errors = Path(folder, "errors.txt")
        try:
            with errors.open("wb") as output:
                process = start_process(
                    __name__,
                    folder,
                    str(predicted_bytes - resident_bytes),
                    output=output,
                    folder=folder,
                    without=_UNNEEDED,
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
    last = errors.strip().splitlines()[-1:] or ["the process wrote no error message"]
    raise UnsupportedModelError(
        f"the training step cannot run in a separate process (exit status {status}): {last[0]}; "
        "pass measure=False to predict only"
    )


def _save(step: Any, specs: Sequence[tf.TensorSpec], variables: Sequence[Any], folder: str) -> None:
    module = tf.Module()
    module.step = tf.function(step, autograph=False, input_signature=list(specs))
    concrete = trace(module.step, [])
    # The saved module must refer to all captured variables.
    module.kept = [*(getattr(variable, "_value", variable) for variable in variables), *concrete.graph.variables]
    unfinished = Path(folder, "unfinished")
    try:
        # For a signature, which servers use, TensorFlow generates code in a file that would stay after a signal.
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
        step(*arguments)  # traces, compiles, and allocates memory that is never freed
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
    """Runs the step that is saved in a folder, and writes its peak and time there."""
    folder, predicted_bytes = arguments
    Path(folder, _RESULT).write_text(json.dumps(_run(folder, int(predicted_bytes))))
    # This skips the slow exit of the interpreter, because nothing is left to save.
    sys.stdout.flush()
    os._exit(0)
