"""Measures the cost of copying values to a file and back, and adds it to the values that may be copied."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.graph.transfer_file import TransferFile
from checkmate_tf.executors.step import OffloadFolder
from checkmate_tf.tracing.extraction import TrainingGraph

# TensorFlow's allocator on the CPU does not count smaller tensors, and a call of Python takes longer than their copy.
LEAST_BYTES = 256 << 10
_MEASURED_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20
_NUM_PASSES = 3
# The time to call Python from a step, not counting the copy.
_CALL_NS = 100_000


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """The rates at which values are copied out of memory and back."""

    out_bytes_per_s: float
    back_bytes_per_s: float

    def find_offload_ns(self, size_bytes: int) -> int:
        """Returns the time of a copy out."""
        return _CALL_NS + round(1e9 * size_bytes / self.out_bytes_per_s)

    def find_fetch_ns(self, size_bytes: int) -> int:
        """Returns the time of a copy back."""
        return _CALL_NS + round(1e9 * size_bytes / self.back_bytes_per_s)


@cache
def measure_transfers(folder: OffloadFolder) -> TransferCosts:
    """Measures the rates of a folder, once in a process, unless the folder has a given rate.

    Raises OffloadError if the folder cannot be written.
    """
    if folder.bytes_per_s is not None:
        return TransferCosts(folder.bytes_per_s, folder.bytes_per_s)
    file = TransferFile(folder.path, _MEASURED_BYTES)
    piece = np.ones(_PIECE_BYTES, dtype=np.uint8)
    rates = []
    for make in (file.make_offload, file.make_fetch):
        times_s = []
        for _ in range(_NUM_PASSES):
            began = time.perf_counter()
            for offset in range(0, _MEASURED_BYTES, _PIECE_BYTES):
                _run(make, offset, piece)
            times_s.append(time.perf_counter() - began)
        file.check()
        rates.append(_MEASURED_BYTES / min(times_s))
    return TransferCosts(*rates)


def _run(make: Callable[[int], Callable[[np.ndarray], object]], offset_bytes: int, piece: np.ndarray) -> None:
    make(offset_bytes)(piece)


def add_transfer_costs(training_graph: TrainingGraph, costs: TransferCosts) -> TrainingGraph:
    """Returns the graph with costs of transfers for the values that can be copied: large ones of one plain tensor."""
    values = list(training_graph.graph.values)
    for number, value in enumerate(values):
        size_bytes = value.size_bytes
        if size_bytes >= LEAST_BYTES and _is_plain(training_graph, number):
            out_ns, back_ns = costs.find_offload_ns(size_bytes), costs.find_fetch_ns(size_bytes)
            values[number] = replace(value, offload_cost=out_ns, fetch_cost=back_ns)
    return replace(training_graph, graph=replace(training_graph.graph, values=tuple(values)))


def _is_plain(training_graph: TrainingGraph, value: int) -> bool:
    tensors = training_graph.get_value_tensors(value)
    return len(tensors) == 1 and _has_bytes(tensors[0])


def _has_bytes(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is an array of known size."""
    return tensor.dtype.is_numpy_compatible and tensor.dtype != tf.string and tensor.shape.is_fully_defined()
