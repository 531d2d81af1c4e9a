"""Checkmate, Figure 5 with the costs of an H100, estimated from its maker's figures.

The training step of each model is traced at the batch of `budget_curves.py`, which takes no memory. A node costs what a
roofline of the device says (`Options(costs="h100")` plans by the same), summed over layers as in `profiled_costs.py`.

    python -m experiments.checkmate.h100_costs [--models vgg16 ...] [--time-limit 10] [--workers 1]
"""

from collections.abc import Sequence
from typing import Any

from experiments.checkmate.budget_curves import solved
from experiments.checkmate.profiled_costs import (
    profiled_graph,
    read_options,
    solve_all,
    sum_layers,
    tabulate_costs,
    trace_step,
)
from experiments.layer_graphs import BATCH_SIZES
from experiments.running import CHECKMATE, Point, run_points

COSTS = "h100_layer_costs"  # the part of the results file that they are kept in
_DEVICE = "h100"


def estimate(point: Point) -> dict[str, Any]:
    """The time of each layer, ns: {"forward": {layer: ns}, "backward": {layer: ns}, "loss": ns}."""
    from checkmate_tf.profiling.devices import DEVICES

    step, layers = trace_step(point)
    device = DEVICES[point["device"]]
    return sum_layers(
        step, layers, [device.estimate_cost_ns(step, node, compiled=False) for node in range(len(step.graph.nodes))]
    )


def compute(point: Point) -> dict[str, Any]:
    return solved(profiled_graph(point["model"], COSTS), point)


def table(done: list[dict[str, Any]]) -> str:
    return tabulate_costs(
        done, COSTS, what="Estimated: the time of all layers", unit="ms", batch="batch", floatfmt=".1f"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(__doc__, arguments)
    costs = [{"model": model, "batch_size": BATCH_SIZES[model], "device": _DEVICE} for model in options.models]
    run_points(costs, estimate, CHECKMATE, part=COSTS)
    solve_all(options, compute, table, part="h100_costs", picture="figure5_h100.png")


if __name__ == "__main__":
    main()
