"""Describes devices that are not here: their properties in CUDA, their makers' figures, and the costs of nodes there.

Costs come from a maker's figures, or from a profile that was exported on the device.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import ProfileError, quote
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.roofline import Roofline
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.tracing.analytic_costs import count_op_flops, is_product
from checkmate_tf.tracing.extraction import TrainingGraph

_PROFILE_FORMAT = "checkmate-profile/1"
_FLOPS_PER_NS = 1000.0  # one TFLOPS
# The time from the start of one tiny kernel to that of the next.
_DISPATCH_NS = 2_000
_HALF = (tf.float16, tf.bfloat16)


@dataclass(frozen=True)
class CudaProperties:
    """The properties of a GPU as CUDA reports them. XLA compiles for these.

    Args:
        name: the name from the driver.
        compute_capability: a pair such as (9, 0).
        memory_bytes: memory of the device.
        num_cores: number of streaming multiprocessors.
        units_per_core: units of each that compute in float32.
        threads_per_core: largest number of threads.
        clock_ghz: highest clock rate.
        l2_bytes: the cache that all cores share.
        shared_bytes_per_core: shared memory of each core.
        shared_bytes_per_block: shared memory that a kernel may request.
    """

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    num_cores: int
    units_per_core: int
    threads_per_core: int
    clock_ghz: float
    l2_bytes: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int


@dataclass(frozen=True)
class DeviceFigures:
    """The rates of a device as its maker states them, for dense products, without sparsity.

    Args:
        name: the maker's name of it.
        product_tflops: rate of products of float32. TensorFlow computes them in TF32 if the card supports it.
        half_tflops: rate of products of float16 and bfloat16.
        vector_tflops: rate of all other operations.
        gbytes_per_s: rate between the device and its memory.
        host_gbytes_per_s: rate between the device's memory and the host's in one direction, over its PCIe bus.
        source: source of these figures.
        cuda: its properties. XLA's own descriptions of H100, A100 and V100 have the same ones.
    """

    name: str
    product_tflops: float
    half_tflops: float
    vector_tflops: float
    gbytes_per_s: float
    host_gbytes_per_s: float
    source: str
    cuda: CudaProperties

    def estimate_cost_ns(self, training_graph: TrainingGraph, node: int, *, compiled: bool) -> int:
        """Returns a roofline's estimate of the cost of a node. If the step is compiled by XLA, it is one kernel."""
        ops = training_graph.get_node_ops(node)
        compute_ns = sum(count_op_flops(op) / (_FLOPS_PER_NS * self._find_tflops(op)) for op in ops)
        described = training_graph.graph.nodes[node]
        values = (*described.inputs, *described.outputs)
        moved_bytes = sum(training_graph.graph.values[value].size_bytes for value in values)
        roofline = Roofline(flops_per_ns=1.0, bytes_per_ns=self.gbytes_per_s, dispatch_ns=_DISPATCH_NS)
        return round(roofline.estimate_cost_ns(compute_ns, moved_bytes, 1 if compiled else len(ops)))

    def _find_tflops(self, op: tf.Operation) -> float:
        if not is_product(op):
            return self.vector_tflops
        return self.half_tflops if op.outputs[0].dtype.base_dtype in _HALF else self.product_tflops


DEVICES: Mapping[str, DeviceFigures] = MappingProxyType(
    {
        "h100": DeviceFigures(
            "NVIDIA H100 SXM", 494.7, 989.4, 66.9, 3350, 64, "NVIDIA H100 data sheet",
            CudaProperties(
                "NVIDIA H100 80GB HBM3", (9, 0), 84_942_979_072, 132, 128, 2048, 1.98, 50 << 20, 228 << 10, 227 << 10
            ),
        ),
        "a100": DeviceFigures(
            "NVIDIA A100 80GB SXM", 156, 312, 19.5, 2039, 32, "NVIDIA A100 data sheet",
            CudaProperties(
                "NVIDIA A100-SXM4-80GB", (8, 0), 85_100_068_864, 108, 64, 2048, 1.41, 40 << 20, 164 << 10, 163 << 10
            ),
        ),
        "l4": DeviceFigures(
            "NVIDIA L4", 60, 121, 30.3, 300, 32, "NVIDIA L4 data sheet",
            CudaProperties("NVIDIA L4", (8, 9), 23_583_784_960, 58, 128, 1536, 2.04, 48 << 20, 100 << 10, 99 << 10),
        ),
        "t4": DeviceFigures(
            "NVIDIA T4", 8.1, 65, 8.1, 320, 16, "NVIDIA Turing whitepaper",
            CudaProperties("Tesla T4", (7, 5), 15_843_721_216, 40, 64, 1024, 1.59, 4 << 20, 64 << 10, 64 << 10),
        ),
        "v100": DeviceFigures(
            "NVIDIA V100 SXM2", 15.7, 125, 15.7, 900, 16, "NVIDIA V100 data sheet",
            CudaProperties(
                "Tesla V100-SXM2-16GB", (7, 0), 16_935_682_048, 80, 64, 2048, 1.53, 6 << 20, 96 << 10, 96 << 10
            ),
        ),
    }
)  # fmt: skip


def find_device(name: str) -> DeviceFigures:
    """Returns a device by its name in `DEVICES`. Raises ProfileError for an unknown one."""
    if not isinstance(name, str) or name not in DEVICES:
        raise ProfileError(f"device {quote(name)} is unknown; it must be one of {', '.join(DEVICES)}")
    return DEVICES[name]


def load_profile(path: str | Path) -> dict[str, float]:
    """Reads a profile that `checkmate-tf profile export` printed: the nanoseconds of each signature.

    Raises ProfileError if the file is missing, is not a profile, or has the profiles of several devices.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read profile {path}: {error}") from error
    profiles = data.get("profiles") if isinstance(data, dict) and data.get("format") == _PROFILE_FORMAT else None
    if not isinstance(profiles, list):
        raise ProfileError(
            f"{path} is not a profile in the format {_PROFILE_FORMAT!r}; export one with `checkmate-tf profile export`"
        )
    if len(profiles) != 1:
        names = ", ".join(str(profile.get("device")) for profile in profiles) or "no device"
        raise ProfileError(f"{path} has the profiles of {names}; keep one of them")
    try:
        return {entry["signature"]: float(entry["cost_ns"]) for entry in profiles[0]["measurements"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"{path} is damaged: {error!r} of a measurement") from error


def find_profiled_costs(training_graph: TrainingGraph, stored: Mapping[str, float], *, source: Any) -> tuple[int, ...]:
    """Returns the cost of each node from a profile, [num_nodes]. Nodes that are not in it cost the start of a kernel.

    Raises ProfileError if most of the step is not in it.
    """
    fragments = cut_node_fragments(training_graph)
    found = [stored.get(cut.signature) if isinstance(cut, Fragment) else None for cut in fragments]
    num_missing = found.count(None)
    if num_missing > len(found) / 2:
        raise ProfileError(
            f"of {len(found)} nodes of {training_graph.graph.name!r} {source} lacks {num_missing}: measure this model "
            "on that device, at this batch size, and export its profile again"
        )
    return tuple(_DISPATCH_NS if cost_ns is None else round(cost_ns) for cost_ns in found)
