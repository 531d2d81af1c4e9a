"""Checkmate, Figure 3: what the memory of a training step is used for, by architecture.

Features are the values that exist at the peak without rematerialization; parameters and their gradients are as large as
each other (equation 2). Dashed lines mark the memory of GPUs. The published figure also shows workspace, which
layer-level graphs do not have.

    python -m experiments.checkmate.memory_categories
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import simulate_stock
from experiments.checkmate.page import write_page
from experiments.layer_graphs import BATCH_SIZES, committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, in_order, run_points, runner_of

INPUT_ELEMENTS = {name: 416 * 608 * 3 if name in ("unet", "fcn8", "segnet") else 224 * 224 * 3 for name in BATCH_SIZES}
# Memory of GPUs that such networks were trained on, as the dashed lines of the published figure have it.
GPUS_GIB = {"Titan X": 12, "V100": 16, "V100 of 32 GB": 32, "A100": 40}
CATEGORIES = ("features", "input", "parameters", "parameter gradients")


def compute(point: Point) -> dict[str, Any]:
    graph = committed_graph(point["model"])
    peak_bytes = simulate_stock(graph).peak_bytes
    input_bytes = 4 * BATCH_SIZES[point["model"]] * INPUT_ELEMENTS[point["model"]]
    parameter_bytes = (graph.resident_bytes - input_bytes) // 2
    return {
        "features": peak_bytes - graph.resident_bytes,
        "input": input_bytes,
        "parameters": parameter_bytes,
        "parameter gradients": parameter_bytes,
    }


def table_rows(done: list[dict[str, Any]]) -> list[tuple[str, dict[str, int]]]:
    done = in_order(done, model=list(BATCH_SIZES))
    return [(f"{m['point']['model']}, batch {BATCH_SIZES[m['point']['model']]}", m["result"]) for m in done]


def table(done: list[dict[str, Any]]) -> str:
    rows = [
        (name, *(result[c] / 2**30 for c in CATEGORIES), find_gpu(sum(result.values()) / 2**30))
        for name, result in table_rows(done)
    ]
    return tabulate(rows, ("GiB", *CATEGORIES, "smallest GPU that holds it"), floatfmt=".2f") + "\n"


def find_gpu(needed_gib: float) -> str:
    """Returns the smallest of the marked GPUs whose memory is enough."""
    return next((f"{name}, {gib} GiB" for name, gib in GPUS_GIB.items() if gib >= needed_gib), "none of these")


def main(arguments: Sequence[str] | None = None) -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    folder = RESULTS_FOLDER / "checkmate"
    points = [{"model": model} for model in BATCH_SIZES]
    done = run_points(
        points, compute, CHECKMATE, part="memory_categories", runner=runner_of(parser.parse_args(arguments))
    )
    write_page()
    print(table(done))
    rows = table_rows(done)
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    below = [0.0] * len(rows)
    for category in CATEGORIES:
        heights = [result[category] / 2**30 for _, result in rows]
        axes.bar([name for name, _ in rows], heights, bottom=below, label=category)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    for name, gib in GPUS_GIB.items():
        axes.axhline(gib, linestyle="--", color="gray", linewidth=1)
        axes.annotate(
            f"{name}, {gib} GiB", (1, gib), xycoords=("axes fraction", "data"), ha="right", va="bottom", size=7
        )
    axes.tick_params("x", rotation=30)
    axes.set_ylabel("memory, GiB")
    axes.legend()
    figure.savefig(folder / "figure3.png", dpi=120)


if __name__ == "__main__":
    main()
