"""Peak memory and time of stock and rewritten steps under XLA, with TensorFlow on a GPU.

    python -m experiments.gpu.xla_steps --model resnet50 --batch-size 256 --budgets 80% 60% 40% --output steps.json

A budget is a share of the stock step's peak by XLA's buffer assignment, parameters and batch included; each step gets
a process of its own, because a device's peak cannot always be reset. Runs on a CPU too (slowly: take small batches).
Without TensorFlow on the GPU machine: export_stablehlo.py, run_jax.py and stablehlo_table.py.
"""

import argparse
import contextlib
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from experiments.running import Point, ProcessError, computed_apart

STOCK = "stock"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="one of experiments.profiling.models")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--budgets", nargs="+", default=["80%", "60%", "40%"])
    parser.add_argument("--time-limit-s", type=float, default=120.0, help="of the solver, for each budget")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    args = vars(parser.parse_args())
    budgets, output = args.pop("budgets"), args.pop("output")
    results = [_run_apart({**args, "budget": budget}) for budget in (STOCK, *budgets)]
    output.write_text(
        json.dumps({"model": args["model"], "batch_size": args["batch_size"], "steps": results}, indent=1)
    )
    print(table(results))


def _run_apart(point: Point) -> dict[str, Any]:
    try:
        return computed_apart("experiments.gpu.xla_steps:compute", point)
    except ProcessError as error:
        return {"budget": point["budget"], "error": str(error)}


def compute(point: Point) -> dict[str, Any]:
    """One step: planned where it is not the stock one, then run; the device's peak and the median time."""
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.profiling.device import find_default_device, make_device_key
    from checkmate_tf.training.batches import guess_spec
    from experiments.profiling.models import MODELS

    budget = point["budget"]
    model = MODELS[point["model"]]()
    model.jit_compile = True
    found: dict[str, Any] = {"budget": budget, "device": make_device_key(find_default_device()).device}
    if budget != STOCK:
        plan = checkmate_tf.rematerialize(
            model, batch_size=point["batch_size"], budget=budget, time_limit_s=point["time_limit_s"]
        )
        found |= {
            "stock_compiled_bytes": plan.stock_peak_bytes,
            "budget_bytes": plan.budget_bytes,
            "predicted_bytes": plan.predicted_peak_bytes,
            "compiled_bytes": plan.measured_peak_bytes,
            "overhead": plan.overhead,
        }
    spec = guess_spec(model, point["batch_size"])
    batch = spec.pack(spec.make_zeros().tensors)
    model.train_on_batch(*batch)  # compiles
    no_statistics = (ValueError, RuntimeError, tf.errors.OpError)
    with contextlib.suppress(*no_statistics):
        tf.config.experimental.reset_memory_stats(find_default_device())
    times = []
    for _ in range(point["repeats"]):
        started = time.perf_counter()
        model.train_on_batch(*batch)
        times.append(time.perf_counter() - started)
    try:
        found["device_peak_bytes"] = tf.config.experimental.get_memory_info(find_default_device())["peak"]
    except no_statistics:
        found["device_peak_bytes"] = None
    return found | {"step_s": median(times)}


def table(results: list[dict[str, Any]]) -> str:
    stock_s = next((found["step_s"] for found in results if found["budget"] == STOCK and "step_s" in found), None)
    rows = []
    for found in results:
        sizes = [found.get(f"{key}_bytes") for key in ("budget", "predicted", "compiled", "device_peak")]
        row = [found["budget"], *(size / 2**20 if size else None for size in sizes)]
        ratio = found["step_s"] / stock_s if stock_s and "step_s" in found else None
        rows.append([*row, found.get("overhead"), ratio, found.get("error", "")])
    headers = ["budget", "MiB", "predicted", "compiled", "device's peak", "overhead", "time over stock", "error"]
    return tabulate(rows, headers, floatfmt=".2f")


if __name__ == "__main__":
    main()
