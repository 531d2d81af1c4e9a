"""MOCCASIN, Tables 2 and 3 (budgets of 90 and 80 % of the peak without rematerialization in the input order).

The paper keeps the input order. With `--order free` the same instances are solved without that constraint.

Its real-world graphs were not published: random layered graphs of as many nodes and about as many edges stand for them.

    python -m experiments.moccasin.table2 [--time-limit 60] [--order fixed|free] [--graphs rl-g1-n100 ...]
"""

import argparse
from collections.abc import Sequence
from typing import get_args

from tabulate import tabulate

from checkmate_tf.schedule import Order
from experiments.moccasin.page import write_page
from experiments.moccasin.points import PUBLISHED, compute, is_here, point
from experiments.running import RESULTS_FOLDER, Runner, run_points


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    parser.add_argument("--graphs", nargs="*", help="only these graphs")
    parser.add_argument("--percents", nargs="*", type=int, default=[90, 80])
    parser.add_argument("--order", choices=get_args(Order), default="fixed")
    parser.add_argument("--threads", type=int, default=2, help="threads of CP-SAT")
    options = parser.parse_args(arguments)
    wanted = [
        (graph, percent)
        for graph, percent in PUBLISHED
        if (not options.graphs or graph in options.graphs) and percent in options.percents and is_here(graph)
    ]
    points = [
        point(graph, percent, options.time_limit, order=options.order, workers=options.threads)
        for graph, percent in wanted
    ]
    part = "table2" if options.order == "fixed" else "table2_free"
    done = run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part=part, runner=Runner(1))
    rows = []
    for entry, key in zip(done, wanted, strict=True):
        result = entry["result"]
        rows.append(
            (
                key[0],
                f"({result['nodes']}, {result['edges']})",
                result["budget_bytes"],
                *PUBLISHED[key],
                result["overhead"],
                result["bound"],
                result["status"],
                result["peak_bytes"],
                result["time_to_best_s"],
            )
        )
    header = (
        "graph",
        "(n, m)",
        "budget",
        "published %",
        "in s",
        "ours %",
        "bound %",
        "status",
        "peak",
        "to best s",
        "s",
    )
    print(tabulate(rows, header, missingval="-"))
    write_page()


if __name__ == "__main__":
    main()
