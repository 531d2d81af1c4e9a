"""Compiles what export_stablehlo.py wrote for an H100, on a machine that has none: the memory that XLA takes, no times.

    python compile_for_h100.py FOLDER --output RESULTS_FOLDER

Needs JAX with its CUDA plugin (`pip install "jax[cuda13]"`). XLA tunes nothing here, so that a convolution or product
may be given other scratch memory than on the device. Writes what run_jax.py does, for steps alone.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from jax._src import xla_bridge
from jax.experimental import topologies
from run_jax import Module, describe, describe_array, make_function, read_memory, write_compiled

# As XLA describes the device; from an issue of its repository.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 13 minor: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results"))
    args = parser.parse_args()
    manifest = json.loads((args.folder / "manifest.json").read_text())
    args.output.mkdir(parents=True, exist_ok=True)
    device = make_device()
    document = {"device": "H100, not there", "jax": jax.__version__, "environment": manifest["environment"]}
    document |= {"format": "checkmate-stablehlo-results/3", "results": [], "failed": []}
    for module in (module for module in manifest["modules"] if "signature" not in module):
        start = time.monotonic()
        compiled = compile_for(device, args.folder, module)
        write_compiled(args.output, module, compiled)
        document["results"].append({**describe(module), **read_memory(compiled)})
        (args.output / "results.json").write_text(json.dumps(document, indent=1))
        print(f"{module['name']}: compiled in {time.monotonic() - start:.0f} s", file=sys.stderr)


def make_device() -> Any:
    """A sharding on an H100 that JAX takes for present."""
    known = xla_bridge.canonicalize_platform
    # JAX asks a device that is there for the name of its platform.
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name == "gpu" else known(name)
    topology = topologies.get_topology_desc(platform="cuda", target_config=_H100, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def compile_for(device: Any, folder: Path, module: Module) -> Any:
    arguments = [describe_array(jax, argument) for argument in module["arguments"]]
    arguments = [jax.ShapeDtypeStruct(given.shape, given.dtype, sharding=device) for given in arguments]
    function = make_function(jax, folder, module, platforms=["cuda"])
    return jax.jit(function, out_shardings=device).lower(*arguments).compile()


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
