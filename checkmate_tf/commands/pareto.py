"""Measures the cost of each memory budget of a model's training step: `checkmate-tf pareto MODEL`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from checkmate_tf.commands.common import (
    ExitStatus,
    add_costs_argument,
    add_json_argument,
    add_measure_argument,
    add_search_arguments,
    prepare_tensorflow,
    print_error,
    print_json,
    print_text,
    write_outputs,
)
from checkmate_tf.commands.models import add_model_argument, load_model, read_options
from checkmate_tf.errors import SearchInterrupt
from checkmate_tf.files import check_outputs
from checkmate_tf.reports.pictures import check_picture, save_figure

if TYPE_CHECKING:
    from checkmate_tf.reports.budget_curve import Pareto


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `pareto`."""
    add_model_argument(parser)
    parser.add_argument("--batch-size", type=int, required=True, help="rows of the batch to plan for")
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help='in bytes, as "6GiB", or as "60%%" of the stock peak (default: ten, down to the least that works)',
    )
    parser.add_argument(
        "--other-solvers", nargs="+", default=[], metavar="NAME", help="further solvers to predict with"
    )
    add_measure_argument(parser)
    add_costs_argument(parser)
    add_search_arguments(parser, limited="the solver at all budgets together")
    parser.add_argument("--plot", metavar="PICTURE.png", help="file for a picture: PNG, PDF or SVG")
    parser.add_argument("--html", metavar="PAGE.html", help="file for a page with the curve and its figures")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Plans for all budgets and prints their costs. On Ctrl-C, prints the results so far and returns INTERRUPTED."""
    check_outputs([args.plot, args.html], inputs=[args.model])
    prepare_tensorflow()
    if args.plot is not None:
        check_picture(args.plot)
    from checkmate_tf.tradeoff.pareto import pareto

    try:
        curve = pareto(
            load_model(args.model),
            batch_size=args.batch_size,
            budgets=args.budgets,
            other_solvers=args.other_solvers,
            time_limit_s=args.time_limit,
            options=read_options(args),
            measure=args.measure,
        )
    except SearchInterrupt as interrupt:
        print_error(f"checkmate-tf: {interrupt}")
        if interrupt.found is not None:
            _report(interrupt.found, args)
        return ExitStatus.INTERRUPTED
    _report(curve, args)
    return ExitStatus.FOUND


def _report(curve: "Pareto", args: argparse.Namespace) -> None:
    if args.json:
        knee = curve.knee
        print_json({**asdict(curve), "knee_budget_bytes": None if knee is None else knee.budget_bytes})
    else:
        print_text(curve)
    write_outputs((args.plot, lambda path: save_figure(curve.plot(), path)), (args.html, curve.to_html))
