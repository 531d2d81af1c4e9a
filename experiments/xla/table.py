"""Planning under XLA, model by budget: what was predicted, what the compiled step takes, and how often was compiled.

    python -m experiments.xla.table [--model NAME ...] [--share 0.8 ...]

Twenty-one models: the eight of `experiments.peers`, twelve of `experiments.wild` and ResNet50, each planned by
`rematerialize` for shares of its stock step's peak. Peaks are those of XLA's buffer assignment; nothing runs.
`least_step_bytes` is a bound that no schedule's peak is below, `least_known_bytes` the least that a refusal names. Rows
that are in the results are not computed again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.xla.compilers import AbsentGpuCompiler, Compiler, LocalCompiler
from checkmate_tf.reports.plan import Plan
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from experiments import planning_seconds
from experiments.peers import models as peers
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.wild.models import MODELS as WILD
from experiments.xla.rows import table_of

SHARES = (0.8, 0.6, 0.4)
WILD_MODELS = (
    "vit", "patch_convnet", "video", "unet", "grey_images", "dict_inputs", "time_series", "seq2seq", "decoder",
    "relative_attention", "two_streams", "graph_attention",
)  # fmt: skip
MODELS = (*peers.MODELS, *(f"wild {name}" for name in WILD_MODELS), "resnet50")
RESULTS = RESULTS_FOLDER / "xla.csv"
COLUMNS = (
    "model", "share", "stock_bytes", "predicted_stock_bytes", "budget_bytes", "predicted_bytes", "compiled_bytes",
    "overhead", "compilations", "planning_s", "least_step_bytes", "least_known_bytes",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--share", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart("experiments.xla.table", points(options.model, options.share), options.output, COLUMNS)))


def points(models: Sequence[str] = MODELS, shares: Sequence[float] = SHARES) -> list[Point]:
    return [{"model": name, "share": share} for share in shares for name in models]


def compute(point: Point, **options: Any) -> dict[str, Any]:
    """A row: a model's plan, or the plan of least memory where the budget is refused.

    `options` are those of `rematerialize`, beside the ones that the model has.
    """
    compiled = keep_modules()
    model, arguments = build(point["model"])
    began = time.perf_counter()
    try:
        budget = f"{100 * point['share']:g}%"
        plan: Plan | None = checkmate_tf.rematerialize(model, budget=budget, progress=False, **arguments, **options)
        row: dict[str, Any] = {}
    except InfeasibleBudgetError as error:
        plan = None if error.closest is None else Plan(error.closest.planned)
        row = {"error": str(error), "least_known_bytes": error.least_budget_bytes}
    row |= {"planning_s": time.perf_counter() - began, "compilations": len(compiled)}
    if plan is None:
        return row
    return row | {
        "stock_bytes": plan.stock_peak_bytes,
        "predicted_stock_bytes": simulate_stock(plan.graph).peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_bytes": plan.predicted_peak_bytes,
        "compiled_bytes": plan.measured_peak_bytes,
        "overhead": plan.overhead,
        "least_step_bytes": find_peak_bound(plan.graph).peak_bytes,
        "offloaded_bytes": sum(value.size_bytes for value in plan.offloaded),
    }


def keep_modules() -> list[Any]:
    """A list that gets each module that is compiled from now on."""
    modules: list[Any] = []

    def keep(kind: type[Compiler]) -> None:
        own = kind.compile_step

        def compile_and_keep(compiler: Any, step: Any, specs: Any) -> Any:
            modules.append(own(compiler, step, specs))
            return modules[-1]

        kind.compile_step = compile_and_keep

    keep(LocalCompiler)
    keep(AbsentGpuCompiler)
    return modules


def build(name: str) -> tuple[keras.Model, dict[str, Any]]:
    """A model that Keras compiles with XLA, and what `rematerialize` is given beside the budget."""
    if name in peers.MODELS:
        model, data = peers.build(name, "stock")
        arguments: dict[str, Any] = {"data": data}
    elif name == "resnet50":
        keras.utils.set_random_seed(0)
        model, data = planning_seconds.build(name)
        arguments = {"data": data}
    else:
        keras.utils.set_random_seed(0)
        wild = WILD[name.removeprefix("wild ")]
        model, arguments = wild.build(), wild.plan_arguments()
    model.jit_compile = True
    return model, arguments


if __name__ == "__main__":
    main()
