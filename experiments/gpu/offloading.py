"""ResNet50 and GPT-2 at low budgets, planned for an H100 that is not there: recomputation, offloading, and both.

    python -m experiments.gpu.offloading [--model resnet50 gpt2] [--share 0.3 0.2] [--way recompute offload both]

`rematerialize` plans whole steps for `Options(device="h100")`; JAX and its CUDA plugin must be installed. "offload"
keeps every value that is not offloaded to host memory, and computes none again. GPT-2 computes its loss in chunks.
Nothing runs: peaks are those of XLA's buffer assignment for that GPU, and overheads are predicted, with a roofline for
nodes and the rate of the device's PCIe bus for copies. Each plan has a process of its own and a row of
`results/gpu_offloading.csv`. Rows that are there are not computed again.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.xla.compilers import has_jax
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "gpu_offloading.csv"
SHARES = (0.3, 0.2)
COLUMNS = (
    "model", "batch_size", "share", "way", "planning_s", "stock_peak_bytes", "budget_bytes", "predicted_peak_bytes",
    "compiled_peak_bytes", "overhead", "recomputed", "offloaded", "offloaded_bytes", "hidden_share",
    "least_known_bytes",
)  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "offload": {"offload": "host", "keep": ["*"]},
    "both": {"offload": "host"},
}
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch_size": 64},
    "gpt2": {"batch_size": 16, "chunk_loss": "auto"},
}


def compute(point: Point) -> dict[str, Any]:
    """Plans one model within one budget in one way."""
    from experiments.gpu.fit_parts import build_model

    settings = dict(MODELS[point["model"]])
    batch_size = settings.pop("batch_size")
    model, batch = build_model(point["model"], batch_size, "xla")
    options = checkmate_tf.Options(device="h100", **settings, **WAYS[point["way"]])
    began = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(
            model, data=batch, budget=f"{100 * point['share']:g}%", options=options, progress=False
        )
        row: dict[str, Any] = {}
    except InfeasibleBudgetError as error:
        plan = checkmate_tf.Plan(error.closest.planned)
        row = {"error": str(error), "least_known_bytes": error.least_budget_bytes}
    return row | {
        "batch_size": batch_size,
        "planning_s": time.perf_counter() - began,
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "compiled_peak_bytes": plan.measured_peak_bytes,
        "overhead": plan.overhead,
        "recomputed": len(plan.recomputed),
        "offloaded": len(plan.offloaded),
        "offloaded_bytes": sum(value.size_bytes for value in plan.offloaded),
        "hidden_share": plan.hidden_share,
    }


def table(rows: Sequence[Row]) -> str:
    """The table of the page, in markdown; of a refused budget, the plan of least memory."""
    lines = [
        {
            "model": f"{row['model']}, batch {row['batch_size']}",
            "budget": f"{float(row['share']):.0%}",
            "way": row["way"],
            **{
                f"{peak}, MiB": int(row[f"{peak}_peak_bytes"]) / 2**20 if row[f"{peak}_peak_bytes"] else ""
                for peak in ("stock", "predicted", "compiled")
            },
            "overhead": f"{float(row['overhead']):.1%}" if row["overhead"] else "",
            "recomputed": row["recomputed"],
            "offloaded, MiB": int(row["offloaded_bytes"]) / 2**20 if row["offloaded_bytes"] else "",
            "hidden": f"{float(row['hidden_share']):.0%}" if row["offloaded"] not in ("", "0") else "",
            "refused": row["error"].partition(". ")[0].partition(": ")[2][:90],
        }
        for row in rows
    ]
    return tabulate(lines, "keys", tablefmt="github", floatfmt=".0f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--share", nargs="+", type=float, default=SHARES, help="of the stock step's peak")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    if not has_jax():
        parser.error('JAX and its CUDA plugin are not installed: pip install "jax[cuda13]"')
    points = [
        {"model": model, "share": share, "way": way}
        for model in options.model
        for share in options.share
        for way in options.way
    ]
    print(table(run_apart("experiments.gpu.offloading", points, RESULTS, COLUMNS)))


if __name__ == "__main__":
    main()
