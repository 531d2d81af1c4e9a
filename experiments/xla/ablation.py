"""Plans under XLA without one rule, each rule in turn: which models change, and what their compiled steps take.

    python -m experiments.xla.ablation [--model NAME ...] [--share 0.6]

The models of `experiments.xla.table` are those that rules were made for; no rule was made for the others, which are the
rest of `experiments.wild`. Each is planned for a share of its stock step's peak, by all rules of XLA:CPU and by all but
one. Where the graph and the emitted function are the same without a rule, nothing is planned. Peaks are those of XLA's
buffer assignment, and nothing runs: `stock_ms` is what the cost model predicts for a stock step, and the overhead is a
share of it. Kernels are compiled unoptimized, which changes no buffer. Rows that are in the results are not computed
again.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

from tabulate import tabulate

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla import compilers
from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.backends import CPU
from checkmate_tf.executors.xla.hlo.memory import compile_step
from checkmate_tf.executors.xla.rules.rule import Rule
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.planned_step import ReadyStep
from checkmate_tf.planning.search import find_plan
from checkmate_tf.profiling.costs import RooflineCosts, cost_training_graph
from checkmate_tf.progress import show_planning
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.training.traced_model import trace_model
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart
from experiments.xla.table import MODELS as TUNED
from experiments.xla.table import build

SHARE = 0.6
UNTUNED = tuple(
    f"wild {name}"
    for name in (
        "vae", "vq_vae", "hub_gpt2", "conv_mixer", "super_resolution", "wave_network", "gmlp", "scans", "hub_vit",
        "deeplab", "tab_transformer", "perceiver", "traffic", "compact_transformer", "low_light", "hub_segformer",
        "fnet", "swin", "video_classes", "lines", "hub_bert", "hub_llama3", "keypoints", "involution",
    )
)  # fmt: skip
MODELS = (*UNTUNED, *TUNED)
ALL_RULES = "none"  # is left out
RESULTS = RESULTS_FOLDER / "xla_ablation.csv"
COLUMNS = (
    "model", "share", "without", "is_changed", "stock_bytes", "predicted_bytes", "compiled_bytes", "overhead",
    "compilations", "least_known_bytes", "planning_s", "stock_ms",
)  # fmt: skip
_TIME_LIMIT_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--share", type=float, default=SHARE, help="of the stock step's peak")
    options = parser.parse_args()
    wanted = points(options.model, options.share)
    print(table(run_apart("experiments.xla.ablation", wanted, RESULTS, COLUMNS)))


def points(models: Sequence[str] = MODELS, share: float = SHARE) -> list[Point]:
    return [{"model": name, "share": share} for name in models]


def compute(point: Point) -> list[dict[str, Any]]:
    """A row with all rules, and one without each."""
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    model, arguments = build(point["model"])
    traced = trace_model(model, **{name: value for name, value in arguments.items() if name in ("data", "batch_size")})
    training_graph = cost_training_graph(traced.extract(), RooflineCosts(compiled=True))
    stock = compile_step(traced.complete(EmittedFunction(traced.function)), traced.spec.flat)

    def make_step(backend: Backend) -> XlaStep:
        specs, resident = traced.spec.flat, traced.resident
        return XlaStep.of_module(stock, backend, training_graph, traced.complete, specs, resident=resident)

    step = make_step(CPU)
    whole = _plan(step, point["share"])
    schedules = [make_retain_all_schedule(step.graph)]
    if whole.ready is not None:
        schedules.append(whole.ready.planned.schedule)
    graph, functions = _digest_graph(step), _digest_functions(step, schedules)
    rows = [{"without": ALL_RULES, "is_changed": 0, **whole.row}]
    for rule in CPU.rules:
        step = make_step(CPU.without(rule.name))
        row: dict[str, Any] = {"without": rule.name, "is_changed": 0}
        if _digest_graph(step) != graph or _digest_functions(step, schedules) != functions:
            row |= {"is_changed": 1, **_plan(step, point["share"]).row}
        rows.append(row)
    return rows


@dataclass(frozen=True)
class _Planned:
    """The row of a plan, and what carries it out; None where no schedule was emitted."""

    row: dict[str, Any]
    ready: ReadyStep | None


def _plan(step: XlaStep, share: float) -> _Planned:
    compiled: list[Any] = []

    def compile_counted(function: Any, specs: Any) -> Any:
        compiled.append(compile_step(function, specs))
        return compiled[-1]

    compilers.compile_step = compile_counted
    budget_bytes, began = int(share * step.stock_peak_bytes), time.perf_counter()
    request = Request(budget_bytes, time_limit_s=_TIME_LIMIT_S, options=Options(costs="roofline"), progress=False)
    with show_planning(shown=False) as bar:
        try:
            ready = find_plan(step, request, bar)
            row: dict[str, Any] = {}
        except InfeasibleBudgetError as error:
            ready = error.closest
            row = {"error": str(error), "least_known_bytes": error.least_budget_bytes}
    row |= {"stock_bytes": step.stock_peak_bytes, "compilations": len(compiled)}
    row |= {"planning_s": time.perf_counter() - began}
    if ready is not None:
        row |= {
            "predicted_bytes": ready.planned.predicted_peak_bytes,
            "compiled_bytes": ready.planned.measured_peak_bytes,
            "overhead": ready.planned.overhead,
            "stock_ms": ready.planned.graph.baseline_cost / 1e6,
        }
    return _Planned(row, ready)


def _digest_graph(step: XlaStep) -> str:
    graph = step.xla_graph
    parts = [graph.graph.nodes, graph.graph.values, graph.graph.resident_bytes, graph.nodes, graph.values]
    parts += [
        sorted(each) for each in (graph.early, graph.materialized, graph.constants, graph.transposed, graph.apart)
    ]
    parts.append(sorted((node, sorted(within)) for node, within in graph.fused.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _digest_functions(step: XlaStep, schedules: Sequence[Schedule]) -> tuple[str, ...]:
    """A digest for each schedule of what is emitted, in any order of its operations."""
    emitted = (step.emit(step.arrange(schedule), "chain").graph_def for schedule in schedules)
    texts = (sorted(node.SerializeToString(deterministic=True) for node in graph_def.node) for graph_def in emitted)
    return tuple(hashlib.sha256(b"".join(each)).hexdigest() for each in texts)


def table(rows: Sequence[Row]) -> str:
    """For each rule, what changes without it: for the models that rules were made for, and for the others."""
    headers = [
        "without", "over-fitted", "models", "changed", "planned", "more memory", "less memory", "bytes, median ratio",
        "overhead, points", "compilations", "milliseconds", "refused", "no more refused",
    ]  # fmt: skip
    parts = []
    for title, models in (("No rule was made for these models", UNTUNED), ("Models that rules were made for", TUNED)):
        known = {(row["model"], row["without"]): row for row in rows if row["model"] in models and row["without"]}
        lines = [[rule.name, _describe_fit(rule), *_compare(rule.name, known)] for rule in CPU.rules]
        parts.append(f"### {title}\n\n{tabulate(lines, headers, tablefmt='github', floatfmt='.3f')}")
    return "\n\n".join(parts)


def _describe_fit(rule: Rule) -> str:
    """Returns "yes" for a rule whose file says that it was fitted to the models on which it was found."""
    return "yes" if "Over-fitted" in (import_module(type(rule).__module__).__doc__ or "") else ""


def _compare(rule: str, known: dict[tuple[str, str], Row]) -> list[Any]:
    """A line: plans without a rule against those with all, of the models of which both are known."""
    models = [model for model, without in known if without == rule]
    changed = [(known[m, ALL_RULES], known[m, rule]) for m in models if known[m, rule]["is_changed"] == "1"]
    both = [(one, other) for one, other in changed if _fits(one) and _fits(other)]
    ratios = [int(other["compiled_bytes"]) / int(one["compiled_bytes"]) for one, other in both]
    points = [100 * (float(other["overhead"]) - float(one["overhead"])) for one, other in both]
    compilations = [int(other["compilations"]) - int(one["compilations"]) for one, other in both]
    times_ms = [_predict_ms(other) - _predict_ms(one) for one, other in both if other["stock_ms"]]
    predicted = [(one, other) for one, other in changed if one["predicted_bytes"] and other["predicted_bytes"]]
    return [
        len(models),
        len(changed),
        len(both),
        sum(_least(other) > 1.01 * _least(one) for one, other in predicted),
        sum(_least(other) < 0.99 * _least(one) for one, other in predicted),
        median(ratios) if ratios else "",
        sum(points) if points else "",
        sum(compilations) if compilations else "",
        sum(times_ms) if times_ms else "",
        sum(_fits(one) and not _fits(other) for one, other in changed),
        sum(_fits(other) and not _fits(one) for one, other in changed),
    ]


def _fits(row: Row) -> bool:
    return not row["error"] and bool(row["compiled_bytes"])


def _predict_ms(row: Row) -> float:
    return float(row["stock_ms"]) * (1 + float(row["overhead"]))


def _least(row: Row) -> int:
    """The budget that a row shows to be kept: what is compiled, or the least that a refusal names."""
    return int(row["least_known_bytes"] or row["compiled_bytes"])


if __name__ == "__main__":
    main()
