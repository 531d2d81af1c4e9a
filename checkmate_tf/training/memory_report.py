"""Reports the memory of each training step in `fit`: `MemoryReport`, a Keras callback."""

import statistics
import time
from array import array
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.budget import format_bytes
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.planning.planned_step import PlannedStep
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import read_peak_bytes, reset_peak_bytes
from checkmate_tf.training.batches import count_tensor_bytes
from checkmate_tf.training.installed_step import find_installed_step
from checkmate_tf.training.model_checks import check_not_keras_2
from checkmate_tf.training.model_variables import list_training_variables
from checkmate_tf.user_warnings import warn

_MIB = 2**20


class MemoryReport(keras.callbacks.Callback):
    """Adds each training step's peak, budget and time to the logs of `fit`, and prints a summary when training ends.

    The logs contain `peak_mib`, `budget_mib` and `step_s`. Those of an epoch contain its highest peak and its median
    time. The progress bar and `History` show them wherever the callback is in the list. `CSVLogger`, `TensorBoard` and
    other callbacks that read the logs must come after it. A key is left out if its figure is unknown: the budget of a
    model that was not rematerialized, and the peak on a device that does not report it. The callback warns once, at the
    first step above the budget. With `steps_per_execution`, a peak is that of several steps, and a time is their mean.

    On a GPU, a peak is all memory in use on the first one. On a CPU, it is the memory of the model's variables and of
    everything allocated since training began: the step's own tensors, its batch, prefetched batches, and the cache of a
    dataset. Arrays that were passed to `fit` do not count. If a dataset holds more than the batches that a plan allows
    for, the plan's number counts.

    Attributes:
        peak_bytes: the highest peak since training began; None if none is known.
        peak_at: the epoch and the batch of that peak, counted from 0 as Keras does.
        budget_bytes: the budget of the last step; None if it has none.
        num_steps: the number of steps measured since training began.
        num_above: the number of peaks above the budget.

    Example:

    >>> import numpy as np
    >>> hidden = keras.layers.Dense(256, activation="relu")
    >>> model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> report = MemoryReport()
    >>> x, y = np.ones((2048, 64)), np.ones((2048, 1))
    >>> history = model.fit(x, y, batch_size=1024, verbose=0, callbacks=[report])
    >>> report.num_steps, report.budget_bytes, len(history.history["step_s"])
    (2, None, 1)
    >>> print(report)  # doctest: +ELLIPSIS
    memory of 2 training steps: ...
    """

    def __init__(self) -> None:
        super().__init__()
        self._start_over()

    def _start_over(self) -> None:
        self.peak_bytes: int | None = None
        self.peak_at = (0, 0)
        self.budget_bytes: int | None = None
        self.num_steps = self.num_above = 0
        self._steps_s = array("d")
        self._epoch = self._first_of_epoch = self._first_step = 0
        self._epoch_peak_bytes: int | None = None
        self._before_training = self._after_step = 0
        self._before_step: int | None = None
        self._began_s = 0.0
        self._validated = False

    def set_model(self, model: Any) -> None:
        """Takes the model from `fit`. Raises UnsupportedModelError for a model of Keras 2."""
        check_not_keras_2(model)
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Records the memory in use before the first batch is made."""
        self._start_over()
        device = find_default_device()
        if reset_peak_bytes(device) is None:
            remedy = "; set TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow is imported" if _is_cpu() else ""
            warn(f"{device} does not report its peak memory, so MemoryReport logs times only{remedy}")
        self._before_training = self._after_step = count_bytes_in_use()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Excludes memory that validation allocated and still holds from later peaks."""
        if self._validated:
            self._before_training += count_bytes_in_use() - self._after_step
        self._validated = False
        self._epoch, self._first_of_epoch, self._epoch_peak_bytes = epoch, len(self._steps_s), None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Records that validation runs."""
        self._validated = True

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins the measurement of a step."""
        self._first_step = batch
        self._before_step = reset_peak_bytes(find_default_device())
        self._began_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the measurements to the logs of the step."""
        if not _is_cpu():
            tf.test.experimental.sync_devices()
        num_steps = batch - self._first_step + 1
        self._steps_s.append((time.perf_counter() - self._began_s) / num_steps)
        self.num_steps += num_steps
        self.budget_bytes = self._find_budget()
        peak_bytes = self._read_peak()
        self._after_step = count_bytes_in_use()
        _add_figures(logs, peak_bytes, self.budget_bytes, self._steps_s[-1])
        if peak_bytes is None:
            return
        self._epoch_peak_bytes = max(peak_bytes, self._epoch_peak_bytes or 0)
        if self.budget_bytes is not None and peak_bytes > self.budget_bytes:
            self._note_step_above(batch, peak_bytes, self.budget_bytes)
        if self.peak_bytes is None or peak_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at = peak_bytes, (self._epoch, batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the highest peak and the median time to the logs of the epoch."""
        step_s = self._steps_s[self._first_of_epoch :]
        if step_s:
            _add_figures(logs, self._epoch_peak_bytes, self.budget_bytes, statistics.median(step_s))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Prints the summary, unless `fit` is to print nothing."""
        if self.params.get("verbose"):
            print(self)

    def __str__(self) -> str:
        if not self._steps_s:
            return "MemoryReport: no training step was measured yet"
        time_text = f"{statistics.median(self._steps_s):.3g} s a step (median)"
        lines = [f"memory of {self.num_steps} training steps: {self._describe_peak()}; {time_text}"]
        if self.budget_bytes is None:
            lines.append("no memory budget is set: checkmate_tf.rematerialize(model, ..., budget=...) sets one")
        elif self.peak_bytes is not None:
            above = f"{self.num_above} peaks were" if self.num_above != 1 else "1 peak was"
            share = self.peak_bytes / self.budget_bytes
            lines.append(f"budget {format_bytes(self.budget_bytes)}, {share:.1%} of it used; {above} above it")
        return "\n".join(lines)

    def _describe_peak(self) -> str:
        if self.peak_bytes is None:
            return "peak not known on this device"
        epoch, batch = self.peak_at
        return f"peak {format_bytes(self.peak_bytes)}, in batch {batch} of epoch {epoch}"

    def _note_step_above(self, batch: int, peak_bytes: int, budget_bytes: int) -> None:
        self.num_above += 1
        if self.num_above > 1:
            return
        warn(
            f"batch {batch} of epoch {self._epoch} of model {self.model.name!r} used {format_bytes(peak_bytes)}, "
            f"{format_bytes(peak_bytes - budget_bytes)} above its budget of {format_bytes(budget_bytes)}; call "
            "rematerialize with a budget lower by as much"
        )

    def _find_plan(self) -> PlannedStep | None:
        """Returns the plan that the last step followed; None if it followed none, or if its plan is unknown."""
        installed = find_installed_step(self.model)
        entry = None if installed is None else installed.last_entry
        return None if entry is None else entry.planned

    def _find_budget(self) -> int | None:
        plan, installed = self._find_plan(), find_installed_step(self.model)
        if plan is not None:
            return plan.budget_bytes
        # The request of an installed step has its budget in bytes.
        return None if installed is None else int(installed.batches.request.budget)

    def _read_peak(self) -> int | None:
        if self._before_step is None:
            return None
        peak_bytes = read_peak_bytes(find_default_device())
        if not _is_cpu():
            return peak_bytes
        plan, since_training_began = self._find_plan(), peak_bytes - self._before_training
        if plan is None:
            return sum(map(count_tensor_bytes, list_training_variables(self.model))) + since_training_began
        resident = plan.resident
        variable_bytes = resident.parameters + resident.optimizer + resident.other_state
        return min(variable_bytes + since_training_began, resident.total + peak_bytes - self._before_step)


def _is_cpu() -> bool:
    return find_default_device().startswith("CPU")


def _add_figures(logs: dict[str, Any] | None, peak_bytes: int | None, budget_bytes: int | None, step_s: float) -> None:
    """Adds the known figures to the logs that `fit` passes to each callback in turn."""
    if logs is None:
        return
    if peak_bytes is not None:
        logs["peak_mib"] = peak_bytes / _MIB
    if budget_bytes is not None:
        logs["budget_mib"] = budget_bytes / _MIB
    logs["step_s"] = step_s
