"""Checkmate, Figure 6: the largest batch in 16 GB at the cost of at most one more forward pass, by four methods.

The batch B is a variable (constraint (10)): every value takes B x M_i bytes and 2 x the parameters are fixed. A
schedule fits B rows exactly when it keeps within floor((16 GB - fixed) / B) bytes of the graph of one row, so problem
(9) is solved for such budgets by bisection. A B with a schedule of cost at most (10) is a lower bound; one for which it
is proved that none exists, or that the cheapest costs more, bounds B from above. Baselines are equation (11), their
hyperparameters chosen for the least memory among schedules that meet (10). Layer graphs of experiments/graphs: costs
in multiply-adds, values of 4 bytes an element.

    python -m experiments.checkmate.max_batch [--models unet ...] [--time-limit 30]
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.checkpointing.policy import (
    articulation_candidates,
    every_sqrt,
    greedy_choices,
    linear_candidates,
    retain_matrix,
)
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.stages import schedule_of_checkpoints
from experiments.checkmate.page import write_page
from experiments.layer_graphs import BATCH_SIZES, BYTES_PER_ELEMENT, committed_graph
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, run_points, runner_of

DEVICE_BYTES = 16 * 10**9
CLASSIFICATION_PIXELS, SEGMENTATION_PIXELS = 224 * 224, 416 * 608
PIXELS = {
    "unet": SEGMENTATION_PIXELS,
    "vgg_unet": SEGMENTATION_PIXELS,
    "fcn8": SEGMENTATION_PIXELS,
    "segnet": SEGMENTATION_PIXELS,
    "resnet50": CLASSIFICATION_PIXELS,
    "vgg16": CLASSIFICATION_PIXELS,
    "vgg19": CLASSIFICATION_PIXELS,
    "mobilenet": CLASSIFICATION_PIXELS,
}
MODELS = ("unet", "vgg_unet", "fcn8", "segnet", "resnet50", "vgg19", "mobilenet")
METHODS = ("retain_all", "ap_sqrt", "linearized_greedy", "ours")
LABELS = {
    "retain_all": "checkpoint all",
    "ap_sqrt": "AP sqrt(n)",
    "linearized_greedy": "linearized greedy",
    "ours": "ours",
}
# Named in section 6.4 or Figure 7: MobileNet 1,105 = 5.1 x checkpoint all = 1.73 x the best baseline. The U-Net of the
# authors' code is "U-Net with VGG16", vgg_unet; unet is that of Ronneberger et al.
PUBLISHED = {
    "mobilenet": {"retain_all": round(1105 / 5.1), "linearized_greedy": round(1105 / 1.73), "ours": 1105},
    "vgg_unet": {"retain_all": 16, "ours": 61},
    "vgg19": {"retain_all": 167, "ap_sqrt": 197, "ours": 289},
}
_NUM_SIZES = 200


class _Above(Exception):
    """It is proved that a batch costs more than allowed."""


def one_row(name: str) -> Graph:
    """A committed layer graph for a batch of one; the image is resident, parameters are left out."""
    graph = committed_graph(name)
    rows = BATCH_SIZES[name]
    values = tuple(replace(value, size_bytes=value.size_bytes // rows) for value in graph.values)
    nodes = tuple(replace(node, cost=node.cost // rows) for node in graph.nodes)
    return replace(graph, nodes=nodes, values=values, resident_bytes=3 * PIXELS[name] * BYTES_PER_ELEMENT)


def fixed_bytes(name: str) -> int:
    """Parameters and their gradients: M_fixed = 2 M_param."""
    return committed_graph(name).resident_bytes - BATCH_SIZES[name] * 3 * PIXELS[name] * BYTES_PER_ELEMENT


def most_cost(graph: Graph) -> int:
    """The right side of constraint (10)."""
    return graph.baseline_cost + sum(node.cost for node in graph.nodes if not node.is_backward)


def baseline_schedules(graph: Graph, method: str) -> list[Schedule]:
    """The schedules of a method over its hyperparameters."""
    if method == "retain_all":
        return [make_retain_all_schedule(graph)]
    if method == "ap_sqrt":
        choices: Sequence[tuple[int, ...]] = (every_sqrt(articulation_candidates(graph)),)
    else:
        choices = greedy_choices(graph, linear_candidates(graph), num_sizes=_NUM_SIZES)
    return [schedule_of_checkpoints(graph, retain_matrix(graph, choice)) for choice in choices]


def baseline_batch(graph: Graph, free_bytes: int, method: str, *, shape: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Equation (11); for `shape`, see `largest_batch`."""
    simulations = [simulate(graph, schedule) for schedule in baseline_schedules(graph, method)]
    within = [simulation for simulation in simulations if simulation.cost <= most_cost(graph)]
    if not within:
        return {"batch_size": 0, "overhead": None}
    least = min(within, key=lambda simulation: simulation.peak_bytes)
    return {"batch_size": largest_of_shape(free_bytes // least.peak_bytes, shape), "overhead": least.overhead}


def largest_batch(
    graph: Graph, free_bytes: int, time_limit_s: float, seed: int, *, shape: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """The largest batch with a schedule that meets (10), and the largest not proved impossible.

    `graph` is that of one row, and `free_bytes` the memory beside the fixed bytes. With a shape of (f, e), a batch of
    size B has f B^e rows. With (f, 2), a row is a square of an image, and B the side of f images in squares.
    """
    search = _Search(graph, free_bytes, time_limit_s, seed, shape)
    search.close(undecided_fits=False)
    search.close(undecided_fits=True)
    return {
        "batch_size": search.low,
        "at_most": search.high - 1,
        "overhead": search.overhead,
        "allowed_overhead": most_cost(search.graph) / search.graph.baseline_cost - 1,
        "num_solves": search.num_solves,
        "seconds": time.perf_counter() - search.started,
        "single_step": search.largest_within(find_peak_bound(search.graph).peak_bytes),
        "tried": search.tried,
    }


def largest_of_shape(num_rows: int, shape: tuple[int, int]) -> int:
    """The largest B with f B^e rows or fewer, for a shape of (f, e)."""
    factor, exponent = shape
    largest = round((num_rows / factor) ** (1 / exponent))
    return largest - (factor * largest**exponent > num_rows)


class _Search:
    """A bracket: `low` has a schedule, `high` is proved to have none."""

    def __init__(self, graph: Graph, free_bytes: int, time_limit_s: float, seed: int, shape: tuple[int, int]):
        self.graph, self.free_bytes, self.time_limit_s, self.seed = graph, free_bytes, time_limit_s, seed
        self.factor, self.exponent = shape
        self.started = time.perf_counter()
        self.high = self.largest_within(find_peak_bound(self.graph).peak_bytes) + 1
        self.schedule = make_retain_all_schedule(self.graph)
        self.low, self.overhead = 0, 0.0
        self.take(self.schedule)
        self.undecided: set[int] = set()
        self.num_solves = 0
        self.tried: dict[int, str] = {}

    def largest_within(self, row_bytes: int) -> int:
        """The largest batch if a row takes so many bytes, by equation (11)."""
        return largest_of_shape(self.free_bytes // row_bytes, (self.factor, self.exponent))

    def take(self, schedule: Schedule) -> None:
        simulation = simulate(self.graph, schedule)
        batch_size = self.largest_within(simulation.peak_bytes)
        if batch_size > self.low:
            self.low, self.schedule, self.overhead = batch_size, schedule, simulation.overhead

    def close(self, *, undecided_fits: bool) -> None:
        """Bisects; what stays undecided in time is taken for one that fits, or for one that does not."""
        low, high = self.low, self.high
        if not undecided_fits:
            high = min([high, *self.undecided])
        else:
            low = max([low, *self.undecided])
        while high - low > 1:
            batch_size = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
            outcome = self.solve(batch_size)
            if outcome == "fits" or (outcome == "undecided" and undecided_fits):
                low = max(batch_size, self.low)
            else:
                high = batch_size

    def solve(self, batch_size: int) -> str:
        """Problem (9) for one batch: "fits", "proved not to fit" or "undecided"."""
        most = most_cost(self.graph)

        def stop_above(progress: Any) -> None:
            if progress.cost_lower_bound > most:
                raise _Above

        self.num_solves += 1
        try:
            solution = solve(
                self.graph,
                self.free_bytes // (self.factor * batch_size**self.exponent),
                solver=Auto(start=self.schedule, tolerance=0.002),
                time_limit_s=self.time_limit_s,
                seed=self.seed,
                on_progress=stop_above,
            )
        except _Above:
            outcome = "proved not to fit"
        else:
            outcome = "undecided"
            if solution.simulation is not None and solution.simulation.cost <= most:
                assert solution.schedule is not None
                outcome = "fits"
                self.take(solution.schedule)
            elif solution.status is Status.INFEASIBLE or solution.cost_lower_bound > most:
                outcome = "proved not to fit"
        if outcome == "proved not to fit":
            self.high = min(self.high, batch_size)
        if outcome == "undecided":
            self.undecided.add(batch_size)
        self.tried[batch_size] = outcome
        return outcome


def compute(point: Point) -> dict[str, Any]:
    graph, free_bytes = one_row(point["model"]), DEVICE_BYTES - fixed_bytes(point["model"])
    if point["method"] != "ours":
        return baseline_batch(graph, free_bytes, point["method"])
    return largest_batch(graph, free_bytes, point["time_limit_s"], point["seed"])


def table(done: list[dict[str, Any]]) -> str:
    rows = []
    models = [model for model in MODELS if any(entry["point"]["model"] == model for entry in done)]
    for model in models:
        batch = {e["point"]["method"]: e["result"] for e in done if e["point"]["model"] == model}
        published = PUBLISHED.get(model, {})
        ours = batch["ours"]
        sizes = {method: batch[method]["batch_size"] for method in METHODS}
        best = max(sizes[method] for method in METHODS if method != "ours")
        rows.append(
            (
                model,
                *(_beside(sizes[method], published.get(method)) for method in METHODS),
                ours["at_most"],
                ours["single_step"],
                f"{sizes['ours'] / sizes['retain_all']:.2f}" if sizes["retain_all"] else "-",
                f"{sizes['ours'] / best:.2f}" if best else "-",
                f"{ours['overhead']:.1%} of {ours['allowed_overhead']:.1%}",
                ours["num_solves"],
                f"{ours['seconds']:.0f}",
            )
        )
    headers = ("model", *LABELS.values(), "at most", "largest step", "x all", "x best", "overhead", "solves", "seconds")
    return tabulate(rows, headers, disable_numparse=True) + (
        "\n\nPublished batches are in parentheses. At most: proved upper limit. Largest step: the batch at which the "
        "node that needs most memory fits alone.\n"
    )


def _beside(mine: int, published: int | None) -> str:
    return str(mine) if published is None else f"{mine} ({published})"


def plot(done: list[dict[str, Any]], models: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 1.6 * len(models), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(METHODS)
    for number, method in enumerate(METHODS):
        sizes = {e["point"]["model"]: e["result"]["batch_size"] for e in done if e["point"]["method"] == method}
        stock = {e["point"]["model"]: e["result"]["batch_size"] for e in done if e["point"]["method"] == "retain_all"}
        places = [index + (number - 1.5) * width for index in range(len(models))]
        bars = axes.bar(places, [sizes[m] / max(stock[m], 1) for m in models], width, label=LABELS[method])
        axes.bar_label(bars, [str(sizes[m]) for m in models], fontsize="x-small", rotation=90, padding=2)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("largest batch over that of checkpoint all")
    axes.margins(y=0.12)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    add_options(parser)
    parser.set_defaults(workers=1)  # each solve has processes of its own
    options = parser.parse_args(arguments)
    points: list[Point] = [
        {"model": model, "method": method, "time_limit_s": options.time_limit, "seed": 0}
        for model in options.models
        for method in METHODS
    ]
    folder = RESULTS_FOLDER / "checkmate"
    done = run_points(points, compute, CHECKMATE, part="max_batch", runner=runner_of(options))
    write_page()
    print(table(done))
    plot(done, options.models, folder / "figure6.png")


if __name__ == "__main__":
    main()
