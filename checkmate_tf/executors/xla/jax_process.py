"""Compiles a module with JAX for a GPU that is not here. `compilers.AbsentGpuCompiler` runs it in a separate process.

It reads a module of XLA and the description of the GPU from files in a folder, and writes the compiled module and the
bytes of its buffers there. JAX has no public function for this, so this file uses private names of JAX 0.10.2, which
may differ in other versions.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODULE, TARGET, COMPILED, MEMORY = "module.pb", "target.txt", "compiled.pb", "memory.json"
# Without a GPU, kernels cannot be timed.
_FLAGS = [("xla_gpu_autotune_level", "0")]


def main(arguments: Sequence[str]) -> None:
    """Compiles the module in the folder that is the one argument."""
    folder = Path(arguments[0])
    compiled = compile_module((folder / MODULE).read_bytes(), (folder / TARGET).read_text())
    memory = compiled.get_compiled_memory_stats()
    (folder / COMPILED).write_bytes(compiled.hlo_modules()[0].as_serialized_hlo_module_proto())
    found = {
        "temporary_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "host_bytes": memory.host_temp_size_in_bytes,
    }
    (folder / MEMORY).write_text(json.dumps(found))


def compile_module(serialized: bytes, target: str) -> Any:
    """Compiles a serialized `HloModuleProto` for the GPU of a `GpuTargetConfigProto`.

    Returns an executable, which cannot run.
    """
    from jax.experimental import topologies
    from jax.interpreters.mlir import ir, make_ir_context
    from jaxlib import _jax, xla_client

    text = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(serialized))
    with make_ir_context():
        module = ir.Module.parse(text)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.env_option_overrides = _FLAGS
    devices: Any = topologies.get_topology_desc("", "cuda", target_config=target, topology="1x1x1").devices
    return devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
