"""XLA's own rematerialization beside ours: both compiled for an H100 that is not there, at equal peak.

    python -m experiments.gpu.xla_pass [--model NAME ...]

XLA recomputes what does not fit in the device's memory. Each model's stock step is compiled for H100s of less and less
memory, which gives the least peak that XLA's pass reaches. `rematerialize` then plans the step for that peak. Added
kernels are those of the compiled module beyond those of the stock step as it is compiled with all of the memory.
Nothing runs; JAX and its CUDA plugin must be installed. Rows that are in the results are not computed again.
"""

import argparse
from dataclasses import replace
from typing import Any

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.compilers import AbsentGpuCompiler
from checkmate_tf.executors.xla.hlo.kernels import list_kernels
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.reports.plan import Plan
from checkmate_tf.training.traced_model import trace_model
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.rows import table_of
from experiments.xla.table import MODELS, build, keep_modules

RESULTS = RESULTS_FOLDER / "gpu_xla_pass.csv"
# The device's memory, of the stock step's peak.
SHARES = (1.0, 0.8, 0.65, 0.5)
COLUMNS = (
    "model", "stock_bytes", "stock_kernels", "memory_bytes", "xla_bytes", "xla_added_kernels", "xla_rematerialized",
    "our_bytes", "our_added_kernels", "our_recomputed", "our_overhead", "least_known_bytes",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    points: list[Point] = [{"model": name} for name in parser.parse_args().model]
    print(table(run_apart("experiments.gpu.xla_pass", points, RESULTS, COLUMNS)))


def compute(point: Point) -> dict[str, Any]:
    """A row: the least peak of XLA's pass, and our plan for it."""
    model, arguments = build(point["model"])
    traced = trace_model(model, **{name: value for name, value in arguments.items() if name in ("data", "batch_size")})
    step, figures = traced.complete(EmittedFunction(traced.function)), DEVICES["h100"]

    def compile_with(memory_bytes: int) -> Any:
        smaller = replace(figures, cuda=replace(figures.cuda, memory_bytes=memory_bytes))
        return AbsentGpuCompiler(smaller).compile_step(step, traced.spec.flat)

    stock = compile_with(figures.cuda.memory_bytes)
    stock_bytes, stock_kernels = read_xla_memory(stock).peak_bytes, len(list_kernels(stock))
    found = {int(share * stock_bytes): compile_with(int(share * stock_bytes)) for share in SHARES}
    memory_bytes = min(found, key=lambda memory: (read_xla_memory(found[memory]).peak_bytes, -memory))
    least = found[memory_bytes]
    row = {
        "stock_bytes": stock_bytes,
        "stock_kernels": stock_kernels,
        "memory_bytes": memory_bytes,
        "xla_bytes": read_xla_memory(least).peak_bytes,
        "xla_added_kernels": len(list_kernels(least)) - stock_kernels,
        "xla_rematerialized": sum(
            ".remat" in instruction.name
            for instruction in next(
                part for part in least.hlo_module.computations if part.id == least.hlo_module.entry_computation_id
            ).instructions
        ),
    }
    modules = keep_modules()
    options = checkmate_tf.Options(device="h100")
    try:
        plan = checkmate_tf.rematerialize(model, budget=row["xla_bytes"], progress=False, options=options, **arguments)
    except InfeasibleBudgetError as error:
        row |= {"error": str(error), "least_known_bytes": error.least_budget_bytes}
        if error.closest is None:
            return row
        plan = Plan(error.closest.planned)
    peaks = [read_xla_memory(module).peak_bytes for module in modules]
    ours = modules[peaks.index(plan.peak_bytes)]
    return row | {
        "our_bytes": plan.peak_bytes,
        "our_added_kernels": len(list_kernels(ours)) - stock_kernels,
        "our_recomputed": sum(one.times for one in plan.recomputed),
        "our_overhead": plan.overhead,
    }


if __name__ == "__main__":
    main()
