"""Checkmate, Figure 5 with the costs of an H100, estimated from its maker's figures.

The training step of each model is traced at the batch of `budget_curves.py`, which takes no memory. A node costs what a
roofline of the device says (`Options(costs="h100")` plans by the same), summed over layers as in `profiled_costs.py`.

    python -m experiments.checkmate.h100_costs [--models vgg16 ...] [--time-limit 10] [--workers 1]
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from experiments.checkmate.budget_curves import FIGURE_5, FRACTIONS, METHODS, overheads, plot, solved
from experiments.checkmate.page import write_page
from experiments.checkmate.profiled_costs import profiled_graph, speedup_on_unet, sum_layers, trace_step
from experiments.layer_graphs import BATCH_SIZES
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, read_points, run_points, runner_of

COSTS = "h100_layer_costs"  # the part of the results file that they are kept in
_DEVICE = "h100"


def estimate(point: Point) -> dict[str, Any]:
    """The time of each layer, ns: {"forward": {layer: ns}, "backward": {layer: ns}, "loss": ns}."""
    from checkmate_tf.profiling.devices import DEVICES

    step, layers = trace_step(point)
    device = DEVICES[point["device"]]
    return sum_layers(step, layers, [device.estimate_cost_ns(step, node) for node in range(len(step.graph.nodes))])


def compute(point: Point) -> dict[str, Any]:
    return solved(profiled_graph(point["model"], COSTS), point)


def table(done: list[dict[str, Any]]) -> str:
    models = [model for model in FIGURE_5 if any(entry["point"]["model"] == model for entry in done)]
    rows = []
    for entry in read_points(CHECKMATE, COSTS):
        point, result = entry["point"], entry["result"]
        forward, backward = (sum(result[side].values()) for side in ("forward", "backward"))
        rows.append((point["model"], point["batch_size"], *(ns / 1e6 for ns in (forward, backward, result["loss"]))))
    headers = ("model", "batch", "forward, ms", "gradients, ms", "loss, ms")
    speedups = [f"{speedup_on_unet(done, method):.2f}" for method in ("linearized_greedy", "linearized_sqrt")]
    limits = sorted({entry["point"]["time_limit_s"] for entry in done})
    return (
        f"Overhead in percent, * proved optimal; at most {' or '.join(f'{limit:g}' for limit in limits)} s a solve\n\n"
        f"{overheads(done, models)}\n\n"
        f"U-Net at the widest budget: linearized_greedy takes {speedups[0]} times the least cost, linearized_sqrt "
        f"{speedups[1]} times;\npublished for a V100 with 16 GB: 1.20 and 1.38.\n\n"
        f"Estimated: the time of all layers\n\n{tabulate(rows, headers, floatfmt='.1f')}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(FIGURE_5), choices=FIGURE_5)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each solve")
    add_options(parser)
    options = parser.parse_args(arguments)
    costs = [{"model": model, "batch_size": BATCH_SIZES[model], "device": _DEVICE} for model in options.models]
    run_points(costs, estimate, CHECKMATE, part=COSTS)
    points = [
        {"model": model, "fraction": fraction, "method": method, "time_limit_s": options.time_limit, "seed": 0}
        for model in options.models
        for fraction in FRACTIONS
        for method in METHODS
    ]
    done = run_points(points, compute, CHECKMATE, part="h100_costs", runner=runner_of(options))
    write_page()
    print(table(done))
    plot(done, options.models, RESULTS_FOLDER / "checkmate" / "figure5_h100.png")


if __name__ == "__main__":
    main()
