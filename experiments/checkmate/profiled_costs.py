"""Checkmate, Figure 5 with costs that the package's profiler measured on this machine, those of gradients their own.

The training step of each model is traced at a small batch, its operations are timed, and their times are summed over
the layer that they belong to, forward and backward apart; those of one kernel share its time in proportion to what
formulas say of them, and what belongs to no layer is the loss. The graphs are those of `budget_curves.py`, at its batch
and with its budgets; only the proportions of costs matter there.

    python -m experiments.checkmate.profiled_costs [--models vgg16 ...] [--time-limit 10] [--workers 1]
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.origins import read_scope
from experiments.checkmate.budget_curves import FIGURE_5, FRACTIONS, METHODS, overheads, plot, solved
from experiments.checkmate.page import write_page
from experiments.layer_graphs import committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, read_points, run_points, runner_of

BATCH_SIZES = {"vgg16": 2, "mobilenet": 2, "unet": 1}
LOSS = ""
COSTS = "layer_costs"  # the part of the results file that they are kept in


def measure(point: Point) -> dict[str, Any]:
    """The time of each layer, ns: {"forward": {layer: ns}, "backward": {layer: ns}, "loss": ns}."""
    from checkmate_tf.profiling.costs import cost_training_graph

    step, layers = trace_step(point)
    with TemporaryDirectory() as folder:
        graph = cost_training_graph(step, cache_path=Path(folder) / "profiles.sqlite").graph
    return sum_layers(step, layers, [node.cost for node in graph.nodes])


def trace_step(point: Point) -> tuple[Any, set[str]]:
    """Returns the traced gradients of a model at a batch, and the names of its layers."""
    import keras

    from checkmate_tf.tracing.extraction import extract
    from checkmate_tf.training.batches import guess_spec
    from checkmate_tf.training.model_variables import build_for
    from checkmate_tf.training.step_part import make_gradient_part
    from experiments.checkmate.models import MODELS

    model = MODELS[point["model"]]()
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    spec = guess_spec(model, point["batch_size"])
    build_for(model, spec)
    return extract(make_gradient_part(model).trace(spec)), {layer.name for layer in model.layers}


def sum_layers(step: Any, layers: set[str], costs_ns: Sequence[int]) -> dict[str, Any]:
    """Sums the costs of a traced step's nodes over the layers that they belong to, forward and backward apart."""
    from checkmate_tf.tracing.analytic_costs import estimate_op_cost_ns
    from checkmate_tf.tracing.origins import find_origins

    spent = {"forward": Counter[str](), "backward": Counter[str]()}
    for index, (node, origin) in enumerate(zip(step.graph.nodes, find_origins(step).nodes, strict=True)):
        ops = step.get_node_ops(index)
        shares = [estimate_op_cost_ns(op) for op in ops]
        for op, share in zip(ops, shares, strict=True):
            # A sum of gradients has no scope of its own.
            scopes = (*read_scope(op.name).split("/"), origin.layer)
            layer = next((scope for scope in scopes if scope in layers), LOSS)
            spent["backward" if node.is_backward else "forward"][layer] += costs_ns[index] * share / max(sum(shares), 1)
    loss_ns = sum(side.pop(LOSS, 0) for side in spent.values())
    return {"num_nodes": len(step.graph.nodes), "loss": round(loss_ns)} | {
        name: {layer: round(ns) for layer, ns in side.items()} for name, side in spent.items()
    }


@cache
def profiled_graph(model: str, part: str = COSTS) -> Graph:
    """The graph of a model's layers with the costs that a part of the results file has for them."""
    (measured,) = (e["result"] for e in read_points(CHECKMATE, part) if e["point"]["model"] == model)
    graph = committed_graph(model)
    names = {"loss": measured["loss"], **measured["forward"]}
    names |= {f"{layer}_gradient": cost for layer, cost in measured["backward"].items()}
    nodes = tuple(replace(node, cost=names.get(node.name, 0)) for node in graph.nodes)
    return replace(graph, nodes=nodes, cost_unit="ns")


def compute(point: Point) -> dict[str, Any]:
    return solved(profiled_graph(point["model"]), point)


def speedup_on_unet(done: list[dict[str, Any]], baseline: str) -> float:
    """The cost of a baseline over the least that any method has, at the widest budget."""
    there = {
        entry["point"]["method"]: entry["result"]["cost"]
        for entry in done
        if entry["point"]["model"] == "unet" and entry["point"]["fraction"] == max(FRACTIONS)
    }
    return there[baseline] / min(cost for cost in there.values() if cost is not None)


_NS = {"s": 1e9, "ms": 1e6}


def table(done: list[dict[str, Any]]) -> str:
    what = "Measured: the time of all layers, while other work ran on the machine"
    return tabulate_costs(done, COSTS, what=what, unit="s", batch="profiled batch", floatfmt=".3f")


def tabulate_costs(done: list[dict[str, Any]], part: str, *, what: str, unit: str, batch: str, floatfmt: str) -> str:
    """The overheads with the costs of layers in a part of the results file, and below them these costs."""
    models = [model for model in FIGURE_5 if any(entry["point"]["model"] == model for entry in done)]
    rows = []
    for entry in read_points(CHECKMATE, part):
        point, result = entry["point"], entry["result"]
        forward, backward = (sum(result[side].values()) for side in ("forward", "backward"))
        rows.append(
            (point["model"], point["batch_size"], *(ns / _NS[unit] for ns in (forward, backward, result["loss"])))
        )
    headers = ("model", batch, *(f"{side}, {unit}" for side in ("forward", "gradients", "loss")))
    speedups = [f"{speedup_on_unet(done, method):.2f}" for method in ("linearized_greedy", "linearized_sqrt")]
    limits = sorted({entry["point"]["time_limit_s"] for entry in done})
    return (
        f"Overhead in percent, * proved optimal; at most {' or '.join(f'{limit:g}' for limit in limits)} s a solve\n\n"
        f"{overheads(done, models)}\n\n"
        f"U-Net at the widest budget: linearized_greedy takes {speedups[0]} times the least cost, linearized_sqrt "
        f"{speedups[1]} times;\npublished for a V100 with 16 GB: 1.20 and 1.38.\n\n"
        f"{what}\n\n{tabulate(rows, headers, floatfmt=floatfmt)}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(__doc__, arguments)
    profiled = [{"model": model, "batch_size": BATCH_SIZES[model]} for model in options.models]
    run_points(profiled, measure, CHECKMATE, part=COSTS)  # one after the other: they are timed
    solve_all(options, compute, table, part="profiled_costs", picture="figure5_profiled.png")


def read_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options of a command that solves Figure 5 with costs of its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(FIGURE_5), choices=FIGURE_5)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each solve")
    add_options(parser)
    return parser.parse_args(arguments)


def solve_all(
    options: argparse.Namespace,
    compute: Callable[[Point], dict[str, Any]],
    table: Callable[[list[dict[str, Any]]], str],
    *,
    part: str,
    picture: str,
) -> None:
    """Solves each model at each budget by each method, and writes page, table and picture."""
    points = [
        {"model": model, "fraction": fraction, "method": method, "time_limit_s": options.time_limit, "seed": 0}
        for model in options.models
        for fraction in FRACTIONS
        for method in METHODS
    ]
    done = run_points(points, compute, CHECKMATE, part=part, runner=runner_of(options))
    write_page()
    print(table(done))
    plot(done, options.models, RESULTS_FOLDER / "checkmate" / picture)


if __name__ == "__main__":
    main()
