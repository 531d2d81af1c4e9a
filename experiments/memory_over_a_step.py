"""Records what a ResNet's training step holds from moment to moment, stock and within half of its memory.

    python -m experiments.memory_over_a_step [--output FILE.jsonl] [--picture FILE.png]

The runtime records every allocation and release of one warm run of each step, gradients included and the optimizer's
update not. Parameters and batch, which both steps hold throughout, are added. Keeps the curves with commit and
machine, and draws README's picture.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, ROOT, Point, run_points

STEPS = ("stock", "within the budget")
POINT: Point = {"model": "resnet", "budget": "50%"}
# A curve keeps the most bytes held in each of so many equal parts of a step.
_PARTS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "memory_over_a_step.jsonl")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "memory_over_a_step.png")
    options = parser.parse_args()
    (entry,) = run_points([POINT], compute, options.output)
    plot(entry["result"]).savefig(options.picture, dpi=120)


def compute(point: Point) -> dict[str, Any]:
    """Records both steps: for each its milliseconds, its peak, and the most bytes held in each part of it."""
    import checkmate_tf
    from checkmate_tf.profiling.memory import find_allocation_peak_bytes, record_allocations
    from experiments.peers.models import BATCH_SIZE, build
    from experiments.training_steps import batch_of, trace

    model, _ = build(point["model"], "stock")
    function = trace(model, batch_size=BATCH_SIZE)
    arguments = batch_of(function)
    rewritten = checkmate_tf.rewrite_function(function, budget=point["budget"], progress=False)
    resident_bytes = rewritten.plan.resident.total
    curves = {}
    for name, step in zip(STEPS, (function, rewritten.function.function), strict=True):
        allocations = record_allocations(step, arguments, warm=True)
        curve = make_curve(allocations)
        curves[name] = {
            "ms": round(curve["ms"], 1),
            "peak_bytes": resident_bytes + find_allocation_peak_bytes(allocations),
            "held_bytes": [resident_bytes + held for held in curve["held_bytes"]],
        }
    return {"budget_bytes": rewritten.plan.budget_bytes, "overhead": round(rewritten.plan.overhead, 4), "steps": curves}


def make_curve(allocations: Sequence[Any], parts: int = _PARTS) -> dict[str, Any]:
    """Finds the most bytes held in each of `parts` equal parts of the time from the first event to the last."""
    events = [(one.start_us, 1, one.size_bytes) for one in allocations]
    events += [(one.end_us, 0, -one.size_bytes) for one in allocations if one.end_us is not None]
    events.sort()
    first, last = events[0][0], events[-1][0]
    held, most, part = 0, [0] * parts, 0
    for time, _, change in events:
        now = min(parts - 1, (time - first) * parts // max(1, last - first))
        for between in range(part, now):
            most[between + 1] = held
        part, held = now, held + change
        most[part] = max(most[part], held)
    return {"ms": (last - first) / 1000, "held_bytes": most}


def plot(result: dict[str, Any]) -> Any:
    """Draws the memory of both steps over their time, with the budget."""
    from checkmate_tf.reports.pictures import new_figure

    figure = new_figure(8, 3.6)
    axes = figure.subplots()
    for (name, step), color in zip(result["steps"].items(), ("#98a3ae", "#cf5b16"), strict=True):
        held = [size / 2**20 for size in step["held_bytes"]]
        times = [step["ms"] * part / len(held) for part in range(len(held))]
        axes.fill_between(times, held, step="post", color=color, alpha=0.35, linewidth=0)
        label = f"{name}: peak {step['peak_bytes'] / 2**20:.0f} MiB"
        axes.step(times, held, where="post", color=color, linewidth=1.2, label=label)
    budget = result["budget_bytes"] / 2**20
    axes.axhline(budget, color="black", linestyle="--", linewidth=1, label=f"budget, {budget:.0f} MiB")
    axes.set(xlabel="time in the step, ms", ylabel="memory held, MiB", xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    main()
