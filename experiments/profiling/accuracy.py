"""Predicted cost, overhead and peak against measured steps, and schedules from measured costs against FLOPs.

    python -m experiments.profiling.accuracy [--models resnet50 ...] [--phase solve|measure]

"solve" profiles each model and finds schedules; "measure", in the same or another run, profiles again from nothing and
runs the steps at once: predictions are of the machine as it is then. The steps of a round are run one after the other,
and overheads are medians over rounds of the ratio to the same round's step in order: what disturbs the machine for
longer than a round cancels.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

# The allocator of the CPU keeps statistics only with oneDNN.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from checkmate_tf.accuracy import Accuracy, measure_accuracy
from checkmate_tf.extraction import TrainingGraph
from checkmate_tf.model_step import ModelStep, model_step
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.device import device_key
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers import solve
from experiments.profiling.models import MODELS

RESULTS = Path("experiments/results/profiling")
BATCH_SIZES = {"resnet50": 8, "unet": 8, "mobilenet": 16, "transformer": 8}
BUDGET_SHARE = 0.6
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--phase", choices=("solve", "measure"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--solver", default="stage_annealing")
    args = parser.parse_args()
    for name in args.models:
        step = model_step(MODELS[name](), BATCH_SIZES[name])
        folder = RESULTS / name
        folder.mkdir(parents=True, exist_ok=True)
        if args.phase in (None, "solve"):
            solve_model(step.training_graph, folder, args)
        if args.phase in (None, "measure"):
            measure_model(step, folder, args.rounds)


def profile_model(step: ModelStep, folder: Path, cache: Path) -> None:
    """Profiles into an empty cache, then again from it."""
    first = profile_graph(step.training_graph, cache_path=cache)
    again = profile_graph(step.training_graph, cache_path=cache)
    save(
        folder / "profile.json",
        {
            "batch_size": BATCH_SIZES[folder.name],
            "num_ops": len(step.training_graph.ops.ops),
            "num_nodes": len(step.training_graph.graph.nodes),
            "num_signatures": first.num_signatures,
            "num_measured": first.num_measured,
            "num_not_measurable": len(first.reasons),
            "seconds": first.seconds,
            "second_run_num_measured": again.num_measured,
            "second_run_seconds": again.seconds,
        },
    )


def solve_model(training_graph: TrainingGraph, folder: Path, args: argparse.Namespace) -> None:
    """Schedules within the budget by measured costs and by FLOPs, both with the measured workspace."""
    with tempfile.TemporaryDirectory() as temporary:
        measured = cost_training_graph(training_graph, cache_path=Path(temporary) / "profiles.sqlite").graph
    flops = cost_training_graph(training_graph, "flops").graph
    budget_bytes = budget_of(measured)
    found = {}
    for kind, graph in (("measured", measured), ("flops", with_workspace_of(flops, measured))):
        solution = solve(
            graph, budget_bytes, solver=args.solver, time_limit_s=args.time_limit, seed=SEED, order="fixed"
        )
        assert solution.schedule is not None, f"no schedule by {kind} costs within {budget_bytes} bytes"
        found[kind] = list(solution.schedule.order)
    save(folder / "schedules.json", {"solver": args.solver, "time_limit_s": args.time_limit, **found})


def measure_model(step: ModelStep, folder: Path, rounds: int) -> None:
    """Profiles, and runs the step in order and by both schedules."""
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary) / "profiles.sqlite"
        profile_model(step, folder, cache)
        training_graph = cost_training_graph(step.training_graph, cache_path=cache)
    stored = json.loads((folder / "schedules.json").read_text())
    schedules = {
        "in order": retain_all_schedule(training_graph.graph),
        "60 %, measured costs": Schedule.of(stored["measured"]),
        "60 %, FLOPs": Schedule.of(stored["flops"]),
    }
    accuracy = measure_accuracy(training_graph, schedules, step.arguments, rounds=rounds)
    save(folder / "accuracy.json", as_json(accuracy))
    print(folder.name)
    print(accuracy.table())


def budget_of(graph: Any) -> int:
    """The share of what the step in order holds beside what is resident."""
    peak_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes - graph.resident_bytes
    return graph.resident_bytes + int(BUDGET_SHARE * peak_bytes)


def with_workspace_of(graph: Any, other: Any) -> Any:
    nodes = tuple(
        replace(node, workspace_bytes=measured.workspace_bytes)
        for node, measured in zip(graph.nodes, other.nodes, strict=True)
    )
    return replace(graph, nodes=nodes)


def as_json(accuracy: Accuracy) -> dict[str, Any]:
    base, by_measured, by_flops = accuracy.steps
    pairs = [mine / theirs for mine, theirs in zip(by_measured.step_times_s, by_flops.step_times_s, strict=True)]
    return {
        **accuracy.figures(),
        "cost_ratio": base.predicted_s / base.measured_s if base.predicted_s else None,
        "measured_over_flops_times": pairs,
    }


def save(path: Path, figures: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    circumstances = {
        "device": asdict(device_key("CPU:0")),
        "python": platform.python_version(),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "seed": SEED,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
    path.write_text(json.dumps({**figures, "circumstances": circumstances}, indent=1))
    print(path, json.dumps(figures)[:400])


if __name__ == "__main__":
    main()
