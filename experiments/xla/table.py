"""Rematerialization under XLA: predicted and compiled memory, recomputed products, gradients and time, model by budget.

    python -m experiments.xla.table plan [--model NAME ...]      # memory: no step runs
    python -m experiments.xla.table time [--model NAME ...]      # gradients and step times of what was planned
    python -m experiments.xla.table show

Budgets are shares of the temporary memory that XLA's buffer assignment gives the stock step, beside its arguments
and results, which no schedule changes. A budget that is in the results already is not planned again. Steps are whole
ones (gradients, update, metrics); times and gradients are those of the part that is rewritten, without the update.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tabulate import tabulate

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.keras_step import StepPart, build_for, step_part, training_variables
from checkmate_tf.measuring import state_kept
from checkmate_tf.plan import Options, ResidentBytes, training_graph_of
from checkmate_tf.profiling.costs import RooflineCosts
from checkmate_tf.profiling.device import default_device
from checkmate_tf.schedule import Schedule
from checkmate_tf.training_data import Batch, batch_for
from checkmate_tf.xla_emission import emit_for_xla, read_steps
from checkmate_tf.xla_graph import XlaGraph, xla_graph
from checkmate_tf.xla_memory import compiled, kernels, product_names, xla_memory
from checkmate_tf.xla_plan import make_xla_plan
from checkmate_tf.xla_ties import tie_for
from experiments.running import environment
from experiments.xla.models import BATCH_SIZE, MODELS, build

SHARES = (0.8, 0.6, 0.4)
_PRODUCTS = re.compile("Conv|MatMul|Einsum")
RESULTS = Path(__file__).parents[1] / "results" / "xla"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("plan", "time", "show"))
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="of the solver, for each budget")
    parser.add_argument("--repeats", type=int, default=7, help="paired timings of stock and rewritten step")
    parser.add_argument("--cache", type=Path, help="of the roofline's rates; default: in the user's cache directory")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.model if options.phase != "show" else ():
        if len(options.model) > 1:  # in a process of its own
            subprocess.run([sys.executable, "-m", "experiments.xla.table", *sys.argv[1:], "--model", name], check=True)
        else:
            (plan_model if options.phase == "plan" else time_model)(name, options)
    paths = sorted(options.output.glob("table_*.json"))
    print(table([json.loads(path.read_text()) for path in paths]))


@dataclass(frozen=True)
class Step:
    """A model's step under XLA, its stock form compiled."""

    model: Any
    batch: Batch
    graph: XlaGraph
    step_with: Callable[[Any], Callable[..., Any]]
    stock: Any

    def compiled(self, function: Any) -> Any:
        return compiled(self.step_with(function), self.batch.spec.flat)


def prepare(name: str, cache: Path | None) -> Step:
    model, data = build(name)
    batch = batch_for(model, batch_size=None, data=data)
    build_for(model, batch.spec)
    part = step_part(model)
    training_graph = training_graph_of(
        part.trace(batch.spec), name=name, resident_bytes=0, costs=RooflineCosts(cache_path=cache)
    )
    step_with = whole_step(part, batch)
    stock = compiled(step_with(training_graph.function), batch.spec.flat)
    return Step(model, batch, xla_graph(training_graph, kernels(stock)), step_with, stock)


def whole_step(part: StepPart, batch: Batch) -> Callable[[Any], Callable[..., Any]]:
    """From a function in the place of what is rewritten to the whole step of a flat batch."""
    return lambda function: lambda *tensors: part.finish(batch.spec.pack(tensors), function(*tensors))


def plan_model(name: str, options: argparse.Namespace) -> None:
    step = prepare(name, options.cache)
    stock = xla_memory(step.stock)
    held_bytes = stock.argument_bytes + stock.output_bytes
    result = {
        "model": name,
        "batch_size": BATCH_SIZE,
        "seed": 0,
        **environment(),
        "temporary_bytes": stock.temporary_bytes,
        "argument_bytes": stock.argument_bytes,
        "output_bytes": stock.output_bytes,
        "num_nodes": len(step.graph.graph.nodes),
        "budgets": [],
    }
    path = options.output / f"table_{name}.json"
    known = {entry["share"]: entry for entry in json.loads(path.read_text())["budgets"]} if path.exists() else {}
    result["budgets"] += known.values()
    for share in SHARES:
        if share in known:
            continue
        budget_bytes = held_bytes + int(share * stock.temporary_bytes)
        found = {"share": share, "budget_bytes": budget_bytes, **_planned(step, budget_bytes, options)}
        result["budgets"].append(found)
        _write(options.output / f"table_{name}.json", result)


def _planned(step: Step, budget_bytes: int, options: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        planned = make_xla_plan(
            step.graph.training_graph,
            step.step_with,
            step.batch.spec.flat,
            Options(budget_bytes, time_limit_s=options.time_limit_s, progress=False),
            resident=ResidentBytes(),
            free_bytes=lambda: 0,
        )
    except InfeasibleBudgetError as error:
        return {"error": str(error), "least_budget_bytes": error.least_budget_bytes}
    planning_s = time.perf_counter() - started
    plan = planned.plan
    module = step.compiled(planned.emitted.function)
    memory = xla_memory(module)
    graph = step.graph
    again = Counter(read_steps(graph.graph, plan.schedule)) - Counter(range(len(graph.nodes)))
    ops = [op for index, n in again.items() for op in graph.training_graph.node_ops(graph.nodes[index]) * n]
    return {
        "predicted_bytes": plan.predicted_peak_bytes,
        "compiled_bytes": memory.peak_bytes,
        "temporary_bytes": memory.temporary_bytes,
        "overhead": plan.overhead,
        "solver": plan.solution.solver,
        "gap": plan.solution.gap,
        "planning_s": planning_s,
        "order": list(plan.schedule.order),
        "scheduled_products": sum(bool(_PRODUCTS.search(op.type)) for op in ops),
        "compiled_products": len(product_names(module)) - len(product_names(step.stock)),
    }


def time_model(name: str, options: argparse.Namespace) -> None:
    path = options.output / f"table_{name}.json"
    result = json.loads(path.read_text())
    step = prepare(name, options.cache)
    arguments = step.batch.tensors
    stock = _jitted(step.graph.training_graph.function)
    with state_kept(training_variables(step.model)):
        expected = [tf.convert_to_tensor(gradient).numpy() for gradient in stock(*arguments)["gradients"]]
    for entry in result["budgets"]:
        if "error" in entry:
            continue
        emitted = emit_for_xla(step.graph, Schedule(tuple(entry["order"])), tie=tie_for(default_device()))
        rewritten = _jitted(emitted.function)
        with state_kept(training_variables(step.model)):
            found = [tf.convert_to_tensor(gradient).numpy() for gradient in rewritten(*arguments)["gradients"]]
        entry["gradient_error"] = max(
            float(abs(a - b).max() / abs(a).max()) for a, b in zip(expected, found, strict=True) if abs(a).max()
        )
        pairs = [(_seconds(stock, arguments), _seconds(rewritten, arguments)) for _ in range(options.repeats)]
        entry["stock_s"], entry["step_s"] = (median(times) for times in zip(*pairs, strict=True))
        entry["time_ratio"] = median(after / before for before, after in pairs)
        entry["timed_on"] = environment()
        _write(path, result)


def _jitted(function: Any) -> Callable[..., Any]:
    return tf.function(lambda *tensors: function(*tensors), jit_compile=True, autograph=False)


def _seconds(function: Callable[..., Any], arguments: Any) -> float:
    started = time.perf_counter()
    function(*arguments)["loss"].numpy()
    return time.perf_counter() - started


def _write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1))


def table(results: list[dict[str, Any]]) -> str:
    """In MiB of temporary memory; budgets, predictions and peaks less arguments and results."""
    rows = []
    for result in results:
        held = result["argument_bytes"] + result["output_bytes"]
        for entry in result["budgets"]:
            row = [result["model"], result["temporary_bytes"] / 2**20, f"{entry['share']:.0%}"]
            row.append((entry["budget_bytes"] - held) / 2**20)
            if "error" in entry:
                rows.append([*row, "refused: least", (entry["least_budget_bytes"] - held) / 2**20])
                continue
            row += [(entry["predicted_bytes"] - held) / 2**20, (entry["compiled_bytes"] - held) / 2**20]
            row += [f"{entry['scheduled_products']} / {entry['compiled_products']}", f"{entry['overhead']:.1%}"]
            timed = "time_ratio" in entry
            rows.append(row + ([f"{entry['time_ratio']:.2f}", f"{entry['gradient_error']:.0e}"] if timed else ["", ""]))
    headers = ["model", "stock", "share", "budget", "predicted", "compiled", "products again: scheduled / HLO"]
    return tabulate(
        rows, [*headers, "overhead", "time ratio", "gradients differ by"], floatfmt=".1f", disable_numparse=[6, 7, 8, 9]
    )


if __name__ == "__main__":
    main()
