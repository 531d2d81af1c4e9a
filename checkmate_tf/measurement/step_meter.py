"""Measures each training step while Keras trains: `StepMeter`, for the demo, experiments and tests.

Users have `MemoryReport`, which also reads plans and budgets.
"""

import time
from typing import Any

import keras

from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.memory import read_peak_bytes, reset_peak_bytes


class StepMeter(keras.callbacks.Callback):
    """Records the time of each training step, and the peak of the allocator, which must keep statistics.

    Args:
        base_bytes: bytes that are subtracted from peaks; by default, those in use when a step begins.
    """

    def __init__(self, base_bytes: int | None = None) -> None:
        super().__init__()
        self.base_bytes = base_bytes
        self.times_s: list[float] = []
        self.peaks_bytes: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins the measurement of a step."""
        reset_peak_bytes(find_default_device())
        self._before_bytes = count_bytes_in_use() if self.base_bytes is None else self.base_bytes
        self._began_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records time and peak of the step."""
        self.times_s.append(time.perf_counter() - self._began_s)
        self.peaks_bytes.append(read_peak_bytes(find_default_device()) - self._before_bytes)
