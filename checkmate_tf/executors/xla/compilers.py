"""Compiles steps with XLA: TensorFlow's for the device of this machine, or JAX's for a GPU that is not here."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.xla import jax_process
from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.backends import GPU, find_backend
from checkmate_tf.executors.xla.hlo.memory import compile_step
from checkmate_tf.measurement.device_memory import find_free_bytes
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.devices import CudaProperties, DeviceFigures
from checkmate_tf.tf_private import HloModuleProto, HloProto, trace

_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_BYTES_PER_GBYTE = 10**9


class Compiler(ABC):
    """Compiles a training step to the module that XLA runs on a device."""

    @property
    @abstractmethod
    def device(self) -> DeviceFigures | None:
        """Returns the device if it is not here; otherwise None."""

    @property
    @abstractmethod
    def backend(self) -> Backend:
        """Returns the backend with the rules by which steps are written for the device."""

    @abstractmethod
    def compile_step(self, step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
        """Compiles a step for arguments of static shapes, without running it.

        Returns the optimized module with its buffer assignment. Raises ValueError or an error of TensorFlow if XLA
        cannot compile the step.
        """

    @abstractmethod
    def find_free_bytes(self) -> int:
        """Returns the free bytes of the device. Raises BudgetError if it does not report them."""


@dataclass(frozen=True)
class LocalCompiler(Compiler):
    """Compiles with TensorFlow for the device of this machine on which training runs."""

    @property
    def device(self) -> None:
        return None

    @property
    def backend(self) -> Backend:
        return find_backend(find_default_device())

    def compile_step(self, step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
        return compile_step(step, specs)

    def find_free_bytes(self) -> int:
        return find_free_bytes(find_default_device(), margin=0.0)


@dataclass(frozen=True)
class AbsentGpuCompiler(Compiler):
    """Compiles with JAX, in a separate process, for a GPU that is not here.

    TensorFlow lowers the step to operations of XLA. The compiler of JAX's CUDA plugin, which needs no GPU, compiles
    them. It does not tune kernels, so the scratch memory of a convolution or product may differ from the device's.
    """

    figures: DeviceFigures

    @property
    def device(self) -> DeviceFigures:
        return self.figures

    @property
    def backend(self) -> Backend:
        return GPU

    def compile_step(self, step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
        if not has_jax():
            raise UnsupportedModelError(
                f"JAX and its CUDA plugin compile steps for {self.figures.name}, which is not here, and are not "
                'installed: pip install "jax[cuda13]"'
            )
        with TemporaryDirectory(prefix="checkmate_tf-") as folder:
            Path(folder, jax_process.MODULE).write_bytes(_lower(step, specs).SerializeToString())
            Path(folder, jax_process.TARGET).write_text(describe_target(self.figures))
            _run_jax(folder)
            return _read_compiled(folder)

    def find_free_bytes(self) -> int:
        return self.figures.cuda.memory_bytes


LOCAL = LocalCompiler()


def choose_compiler(device: DeviceFigures | None) -> Compiler:
    """Returns the compiler for a device that is not here; for None, the compiler for this machine's device."""
    return LOCAL if device is None else AbsentGpuCompiler(device)


def has_jax() -> bool:
    """Returns whether JAX and its CUDA plugin are installed."""
    return find_spec("jax") is not None and find_spec("jax_plugins") is not None and any(map(find_spec, _PLUGINS))


def describe_target(figures: DeviceFigures) -> str:
    """Returns the description of a GPU for XLA: a `GpuTargetConfigProto` as text."""
    cuda: CudaProperties = figures.cuda
    major, minor = cuda.compute_capability
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024
          threads_per_warp: 32
          shared_memory_per_block: {48 << 10}
          shared_memory_per_core: {cuda.shared_bytes_per_core}
          shared_memory_per_block_optin: {cuda.shared_bytes_per_block}
          threads_per_core_limit: {cuda.threads_per_core}
          core_count: {cuda.num_cores}
          fpus_per_core: {cuda.units_per_core}
          block_dim_limit_x: {2**31 - 1}
          block_dim_limit_y: {2**16 - 1}
          block_dim_limit_z: {2**16 - 1}
          memory_bandwidth: {int(figures.gbytes_per_s * _BYTES_PER_GBYTE)}
          l2_cache_size: {cuda.l2_bytes}
          clock_rate_ghz: {cuda.clock_ghz}
          device_memory_size: {cuda.memory_bytes}
          cuda_compute_capability {{ major: {major} minor: {minor} }}
          registers_per_core_limit: {2**16}
          registers_per_block_limit: {2**16}
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 8 }}
        runtime_version {{ major: 13 }}
        device_description_str: "{cuda.name}"
    """


def _lower(step: Any, specs: Sequence[tf.TensorSpec]) -> HloModuleProto:
    """Lowers a step to a module of XLA before optimization, with its aliases of arguments and results.

    TensorFlow lowers it for this machine's device, because it lowers steps with variables for no other device.
    """
    function = tf.function(step, jit_compile=True, autograph=False)
    trace(function, specs)
    module = HloModuleProto.FromString(function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "copy":  # StableHLO, which JAX compiles, has no copies; XLA adds those it needs.
                instruction.opcode = "reshape"
    return module


def _run_jax(folder: str) -> None:
    """Compiles the module in a folder. Raises ValueError, with the reason, if XLA does not compile it."""
    messages = Path(folder, "messages.txt")
    # JAX must not look for a GPU or its driver. The user's XLA_FLAGS are for TensorFlow's XLA.
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with messages.open("wb") as output:
        process = start_process(jax_process.__name__, folder, output=output, environment=environment, folder=folder)
        try:
            status = process.wait()
        finally:
            end_process(process)
    if status != 0:
        lines = messages.read_text(errors="replace").strip().splitlines() or ["it wrote no error message"]
        raise ValueError(f"JAX ended with status {status}: {lines[-1]}")


def _read_compiled(folder: str) -> HloProto:
    """Reads the module that JAX compiled. A GPU's module has no buffer assignment, only sums of bytes."""
    module = HloProto()
    module.hlo_module.ParseFromString(Path(folder, jax_process.COMPILED).read_bytes())
    sums = json.loads(Path(folder, jax_process.MEMORY).read_text())
    buffers = module.buffer_assignment.buffer_allocations
    buffers.add(size=sums["temporary_bytes"])
    buffers.add(size=sums["output_bytes"] - sums["alias_bytes"], maybe_live_out=True)
    buffers.add(size=sums["argument_bytes"], is_entry_computation_parameter=True)
    return module
