"""What a training holds and does, step by step: the allocator's peaks, CPU seconds, losses, and bytes of its data."""

import time
from contextlib import suppress
from typing import Any

import numpy as np

_STEP_S = 0.05


def data_bytes(model: Any, arguments: dict[str, Any]) -> int:
    """What `fit` holds of the data beside the batches that the budget covers: this one and those prefetched."""
    import gc

    from checkmate_tf.training.batches import BatchSpec
    from checkmate_tf.training.installed_step import find_installed_step
    from checkmate_tf.training.prefetched import count_prefetched_batches

    batches_bytes: list[int] = []

    def take_all(iterator: Any) -> None:
        for batch in iterator:
            batches_bytes.append(BatchSpec.of(batch).size_bytes)
            time.sleep(_STEP_S)  # in which `fit` makes further batches ready
        raise InterruptedError  # not an error of training: nothing is trained

    installed, before = vars(model).pop("make_train_function", None), bytes_in_use()
    forget_peak()
    model.make_train_function = lambda force=False: setattr(model, "train_function", take_all)
    with suppress(InterruptedError):
        model.fit(**arguments, verbose=0)
    held_bytes = peak_bytes() - before
    del model.make_train_function
    model.train_function = None
    if installed is not None:
        model.make_train_function = installed
    gc.collect()
    step = find_installed_step(model)
    newest = None if step is None else step.batches.newest
    prefetched_bytes = None if newest is None else newest.prefetched_bytes
    if prefetched_bytes is None:
        prefetched_bytes = count_prefetched_batches() * max(batches_bytes)
    return max(0, held_bytes - max(batches_bytes) - prefetched_bytes)


def steps_recorded() -> Any:
    """A callback that keeps peak, CPU seconds and loss of each step, and the optimizer's state after the first."""
    import keras

    class Steps(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.peaks: list[int] = []
            self.cpu_s: list[float] = []
            self.losses: list[float] = []
            self.first_state: list[np.ndarray] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            forget_peak()
            self.started_s = time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.cpu_s.append(time.process_time() - self.started_s)
            self.peaks.append(peak_bytes())
            self.losses.append(float(logs["loss"]))
            self.first_state = self.first_state or as_arrays(self.model.optimizer.variables)

    return Steps()


def as_arrays(variables: Any) -> list[np.ndarray]:
    """Copies of the variables that hold real numbers."""
    arrays = [np.array(each.numpy(), "float64") for each in variables if "float" in each.dtype]
    return [each for each in arrays if each.size]


def forget_peak() -> None:
    import tensorflow as tf

    tf.config.experimental.reset_memory_stats("CPU:0")


def peak_bytes() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def bytes_in_use() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])
