"""What `pareto` finds for ResNet50 at ten budgets: seconds, schedules shared, predicted and measured overhead and peak.

    python -m experiments.pareto_budgets [--model NAME ...] [--output FILE.csv]

The models are those of `planning_seconds`. Each runs in a process of its own; a row is a budget.
"""

import argparse
from pathlib import Path
from typing import Any

from experiments.planning_seconds import MODELS, build
from experiments.running import RESULTS_FOLDER, Point, computed_apart, environment, run_rows

COLUMNS = (
    "model", "budget_bytes", "status", "is_met", "predicted_peak_bytes", "measured_peak_bytes", "overhead",
    "least_overhead", "measured_overhead", "step_s", "stock_peak_bytes", "stock_step_s", "num_solves", "num_reused",
    "seconds", "commit", "machine",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["resnet50"], choices=MODELS)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "pareto_budgets.csv")
    options = parser.parse_args()
    run_rows([{"model": name} for name in options.model], compute, options.output, COLUMNS, digits=5)


def compute(point: Point) -> list[dict[str, Any]]:
    around = environment()
    rows = computed_apart("experiments.pareto_budgets:find_curve", point)["rows"]
    return [{**row, "commit": around["commit"], "machine": around["machine"]} for row in rows]


def find_curve(point: Point) -> dict[str, Any]:
    import checkmate_tf

    model, batch = build(point["model"])
    curve = checkmate_tf.pareto(model, data=batch, progress=False)
    known = {name: getattr(curve, name) for name in COLUMNS if hasattr(curve, name)}
    return {
        "rows": [
            {**known, **{name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}} for one in curve.points
        ]
    }


if __name__ == "__main__":
    main()
