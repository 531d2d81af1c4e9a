"""Predicted cost, overhead and peak against measured steps, and schedules from measured costs against FLOPs.

    python -m experiments.profiling.accuracy [--models resnet50 ...] [--percent 60]

Each model in two processes: one profiles it from nothing and finds schedules, the other takes the profile from the
cache and runs the steps, in a pool of memory that nothing but the model has used. The steps of a round are run one
after the other, and overheads are medians over rounds of the ratio to the same round's step in order: what disturbs
the machine for longer than a round cancels.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
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

from checkmate_tf.measurement.accuracy import Accuracy, measure_accuracy
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.device import make_device_key
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import retain_all_schedule, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.training.model_step import ModelStep, trace_model_step
from experiments.profiling.models import MODELS

RESULTS = Path("experiments/results/profiling")
BATCH_SIZES = {"resnet50": 8, "unet": 8, "mobilenet": 16, "transformer": 8}
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument(
        "--percent", type=int, default=60, help="budget, of what the step holds beside what is resident"
    )
    parser.add_argument("--solver", default="stage_annealing")
    parser.add_argument("--phase", choices=("solve", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.models:
        if args.phase is None:
            with tempfile.TemporaryDirectory() as temporary:
                for phase in ("solve", "measure"):
                    run_phase(name, phase, Path(temporary) / "profiles.sqlite", args)
            continue
        step = trace_model_step(MODELS[name](), BATCH_SIZES[name])
        folder = RESULTS / name
        folder.mkdir(parents=True, exist_ok=True)
        (solve_model if args.phase == "solve" else measure_model)(step, folder, args)


def run_phase(name: str, phase: str, cache: Path, args: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "experiments.profiling.accuracy", "--models", name, "--phase", phase]
    options = {"cache": cache, "rounds": args.rounds, "time-limit": args.time_limit, "percent": args.percent}
    command += [part for option, value in options.items() for part in (f"--{option}", str(value))]
    subprocess.run([*command, "--solver", args.solver], check=True)


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


def solve_model(step: ModelStep, folder: Path, args: argparse.Namespace) -> None:
    """Schedules within the budget by measured costs and by FLOPs, both with the measured workspace."""
    profile_model(step, folder, args.cache)
    measured = cost_training_graph(step.training_graph, cache_path=args.cache).graph
    flops = cost_training_graph(step.training_graph, "flops").graph
    budget_bytes = budget_of(measured, args.percent)
    found = {}
    for kind, graph in (("measured", measured), ("flops", with_workspace_of(flops, measured))):
        solution = solve(
            graph, budget_bytes, solver=args.solver, time_limit_s=args.time_limit, seed=SEED, order="fixed"
        )
        assert solution.schedule is not None, f"no schedule by {kind} costs within {budget_bytes} bytes"
        found[kind] = list(solution.schedule.order)
    save(folder / f"schedules_{args.percent}.json", {"solver": args.solver, "time_limit_s": args.time_limit, **found})


def measure_model(step: ModelStep, folder: Path, args: argparse.Namespace) -> None:
    """Runs the step in order and by both schedules."""
    training_graph = cost_training_graph(step.training_graph, cache_path=args.cache)
    stored = json.loads((folder / f"schedules_{args.percent}.json").read_text())
    schedules = {
        "in order": retain_all_schedule(training_graph.graph),
        f"{args.percent} %, measured costs": Schedule.of(stored["measured"]),
        f"{args.percent} %, FLOPs": Schedule.of(stored["flops"]),
    }
    accuracy = measure_accuracy(training_graph, schedules, step.arguments, rounds=args.rounds)
    save(folder / f"accuracy_{args.percent}.json", as_json(accuracy))
    print(folder.name)
    print(accuracy.tabulate_steps())


def budget_of(graph: Any, percent: int) -> int:
    """The share of what the step in order holds beside what is resident."""
    peak_bytes = simulate_stock(graph).peak_bytes - graph.resident_bytes
    return graph.resident_bytes + percent * peak_bytes // 100


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
        **accuracy.list_figures(),
        "cost_ratio": base.predicted_s / base.measured_s if base.predicted_s else None,
        "measured_over_flops_times": pairs,
    }


def save(path: Path, figures: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    circumstances = {
        "device": asdict(make_device_key("CPU:0")),
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
