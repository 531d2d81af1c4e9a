"""Runs what export_stablehlo.py wrote, with JAX alone: times, and the memory that XLA takes.

    python run_jax.py FOLDER --output results.json [--minutes 25] [--platform cpu]

Needs JAX and numpy, not this project. A step gets a process of its own: a device's peak memory cannot be reset. Steps
come first, then nodes; what was measured is written after each module, and no module is begun after the minutes.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP, REPEATS, MAX_S = 2, 20, 3.0
_NOT_KEPT = ("file", "arguments")  # of a module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results.json"))
    parser.add_argument("--minutes", type=float, default=25.0, help="when to end (default: %(default)g)")
    parser.add_argument("--platform", help="such as cpu; by default what JAX finds")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    args = parser.parse_args()
    manifest = json.loads((args.folder / "manifest.json").read_text())
    jax = _jax(args.platform)
    if args.module:
        entry = next(entry for entry in manifest["modules"] if entry["name"] == args.module)
        print(json.dumps(run(jax, args.folder, entry)))
        return
    overhead_ns = call_overhead_ns(jax)
    device = jax.devices()[0]
    document = {
        "format": "checkmate-stablehlo-results/2",
        "device": device.device_kind,
        "platform": device.platform,
        "driver": driver(),
        "jax": jax.__version__,
        "tensorflow": manifest["tensorflow"],
        "batch_size": manifest["batch_size"],
        "overhead_ns": overhead_ns,
        "results": [],
        "failed": [],
    }
    until = time.monotonic() + 60 * args.minutes
    for number, entry in enumerate(manifest["modules"]):
        if time.monotonic() > until:
            print(f"{args.minutes:g} minutes are over: {len(manifest['modules']) - number} left out", file=sys.stderr)
            break
        is_node = "signature" in entry
        try:
            found = run(jax, args.folder, entry) if is_node else run_apart(args, entry["name"])
        except Exception as error:  # one module that this JAX cannot run must not lose the others
            reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            document["failed"].append({"name": entry["name"], "error": reason})
            print(f"{entry['name']}: {reason}", file=sys.stderr)
        else:
            if is_node:
                found["cost_ns"] = max(found["time_ns"] - overhead_ns, 0.0)
            document["results"].append({**{key: entry[key] for key in entry if key not in _NOT_KEPT}, **found})
            print(f"{entry['name']}: {found['time_ns'] / 1e6:.3f} ms", file=sys.stderr)
        args.output.write_text(json.dumps(document, indent=1))


def run_apart(args: argparse.Namespace, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, str(args.folder), "--module", name]
    command += ["--platform", args.platform] if args.platform else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died")
    return json.loads(done.stdout.splitlines()[-1])


def run(jax: Any, folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Median time of a module, and its memory: as XLA plans it, and the device's peak where that is told."""
    arguments = [random_array(jax, argument) for argument in entry["arguments"]]
    compiled = compile_module(jax, (folder / entry["file"]).read_text(), arguments)
    for _ in range(WARM_UP):
        jax.block_until_ready(compiled(*arguments))
    times: list[float] = []
    end = time.perf_counter() + MAX_S
    while len(times) < 3 or (len(times) < REPEATS and time.perf_counter() < end):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    low, _, high = statistics.quantiles(times, n=4)
    memory = compiled.memory_analysis()
    stats = jax.devices()[0].memory_stats() or {}
    median = statistics.median(times)
    return {
        "time_ns": median * 1e9,
        "relative_spread": (high - low) / 2 / median,
        "repeats": len(times),
        "temporary_bytes": getattr(memory, "temp_size_in_bytes", None),
        "argument_bytes": getattr(memory, "argument_size_in_bytes", None),
        "output_bytes": getattr(memory, "output_size_in_bytes", None),
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
    }


def compile_module(jax: Any, text: str, arguments: list[Any]) -> Any:
    """The module, compiled for arguments like these.

    An exported function that does nothing but has the same types is given the module's body: what else an
    Exported holds depends on JAX's version.
    """
    import jax.export
    import jax.numpy as jnp
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with make_ir_context():
        module = ir.Module.parse(text)
        body = next(op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
        outputs = [ir.RankedTensorType(result) for result in ir.FunctionType(body.type).results]
        types = [(tuple(output.shape), _DTYPES[str(output.element_type)]) for output in outputs]
        artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    same_types = jax.jit(lambda *_: tuple(jnp.zeros(*kind) for kind in types), keep_unused=True)
    exported = dataclasses.replace(jax.export.export(same_types)(*arguments), mlir_module_serialized=artifact)
    return jax.jit(lambda *inputs: exported.call(*inputs)).lower(*arguments).compile()


_DTYPES = {
    "i1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "ui64": "uint64",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}


def random_array(jax: Any, argument: dict[str, Any]) -> Any:
    """Floats from 0.1 to 1.1, integers below the argument's limit, on the device."""
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    dtype = jnp.dtype(argument["dtype"])
    if jnp.issubdtype(dtype, jnp.floating):
        values = random.random(argument["shape"], dtype=np.float32) + np.float32(0.1)
    else:
        values = random.integers(0, max(argument["limit"], 1), argument["shape"])
    return jax.device_put(jnp.asarray(values).astype(dtype))


def call_overhead_ns(jax: Any) -> float:
    """The time of calling a compiled function that does next to nothing."""
    import jax.numpy as jnp

    function = jax.jit(lambda x: x + 1)
    one = jnp.ones(())
    times = []
    for _ in range(200):
        start = time.perf_counter()
        function(one).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times[50:]) * 1e9


def driver() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "none"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _jax(platform: str | None) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    if platform:
        jax.config.update("jax_platforms", platform)
    return jax


if __name__ == "__main__":
    main()
