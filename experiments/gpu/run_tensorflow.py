"""Profiles a model on a GPU with TensorFlow, and runs its stock and rewritten steps there.

    python -m experiments.gpu.run_tensorflow --model resnet50 --batch-size 32 --budgets 80% 60% --output results.json

Also runs on a CPU. Same figures as `checkmate-tf profile`, for several budgets.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

from checkmate_tf.budget import parse_budget
from checkmate_tf.measurement.accuracy import measure_accuracy
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers import solve
from checkmate_tf.training.model_step import trace_model_step
from experiments.profiling.models import MODELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--budgets", nargs="+", default=["80%", "60%"], help="of the stock step's peak")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each budget")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cache", type=Path, help="default: in the user's cache directory")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    figures = run(
        MODELS[args.model](),
        args.batch_size,
        budgets=args.budgets,
        solver=args.solver,
        time_limit_s=args.time_limit,
        rounds=args.rounds,
        cache_path=args.cache,
    )
    args.output.write_text(json.dumps(figures, indent=1))


def run(
    model: keras.Model,
    batch_size: int,
    *,
    budgets: Sequence[str],
    solver: str,
    time_limit_s: float,
    rounds: int,
    cache_path: Path | None,
) -> dict[str, Any]:
    """Profiles the step of a compiled model, solves and measures it; prints a table and gives its figures."""
    device = find_default_device()
    step = trace_model_step(model, batch_size)
    profile = profile_graph(step.training_graph, cache_path=cache_path, device=device)
    training_graph = cost_training_graph(step.training_graph, cache_path=cache_path, device=device)
    graph = training_graph.graph
    schedules = {"in order": make_retain_all_schedule(graph)}
    peak_bytes = simulate(graph, schedules["in order"]).peak_bytes
    for budget in budgets:
        budget_bytes = parse_budget(budget, peak_bytes=peak_bytes)
        solution = solve(graph, budget_bytes, solver=solver, time_limit_s=time_limit_s)
        if solution.schedule is None:
            print(f"no schedule within {budget}: {solution.status}")
            continue
        schedules[f"budget {budget}"] = solution.schedule
    accuracy = measure_accuracy(training_graph, schedules, step.arguments, device=device, rounds=rounds)
    print(f"{model.name}, batch {batch_size}, on {make_device_key(device).device}\n{accuracy.tabulate_steps()}")
    return {
        "device": asdict(make_device_key(device)),
        "model": model.name,
        "batch_size": batch_size,
        "num_signatures": profile.num_signatures,
        "num_measured": profile.num_measured,
        "profile_s": profile.seconds,
        **accuracy.list_figures(),
    }


if __name__ == "__main__":
    main()
