"""Which way to an effective batch trains on the most samples a second: stock, accumulated or rematerialized.

    python -m experiments.best_batch [--model NAME ...] [--share 0.5] [--rows 16] [--output FILE.csv]

The budget is a share of what the stock step of all rows takes, as `checkmate_tf.estimate` says. Each model runs in a
process of its own; a row is a micro-batch. `is_best` and `is_best_stock` mark the fastest way, and the fastest one
without rematerialization.
"""

import argparse
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, computed_apart, environment, run_rows

MODELS = ("resnet", "unet", "decoder")
COLUMNS = (
    "model", "rows", "share", "budget_bytes", "batch_size", "accumulation_steps", "outcome", "peak_bytes", "update_s",
    "samples_per_s", "overhead", "num_recomputed", "is_best", "is_best_stock", "seconds", "commit", "machine",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), help="of experiments.peers")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "best_batch.csv")
    options = parser.parse_args()
    points = [{"model": name, "rows": options.rows, "share": options.share} for name in options.model]
    run_rows(points, compute, options.output, COLUMNS, digits=5)


def compute(point: Point) -> list[dict[str, Any]]:
    around = environment()
    rows = computed_apart("experiments.best_batch:find", point)["rows"]
    return [{**row, "commit": around["commit"], "machine": around["machine"]} for row in rows]


def find(point: Point) -> dict[str, Any]:
    import checkmate_tf
    from experiments.peers.models import build

    model, _ = build(point["model"], "stock")
    needed = checkmate_tf.estimate(model, batch_size=point["rows"]).peak_bytes
    found = checkmate_tf.best_batch(
        model, budget=int(point["share"] * needed), effective_batch_size=point["rows"], progress=False
    )
    known = {"budget_bytes": found.budget_bytes, "seconds": found.took_s}
    return {
        "rows": [
            {
                **known,
                **vars(trial),
                "samples_per_s": trial.samples_per_s,
                "is_best": trial is found.best,
                "is_best_stock": trial is found.best_stock,
            }
            for trial in found.trials
        ]
    }


if __name__ == "__main__":
    main()
