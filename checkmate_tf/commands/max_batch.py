"""Finds the largest batch, image or sequence that fits a budget: `checkmate-tf max-batch MODEL`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from checkmate_tf.commands.common import (
    ExitStatus,
    add_measure_argument,
    prepare_tensorflow,
    print_error,
    print_json,
    print_text,
    write_solution,
)
from checkmate_tf.commands.models import add_model_argument, add_plan_arguments, load_model, read_options
from checkmate_tf.errors import SearchInterrupt
from checkmate_tf.files import check_outputs

if TYPE_CHECKING:
    from checkmate_tf.max_batch.result import MaxBatch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `max-batch`."""
    add_model_argument(parser)
    parser.add_argument("--batch-size", type=int, help="rows of the batch, for every axis but the batch itself")
    parser.add_argument(
        "--budget", default="auto", help='memory budget in bytes or as "6GiB" (default: free memory minus 10%%)'
    )
    parser.add_argument(
        "--max-overhead",
        default="one forward pass",
        help='limit on the extra time: "one forward pass", "10%%" or none (default: %(default)s)',
    )
    parser.add_argument(
        "--axis",
        default="batch",
        metavar="AXIS",
        help="dimension to enlarge: batch, height, width, image (height and width) or length (default: %(default)s)",
    )
    parser.add_argument("--minimum", type=int, help="the smallest size allowed (default: that of --multiple-of)")
    parser.add_argument("--maximum", type=int, default=4096, help="the largest size allowed (default: %(default)s)")
    parser.add_argument(
        "--multiple-of", type=int, default=1, help="try only multiples of this size (default: %(default)s)"
    )
    add_measure_argument(parser)
    add_plan_arguments(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Searches for the largest size and prints it. On Ctrl-C, prints the result so far and returns INTERRUPTED."""
    check_outputs([args.output], inputs=[args.model])
    prepare_tensorflow()
    from checkmate_tf.max_batch.max_batch_size import max_batch_size
    from checkmate_tf.max_batch.sized_step import Axis

    try:
        found = max_batch_size(
            load_model(args.model),
            batch_size=args.batch_size,
            budget=args.budget,
            max_overhead=None if args.max_overhead == "none" else args.max_overhead,
            axis=Axis(args.axis, args.minimum, args.maximum, args.multiple_of),
            time_limit_s=args.time_limit,
            options=read_options(args),
            measure=args.measure,
        )
    except SearchInterrupt as interrupt:
        print_error(f"checkmate-tf: {interrupt}")
        if interrupt.found is not None:
            _report(interrupt.found, args)
        return ExitStatus.INTERRUPTED
    _report(found, args)
    return ExitStatus.FOUND


def _report(found: "MaxBatch", args: argparse.Namespace) -> None:
    if args.json:
        print_json(list_figures(found))
    else:
        print_text(found)
    if args.output is not None:
        write_solution(found.plan.solution, found.plan.graph, args.output)


def list_figures(found: "MaxBatch") -> dict[str, Any]:
    """Lists the result and every trial, for JSON."""
    plan = found.plan
    return {
        "axis": found.axis,
        "size": found.size,
        "batch_size": found.batch_size,
        "stock_size": found.stock_size,
        "confirmed": found.confirmed,
        "beyond": found.beyond,
        "budget_bytes": found.budget_bytes,
        "max_overhead": found.max_overhead,
        "overhead": plan.overhead,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "num_solves": found.num_solves,
        "cost_error": found.cost_error,
        "took_s": found.took_s,
        "trials": [asdict(trial) for trial in found.trials],
    }
