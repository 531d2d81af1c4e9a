"""Profiles a model on a GPU with TensorFlow, and runs its stock and rewritten steps there.

    python -m experiments.gpu.run_tensorflow --model resnet50 --batch-size 32 --budgets 80% 60% --output results.json

Also runs on a CPU. Same figures as `checkmate-tf profile`, for several budgets.
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from checkmate_tf.accuracy import measure_accuracy
from checkmate_tf.budget import parse_budget
from checkmate_tf.model_step import model_step
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.device import default_device, device_key
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers import solve
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
    device = default_device()
    step = model_step(MODELS[args.model](), args.batch_size)
    profile = profile_graph(step.training_graph, cache_path=args.cache, device=device)
    training_graph = cost_training_graph(step.training_graph, cache_path=args.cache, device=device)
    graph = training_graph.graph
    schedules = {"in order": retain_all_schedule(graph)}
    peak_bytes = simulate(graph, schedules["in order"]).peak_bytes
    for budget in args.budgets:
        budget_bytes = parse_budget(budget, peak_bytes=peak_bytes)
        solution = solve(graph, budget_bytes, solver=args.solver, time_limit_s=args.time_limit)
        if solution.schedule is None:
            print(f"no schedule within {budget}: {solution.status}")
            continue
        schedules[f"budget {budget}"] = solution.schedule
    accuracy = measure_accuracy(training_graph, schedules, step.arguments, device=device, rounds=args.rounds)
    print(f"{args.model}, batch {args.batch_size}, on {device_key(device).device}\n{accuracy.table()}")
    figures = {
        "device": asdict(device_key(device)),
        "model": args.model,
        "batch_size": args.batch_size,
        "num_signatures": profile.num_signatures,
        "num_measured": profile.num_measured,
        "profile_s": profile.seconds,
        **accuracy.figures(),
    }
    args.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
