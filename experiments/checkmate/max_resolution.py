"""Checkmate, section 6.4: the largest images of U-Net in 16 GB at the cost of at most one more forward pass.

The paper says that its schedules can increase the resolution instead of the batch, and gives no figures. U-Net has only
convolutions, and halves an image four times. If the sides of an image are multiples of 32, its cost and its memory are
the sums of those of its squares of 32 x 32 pixels. A batch of images is then a batch of squares, to which the methods
of Figure 6 apply. Images are square here.

    python -m experiments.checkmate.max_resolution [--batches 1 4 16] [--time-limit 30]
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from checkmate_tf.graph import Graph
from experiments.checkmate.max_batch import (
    DEVICE_BYTES,
    LABELS,
    METHODS,
    PIXELS,
    baseline_batch,
    fixed_bytes,
    largest_batch,
    one_row,
)
from experiments.checkmate.page import write_page
from experiments.running import CHECKMATE, Point, add_options, run_points, runner_of

MODEL = "unet"
SIDE = 32  # pixels
BATCHES = (1, 4, 16)


def one_square() -> Graph:
    """The graph of one square. The loss is a single number for a row, and its size is left out."""
    graph = one_row(MODEL)

    def scale(number: int) -> int:
        return number * SIDE**2 // PIXELS[MODEL]

    values = tuple(replace(value, size_bytes=scale(value.size_bytes)) for value in graph.values)
    nodes = tuple(replace(node, cost=scale(node.cost)) for node in graph.nodes)
    return replace(graph, nodes=nodes, values=values, resident_bytes=scale(graph.resident_bytes))


def compute(point: Point) -> dict[str, Any]:
    graph, free_bytes, shape = one_square(), DEVICE_BYTES - fixed_bytes(MODEL), (point["images"], 2)
    if point["method"] != "ours":
        return baseline_batch(graph, free_bytes, point["method"], shape=shape)
    return largest_batch(graph, free_bytes, point["time_limit_s"], point["seed"], shape=shape)


def table(done: list[dict[str, Any]]) -> str:
    results = {(entry["point"]["images"], entry["point"]["method"]): entry["result"] for entry in done}
    rows = []
    for images in sorted({images for images, _ in results}):
        sides = {method: SIDE * results[images, method]["batch_size"] for method in METHODS}
        ours = results[images, "ours"]
        rows.append(
            (
                images,
                *sides.values(),
                SIDE * ours["at_most"],
                f"{(sides['ours'] / sides['retain_all']) ** 2:.2f}",
                f"{ours['overhead']:.1%} of {ours['allowed_overhead']:.1%}",
                f"{ours['seconds']:.0f}",
            )
        )
    headers = ("batch", *LABELS.values(), "at most", "pixels, x all", "overhead", "seconds")
    return tabulate(rows, headers, disable_numparse=True) + (
        "\n\nSides of square images in pixels, in steps of 32. At most: proved upper limit.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES), help="images at once")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    add_options(parser)
    parser.set_defaults(workers=1)  # each solve has processes of its own
    options = parser.parse_args(arguments)
    points: list[Point] = [
        {"images": images, "method": method, "time_limit_s": options.time_limit, "seed": 0}
        for images in options.batches
        for method in METHODS
    ]
    done = run_points(points, compute, CHECKMATE, part="max_resolution", runner=runner_of(options))
    write_page()
    print(table(done))


if __name__ == "__main__":
    main()
