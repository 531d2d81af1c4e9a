"""Measures the cost of copying values to a file or to host memory and back, and adds it to the values to be copied."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.graph.transfer_file import TransferFile
from checkmate_tf.executors.step import HostMemory, OffloadFolder
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tracing.extraction import TrainingGraph

# TensorFlow's allocator on the CPU does not count smaller tensors, and a call of Python takes longer than their copy.
LEAST_BYTES = 256 << 10
_MEASURED_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20
_NUM_PASSES = 3
# The time to call Python from a step, and to start a copy between a GPU and the host, not counting the copy.
_CALL_NS = 100_000
_START_NS = 20_000


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """The rates at which values are copied out of memory and back, and the time before a copy begins.

    `copies_hide` is that of `Graph`: a GPU computes while it copies, but a CPU that copies to a file computes less.
    """

    out_bytes_per_s: float
    back_bytes_per_s: float
    start_ns: int = _CALL_NS
    copies_hide: bool = False

    def find_offload_ns(self, size_bytes: int) -> int:
        """Returns the time of a copy out."""
        return self.start_ns + round(1e9 * size_bytes / self.out_bytes_per_s)

    def find_fetch_ns(self, size_bytes: int) -> int:
        """Returns the time of a copy back."""
        return self.start_ns + round(1e9 * size_bytes / self.back_bytes_per_s)


@cache
def measure_transfers(place: OffloadFolder | HostMemory) -> TransferCosts:
    """Measures the rates of a place, once in a process, unless it has a given rate.

    Raises OffloadError if a folder cannot be written.
    """
    kind = (_CALL_NS, False) if isinstance(place, OffloadFolder) else (_START_NS, True)
    if place.bytes_per_s is not None:
        return TransferCosts(place.bytes_per_s, place.bytes_per_s, *kind)
    copy_out, copy_back = (
        _prepare_file(place.path) if isinstance(place, OffloadFolder) else _prepare_host(find_default_device())
    )
    return TransferCosts(_measure_rate(copy_out), _measure_rate(copy_back), *kind)


def _measure_rate(copy: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_NUM_PASSES):
        began = time.perf_counter()
        copy()
        times_s.append(time.perf_counter() - began)
    return _MEASURED_BYTES / min(times_s)


def _prepare_file(directory: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns copies like those of a step, which read tensors that are in no cache and write to new memory."""
    file = TransferFile(directory, _MEASURED_BYTES)
    source = np.ones(_MEASURED_BYTES, dtype=np.uint8)

    def run(make: Callable[[int], Callable[[np.ndarray], object]], array: np.ndarray) -> None:
        for offset in range(0, _MEASURED_BYTES, _PIECE_BYTES):
            make(offset)(array[offset : offset + _PIECE_BYTES])
        file.check()

    return (
        lambda: run(file.make_offload, source),
        lambda: run(file.make_fetch, np.empty(_MEASURED_BYTES, dtype=np.uint8)),
    )


def _prepare_host(device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    held = {}
    for name in (device, "CPU:0"):
        with tf.device(name):
            held[name] = tf.ones(_MEASURED_BYTES // 4)

    def run(source: str, target: str) -> None:
        with tf.device(target):
            tf.identity(held[source])
        tf.test.experimental.sync_devices()

    return partial(run, device, "CPU:0"), partial(run, "CPU:0", device)


def add_transfer_costs(training_graph: TrainingGraph, costs: TransferCosts) -> TrainingGraph:
    """Returns the graph with costs of transfers for the values that can be copied: large ones of one plain tensor."""
    values = list(training_graph.graph.values)
    for number, value in enumerate(values):
        size_bytes = value.size_bytes
        if size_bytes >= LEAST_BYTES and _is_plain(training_graph, number):
            out_ns, back_ns = costs.find_offload_ns(size_bytes), costs.find_fetch_ns(size_bytes)
            values[number] = replace(value, offload_cost=out_ns, fetch_cost=back_ns)
    graph = replace(training_graph.graph, values=tuple(values), copies_hide=costs.copies_hide)
    return replace(training_graph, graph=graph)


def _is_plain(training_graph: TrainingGraph, value: int) -> bool:
    tensors = training_graph.get_value_tensors(value)
    return len(tensors) == 1 and _has_bytes(tensors[0])


def _has_bytes(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is an array of known size."""
    return tensor.dtype.is_numpy_compatible and tensor.dtype != tf.string and tensor.shape.is_fully_defined()
