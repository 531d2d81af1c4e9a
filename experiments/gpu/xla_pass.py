"""XLA's own rematerialization beside ours: both compiled for an H100 that is not there, at equal peak.

    python -m experiments.gpu.xla_pass [--model NAME ...]

XLA recomputes what does not fit in the device's memory. Each model's stock step is compiled for H100s of less and less
memory, which gives the least peak that XLA's pass reaches. `rematerialize` then plans the step for that peak. Added
kernels are those of the compiled module beyond those of the stock step as it is compiled with all of the memory. Added
products (convolutions and products of matrices), and added bytes that kernels read and write, are counted in the same
way. Nothing runs; JAX and its CUDA plugin must be installed. Rows that are in the results are not computed again.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.compilers import AbsentGpuCompiler
from checkmate_tf.executors.xla.hlo.kernels import count_bytes, list_kernels, list_product_names
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.reports.plan import Plan
from checkmate_tf.tf_private import HloProto
from checkmate_tf.training.traced_model import trace_model
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart
from experiments.xla.rows import table_of
from experiments.xla.table import MODELS, build, keep_modules

RESULTS = RESULTS_FOLDER / "gpu_xla_pass.csv"
# The device's memory, of the stock step's peak.
SHARES = (1.0, 0.8, 0.65, 0.5)
COLUMNS = (
    "model", "stock_bytes", "stock_kernels", "stock_products", "stock_moved_bytes", "memory_bytes", "xla_bytes",
    "xla_added_kernels", "xla_added_products", "xla_added_moved_bytes", "xla_rematerialized", "our_bytes",
    "our_added_kernels", "our_added_products", "our_added_moved_bytes", "our_recomputed", "our_overhead",
    "least_known_bytes",
)  # fmt: skip
_LIBRARY_PRODUCTS = ("__cudnn$conv", "__cublas$")
_NO_WORK = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})
_tabulate = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    points: list[Point] = [{"model": name} for name in parser.parse_args().model]
    print(table(run_apart("experiments.gpu.xla_pass", points, RESULTS, COLUMNS)))


def table(rows: Sequence[Row]) -> str:
    """Counts of the models on which our plan does no more than XLA's pass, and all rows, in markdown."""
    planned = [row for row in rows if row["our_bytes"]]

    def count(ours: str, of_xla: str) -> int:
        return sum(int(row[ours]) <= int(row[of_xla]) for row in planned)

    added = {what: count(f"our_added_{what}", f"xla_added_{what}") for what in ("kernels", "products", "moved_bytes")}
    return (
        f"Of {len(planned)} models, our plan takes no more memory on {count('our_bytes', 'xla_bytes')}, recomputes no "
        f"more operations on {count('our_recomputed', 'xla_rematerialized')}, adds no more kernels on "
        f"{added['kernels']}, no more products on {added['products']}, and moves no more bytes on "
        f"{added['moved_bytes']}.\n\n{_tabulate(rows)}"
    )


def compute(point: Point) -> dict[str, Any]:
    """A row: the least peak of XLA's pass, and our plan for it."""
    model, arguments = build(point["model"])
    traced = trace_model(model, **{name: value for name, value in arguments.items() if name in ("data", "batch_size")})
    step, figures = traced.complete(EmittedFunction(traced.function)), DEVICES["h100"]

    def compile_with(memory_bytes: int) -> Any:
        smaller = replace(figures, cuda=replace(figures.cuda, memory_bytes=memory_bytes))
        return AbsentGpuCompiler(smaller).compile_step(step, traced.spec.flat)

    stock = compile_with(figures.cuda.memory_bytes)
    stock_bytes = read_xla_memory(stock).peak_bytes
    found = {int(share * stock_bytes): compile_with(int(share * stock_bytes)) for share in SHARES}
    memory_bytes = min(found, key=lambda memory: (read_xla_memory(found[memory]).peak_bytes, -memory))
    least = found[memory_bytes]
    row = {
        **{f"stock_{name}": count for name, count in count_work(stock).items()},
        "stock_bytes": stock_bytes,
        "memory_bytes": memory_bytes,
        "xla_bytes": read_xla_memory(least).peak_bytes,
        **_compare("xla", least, stock),
        "xla_rematerialized": sum(".remat" in instruction.name for instruction in _list_entry(least)),
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
    ours = modules[-1 - peaks[::-1].index(plan.peak_bytes)]
    return row | {
        "our_bytes": plan.peak_bytes,
        **_compare("our", ours, stock),
        "our_recomputed": sum(one.times for one in plan.recomputed),
        "our_overhead": plan.overhead,
    }


def count_work(module: HloProto) -> dict[str, int]:
    """Counts a module's kernels, those of convolutions and products, and the bytes that all of them read and write."""
    entry = {instruction.id: instruction for instruction in _list_entry(module)}
    running = [instruction for instruction in entry.values() if instruction.opcode not in _NO_WORK]
    return {
        "kernels": len(list_kernels(module)),
        "products": len(list_product_names(module))
        + sum(instruction.custom_call_target.startswith(_LIBRARY_PRODUCTS) for instruction in running),
        "moved_bytes": sum(
            count_bytes(entry[number].shape)
            for instruction in running
            for number in (instruction.id, *instruction.operand_ids)
        ),
    }


def _compare(whose: str, module: HloProto, stock: HloProto) -> dict[str, int]:
    base = count_work(stock)
    return {f"{whose}_added_{name}": count - base[name] for name, count in count_work(module).items()}


def _list_entry(module: HloProto) -> Sequence[Any]:
    hlo = module.hlo_module
    return next(part.instructions for part in hlo.computations if part.id == hlo.entry_computation_id)


if __name__ == "__main__":
    main()
