"""Estimates the time of a node by a roofline: from its floating-point operations and bytes, at measured rates."""

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from checkmate_tf.profiling.cache import DeviceKey, ProfileCache
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.profiling.profiler import measure_fragment
from checkmate_tf.profiling.signature import Fragment, cut_fragments

_MATRIX_SIZE = 1024
_VECTOR_SIZE = 1 << 24
_DISPATCH_SIZE = 16


@dataclass(frozen=True)
class Roofline:
    """The highest rates of a device, and the time that it takes to start an operation.

    This is the model of Williams, Waterman and Patterson (2009), with the start added.
    """

    flops_per_ns: float
    bytes_per_ns: float
    dispatch_ns: float

    def estimate_cost_ns(self, flops: float, moved_bytes: int, num_kernels: int) -> float:
        """Returns the time of a node that computes `flops`, moves `moved_bytes` and starts `num_kernels` kernels."""
        return max(flops / self.flops_per_ns, moved_bytes / self.bytes_per_ns) + num_kernels * self.dispatch_ns


def calibrate_roofline(*, cache_path: Path | str | None = None, device: str | None = None) -> Roofline:
    """Measures the rates of a device in three runs: a large matrix product, a large sum of vectors, and a tiny one.

    The cache keeps these runs like those of any node.
    """
    device = device or find_default_device()
    key = make_device_key(device)
    product, total, tiny = _make_calibration_fragments()
    with ProfileCache(cache_path) as cache:
        costs = [_measure_cost_ns(cache, key, fragment, device) for fragment in (product, total, tiny)]
    return Roofline(
        flops_per_ns=2 * _MATRIX_SIZE**3 / max(costs[0], 1.0),
        bytes_per_ns=3 * 4 * _VECTOR_SIZE / max(costs[1], 1.0),
        dispatch_ns=costs[2],
    )


def _make_calibration_fragments() -> list[Fragment]:
    with tf.Graph().as_default() as graph:
        matrix = tf.compat.v1.placeholder(tf.float32, [_MATRIX_SIZE, _MATRIX_SIZE])
        other = tf.compat.v1.placeholder(tf.float32, [_MATRIX_SIZE, _MATRIX_SIZE])
        product = tf.linalg.matmul(matrix, other)
        sums = []
        for size in (_VECTOR_SIZE, _DISPATCH_SIZE):
            left, right = (tf.compat.v1.placeholder(tf.float32, [size]) for _ in range(2))
            sums.append(left + right)
    fragments = cut_fragments(graph, [[tensor.op] for tensor in (product, *sums)])
    return [fragment for fragment in fragments if isinstance(fragment, Fragment)]


def _measure_cost_ns(cache: ProfileCache, key: DeviceKey, fragment: Fragment, device: str) -> float:
    measurement, _ = cache.get_or_measure(key, fragment.signature, lambda: measure_fragment(fragment, device))
    return measurement.cost_ns
