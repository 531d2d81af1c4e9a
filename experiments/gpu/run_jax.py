"""Runs what export_stablehlo.py wrote, with JAX alone: times, and the memory that XLA takes.

    python run_jax.py FOLDER --output RESULTS_FOLDER [--minutes 25] [--jobs 8] [--platform cpu]

Needs JAX and numpy, not this project. Steps are compiled several at a time into a cache, the stock ones first, for what
XLA tunes on the device is then the same for all. Each runs in a process of its own: a device's peak memory cannot be
reset. Nodes come last. What was measured is written after each module, with what each step was compiled to, and no
module is begun after the minutes.
"""

import argparse
import dataclasses
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

WARM_UP, REPEATS, MAX_S, TRACED = 2, 20, 3.0, 5
_NOT_KEPT = ("file", "arguments")  # of a module
Module = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--minutes", type=float, default=25.0, help="when to end (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=8, help="modules to compile at a time (default: %(default)s)")
    parser.add_argument("--platform", help="such as cpu; by default what JAX finds")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    manifest = json.loads((args.folder / "manifest.json").read_text())
    args.output.mkdir(parents=True, exist_ok=True)
    if args.module:
        module = next(module for module in manifest["modules"] if module["name"] == args.module)
        print(json.dumps(run_step(_jax(args.platform), args, module)))
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        Session(args, manifest).run()


class Session:
    """A session measures the modules of a manifest until its minutes are over."""

    def __init__(self, args: argparse.Namespace, manifest: dict[str, Any]):
        self.args = args
        self.modules: list[Module] = manifest["modules"]
        self.until = time.monotonic() + 60 * args.minutes
        self.jax = _jax(args.platform)
        self.overhead_ns = call_overhead_ns(self.jax)
        self.kernels_ns: dict[str, float] = {}  # of nodes, by name
        device = self.jax.devices()[0]
        self.document: dict[str, Any] = {
            "format": "checkmate-stablehlo-results/3",
            "device": device.device_kind,
            "platform": device.platform,
            "driver": driver(),
            "jax": self.jax.__version__,
            "environment": manifest["environment"],
            "overhead_ns": self.overhead_ns,
            "results": [],
            "failed": [],
        }

    def run(self) -> None:
        steps = [module for module in self.modules if "signature" not in module]
        nodes = [module for module in self.modules if "signature" in module]
        stock = [module for module in steps if module["budget"] == "stock"]
        compiled = [*self.compile_steps(stock), *self.compile_steps([s for s in steps if s not in stock])]
        for module in compiled:
            self.measure(module, partial(self.run_apart, module))
        for start in range(0, len(nodes), 8 * self.args.jobs):
            compiled = list(self.compile_nodes(nodes[start : start + 8 * self.args.jobs]))
            self.kernels_ns |= time_kernels(self.jax, {module["name"]: found for module, found in compiled})
            for module, found in compiled:
                self.measure(module, partial(self.time_node, module, *found))

    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def compile_steps(self, steps: list[Module]) -> Iterator[Module]:
        """Compiles steps into the cache; yields those that can be."""
        began = time.monotonic()
        with ThreadPoolExecutor(self.args.jobs) as pool:
            jobs = [(module, pool.submit(self.run_apart, module, "--compile-only")) for module in steps]
        for module, job in jobs:
            if job.exception() is None:
                yield module
            else:
                self.note_failure(module, job.exception())
        print(f"{len(steps)} steps compiled in {time.monotonic() - began:.0f} s", file=sys.stderr)

    def compile_nodes(self, nodes: list[Module]) -> Iterator[tuple[Module, Any]]:
        def compile_node(module: Module) -> Any:
            arguments = [random_array(self.jax, argument) for argument in module["arguments"]]
            return compile_module(self.jax, self.args.folder, module, arguments), arguments

        if self.is_over():
            return
        with ThreadPoolExecutor(self.args.jobs) as pool:
            jobs = [(module, pool.submit(compile_node, module)) for module in nodes]
        for module, job in jobs:
            if job.exception() is None:
                yield module, job.result()
            else:
                self.note_failure(module, job.exception())

    def time_node(self, module: Module, compiled: Any, arguments: list[Any]) -> dict[str, Any]:
        """Times a node: its kernels where the device tells of them, or the call without what any call takes."""
        found = time_module(self.jax, compiled, arguments)
        cost_ns = self.kernels_ns.get(module["name"], max(found["time_ns"] - self.overhead_ns, 0.0))
        return found | {"cost_ns": cost_ns, "is_of_kernels": module["name"] in self.kernels_ns}

    def measure(self, module: Module, run: Callable[[], dict[str, Any]]) -> None:
        """Measures a module; one that this JAX cannot run must not lose the others."""
        if self.is_over():
            self.note_failure(module, TimeoutError(f"{self.args.minutes:g} minutes are over"))
            return
        try:
            found = run()
        except Exception as error:
            self.note_failure(module, error)
            return
        self.document["results"].append({**describe(module), **found})
        print(f"{module['name']}: {found['time_ns'] / 1e6:.3f} ms", file=sys.stderr)
        self.write()

    def note_failure(self, module: Module, error: BaseException | None) -> None:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
        self.document["failed"].append({"name": module["name"], "error": reason})
        print(f"{module['name']}: {reason}", file=sys.stderr)
        self.write()

    def write(self) -> None:
        (self.args.output / "results.json").write_text(json.dumps(self.document, indent=1))

    def run_apart(self, module: Module, *options: str) -> dict[str, Any]:
        args = self.args
        command = [sys.executable, __file__, str(args.folder), "--output", str(args.output)]
        command += ["--module", module["name"], *options]
        command += ["--platform", args.platform] if args.platform else []
        left_s = max(self.until - time.monotonic(), 1)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left_s)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died")
        return json.loads(done.stdout.splitlines()[-1])


def describe(module: Module) -> Module:
    return {key: module[key] for key in module if key not in _NOT_KEPT}


def run_step(jax: Any, args: argparse.Namespace, module: Module) -> dict[str, Any]:
    """Times a step; or only compiles it, and writes what it was compiled to: an HloProto of XLA's."""
    make = describe_array if args.compile_only else random_array
    arguments = [make(jax, argument) for argument in module["arguments"]]
    compiled = compile_module(jax, args.folder, module, arguments)
    if not args.compile_only:
        return time_module(jax, compiled, arguments)
    write_compiled(args.output, module, compiled)
    return {}


def write_compiled(folder: Path, module: Module, compiled: Any) -> None:
    hlo = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    buffers = compiled.memory_analysis().serialized_buffer_assignment_proto
    (folder / f"{module['name']}.pb.gz").write_bytes(gzip.compress(_field(1, hlo) + _field(3, buffers)))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer: its number, the length of the content, the content."""
    head, length = bytes([number << 3 | 2]), len(content)
    while length > 127:
        head += bytes([length & 127 | 128])
        length >>= 7
    return head + bytes([length]) + content


def time_module(jax: Any, compiled: Any, arguments: list[Any]) -> dict[str, Any]:
    """Median time of a module, and its memory: as XLA plans it, and the device's peak where that is told."""
    for _ in range(WARM_UP):
        jax.block_until_ready(compiled(*arguments))
    times: list[float] = []
    end = time.perf_counter() + MAX_S
    while len(times) < 3 or (len(times) < REPEATS and time.perf_counter() < end):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    low, _, high = statistics.quantiles(times, n=4)
    stats = jax.devices()[0].memory_stats() or {}
    median = statistics.median(times)
    return {
        "time_ns": median * 1e9,
        "relative_spread": (high - low) / 2 / median,
        "repeats": len(times),
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
        **read_memory(compiled),
    }


def read_memory(compiled: Any) -> dict[str, int]:
    """The bytes that XLA's buffer assignment takes."""
    memory = compiled.memory_analysis()
    return {
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
    }


def time_kernels(jax: Any, compiled: dict[str, tuple[Any, list[Any]]]) -> dict[str, float]:
    """What the kernels of each module, by name, take on the device; nothing on one that tells of no kernels."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for executable, arguments in compiled.values():
            jax.block_until_ready(executable(*arguments))
        with jax.profiler.trace(folder, profiler_options=options):
            for executable, arguments in compiled.values():
                for _ in range(TRACED):
                    jax.block_until_ready(executable(*arguments))
        (written,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(written))
        planes = [plane for plane in profile.planes if plane.name.startswith("/device:")]
        for event in (event for plane in planes for line in plane.lines for event in line.events):
            name = str(dict(event.stats).get("hlo_module", "")).removeprefix("jit_")
            if name in compiled:
                found[name] = found.get(name, 0.0) + event.duration_ns / TRACED
    return found


def compile_module(jax: Any, folder: Path, module: Module, arguments: list[Any]) -> Any:
    """The module, compiled for arguments like these."""
    return jax.jit(make_function(jax, folder, module)).lower(*arguments).compile()


def make_function(jax: Any, folder: Path, module: Module, platforms: list[str] | None = None) -> Callable[..., Any]:
    """A function for JAX to compile that is the module, under its name.

    An exported function that does nothing but has the same types is given the module's body: what else an
    Exported holds depends on JAX's version.
    """
    import jax.export as jax_export
    import jax.numpy as jnp
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with make_ir_context():
        parsed = ir.Module.parse((folder / module["file"]).read_text())
        body = next(op for op in parsed.body.operations if str(op.attributes["sym_name"]) == '"main"')
        outputs = [ir.RankedTensorType(result) for result in ir.FunctionType(body.type).results]
        types = [(tuple(output.shape), _DTYPES[str(output.element_type)]) for output in outputs]
        artifact = stablehlo.serialize_portable_artifact(parsed, stablehlo.get_current_version())
    same_types = jax.jit(lambda *_: tuple(jnp.zeros(*kind) for kind in types), keep_unused=True)
    arguments = [describe_array(jax, argument) for argument in module["arguments"]]
    exported = jax_export.export(same_types, platforms=platforms)(*arguments)
    exported = dataclasses.replace(exported, mlir_module_serialized=artifact)

    def call(*inputs: Any) -> Any:
        return exported.call(*inputs)

    call.__name__ = module["name"]
    return call


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


def describe_array(jax: Any, argument: dict[str, Any]) -> Any:
    return jax.ShapeDtypeStruct(tuple(argument["shape"]), jax.numpy.dtype(argument["dtype"]))


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
