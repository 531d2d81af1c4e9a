"""Predicted cost, overhead and peak against measured steps, and schedules from measured costs against FLOPs.

    python -m experiments.profiling.accuracy [--models resnet50 ...] [--percent 60]

Each model in two processes: one profiles it from nothing and finds schedules, the other takes the profile from the
cache and runs the steps, in a pool of memory that nothing but the model has used. The steps of a round are run one
after the other, and overheads are medians over rounds of the ratio to the same round's step in order: what disturbs
the machine for longer than a round cancels.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, computed_apart, run_apart

RESULTS = RESULTS_FOLDER / "profiling_accuracy.csv"
BATCH_SIZES = {"resnet50": 8, "unet": 8, "mobilenet": 16, "transformer": 8}
SEED = 0
COLUMNS = (
    "model", "percent", "batch_size", "solver", "time_limit_s", "step", "num_positions", "predicted_s", "measured_s",
    "predicted_overhead", "measured_overhead", "predicted_peak_bytes", "recorded_peak_bytes", "predicted_pool_bytes",
    "allocator_peak_bytes", "time_over_flops", "num_ops", "num_nodes", "num_signatures", "num_measured",
    "num_not_measurable", "profile_s", "num_measured_again", "profile_again_s", "seed",
)  # fmt: skip


def points(models: Sequence[str] = tuple(BATCH_SIZES), percent: int = 60) -> list[Point]:
    """`percent` is the budget, of what the step holds beside what is resident."""
    return [{"model": name, "percent": percent} for name in models]


def compute(point: Point) -> list[dict[str, Any]]:
    """The stock step, the one in order and two within the budget; the point also says `solver` and `time_limit_s`."""
    with TemporaryDirectory() as folder:
        cached = {**point, "cache": str(Path(folder) / "profiles.sqlite")}
        found = computed_apart("experiments.profiling.accuracy:solve_model", cached)
        steps = computed_apart("experiments.profiling.accuracy:measure_model", {**cached, **found["schedules"]})
    common = {"batch_size": BATCH_SIZES[point["model"]], "seed": SEED, **found["profile"]}
    common |= {key: point[key] for key in ("solver", "time_limit_s")}
    return [{**common, **step} for step in steps]


def solve_model(point: Point) -> dict[str, Any]:
    """Schedules within the budget by measured costs and by FLOPs, both with the measured workspace."""
    from checkmate_tf.profiling.costs import cost_training_graph
    from checkmate_tf.solvers import solve

    step = step_of(point)
    profile = profile_model(step, point["cache"])
    measured = cost_training_graph(step.training_graph, cache_path=point["cache"]).graph
    flops = cost_training_graph(step.training_graph, "flops").graph
    budget_bytes = budget_of(measured, point["percent"])
    found = {}
    for kind, graph in (("measured", measured), ("flops", with_workspace_of(flops, measured))):
        solution = solve(
            graph, budget_bytes, solver=point["solver"], time_limit_s=point["time_limit_s"], seed=SEED, order="fixed"
        )
        assert solution.schedule is not None, f"no schedule by {kind} costs within {budget_bytes} bytes"
        found[kind] = list(solution.schedule.order)
    return {"profile": profile, "schedules": found}


def profile_model(step: Any, cache: str) -> dict[str, Any]:
    """Profiles into an empty cache, then again from it."""
    from checkmate_tf.profiling.profiler import profile_graph

    first = profile_graph(step.training_graph, cache_path=cache)
    again = profile_graph(step.training_graph, cache_path=cache)
    return {
        "num_ops": len(step.training_graph.ops.ops),
        "num_nodes": len(step.training_graph.graph.nodes),
        "num_signatures": first.num_signatures,
        "num_measured": first.num_measured,
        "num_not_measurable": len(first.reasons),
        "profile_s": first.took_s,
        "num_measured_again": again.num_measured,
        "profile_again_s": again.took_s,
    }


def measure_model(point: Point) -> list[dict[str, Any]]:
    """Runs the step in order and by both schedules."""
    from checkmate_tf.executors.graph.accuracy import measure_accuracy
    from checkmate_tf.profiling.costs import cost_training_graph
    from checkmate_tf.schedule import Schedule
    from checkmate_tf.simulator import make_retain_all_schedule

    step = step_of(point)
    training_graph = cost_training_graph(step.training_graph, cache_path=point["cache"])
    schedules = {
        "in order": make_retain_all_schedule(training_graph.graph),
        "measured costs": Schedule.of(point["measured"]),
        "FLOPs": Schedule.of(point["flops"]),
    }
    figures = measure_accuracy(training_graph, schedules, step.arguments, rounds=point["rounds"]).list_figures()
    steps = [{"step": found.pop("name"), **found} for found in figures["steps"]]
    _, by_measured, by_flops = (found.pop("step_times_s") for found in steps)
    steps[1]["time_over_flops"] = median(mine / theirs for mine, theirs in zip(by_measured, by_flops, strict=True))
    return [{"step": "stock", "measured_s": median(figures["stock_times_s"])}, *steps]


def step_of(point: Point) -> Any:
    """The traced training step of the point's model."""
    from checkmate_tf.training.traced_model import trace_model
    from experiments.profiling.models import MODELS

    traced = trace_model(MODELS[point["model"]](), batch_size=BATCH_SIZES[point["model"]])
    return traced.make_graph_step(traced.spec.make_zeros())


def budget_of(graph: Any, percent: int) -> int:
    """The share of what the step in order holds beside what is resident."""
    from checkmate_tf.simulator import simulate_stock

    peak_bytes = simulate_stock(graph).peak_bytes - graph.resident_bytes
    return graph.resident_bytes + percent * peak_bytes // 100


def with_workspace_of(graph: Any, other: Any) -> Any:
    nodes = tuple(
        replace(node, workspace_bytes=measured.workspace_bytes)
        for node, measured in zip(graph.nodes, other.nodes, strict=True)
    )
    return replace(graph, nodes=nodes)


def table(rows: Sequence[Row]) -> str:
    """A line a step: time in seconds, peaks in MiB, predictions as what they are off by."""
    from tabulate import tabulate

    headers = ["model", "percent", "step", "time", "predicted", "overhead", "predicted", "peak", "predicted"]
    headers += ["in chunks", "predicted", "time over FLOPs", "error"]
    return tabulate([_line(row) for row in rows], headers, tablefmt="github", disable_numparse=True)


def _line(row: Row) -> list[str]:
    def shown(column: str, form: str, scale: float = 1) -> str:
        return format(float(row[column]) / scale, form) if row[column] else ""

    def off(predicted: str, measured: str) -> str:
        return f"{float(row[predicted]) / float(row[measured]) - 1:+.1%}" if row[predicted] and row[measured] else ""

    return [
        *(row[column] for column in ("model", "percent", "step")),
        shown("measured_s", ".3f"),
        off("predicted_s", "measured_s"),
        shown("measured_overhead", ".1%"),
        shown("predicted_overhead", ".1%"),
        shown("recorded_peak_bytes", ".1f", 2**20),
        off("predicted_peak_bytes", "recorded_peak_bytes"),
        shown("allocator_peak_bytes", ".1f", 2**20),
        off("predicted_pool_bytes", "allocator_peak_bytes"),
        shown("time_over_flops", ".3f"),
        row["error"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=BATCH_SIZES, default=list(BATCH_SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument(
        "--percent", type=int, default=60, help="budget, of what the step holds beside what is resident"
    )
    parser.add_argument("--solver", default="stage_annealing")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    settings = {"rounds": args.rounds, "time_limit_s": args.time_limit, "solver": args.solver}
    wanted = points(args.models, args.percent)
    print(table(run_apart("experiments.profiling.accuracy", wanted, args.output, COLUMNS, settings=settings)))


if __name__ == "__main__":
    main()
