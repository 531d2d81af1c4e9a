"""Finds the fastest way to an effective batch within a budget: `checkmate-tf best-batch MODEL`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from checkmate_tf.commands.common import (
    ExitStatus,
    prepare_tensorflow,
    print_error,
    print_json,
    print_text,
    write_outputs,
    write_solution,
)
from checkmate_tf.commands.models import add_model_argument, add_plan_arguments, load_model, read_options
from checkmate_tf.errors import SearchInterrupt
from checkmate_tf.files import check_outputs
from checkmate_tf.reports.pictures import check_picture, save_figure

if TYPE_CHECKING:
    from checkmate_tf.max_batch.best_batch import BestBatch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `best-batch`."""
    add_model_argument(parser)
    parser.add_argument("--effective-batch-size", type=int, required=True, help="rows per update of the weights")
    parser.add_argument(
        "--budget", default="auto", help='memory budget in bytes or as "6GiB" (default: free memory minus 10%%)'
    )
    add_plan_arguments(parser, limited="the solver, for each micro-batch")
    parser.add_argument("--plot", metavar="PICTURE.png", help="file for a picture: PNG, PDF or SVG")


def run(args: argparse.Namespace) -> ExitStatus:
    """Tries micro-batches and prints the fastest. On Ctrl-C, prints the result so far and returns INTERRUPTED."""
    check_outputs([args.output, args.plot], inputs=[args.model])
    prepare_tensorflow()
    if args.plot is not None:
        check_picture(args.plot)
    from checkmate_tf.max_batch.best_batch import best_batch

    try:
        found = best_batch(
            load_model(args.model),
            effective_batch_size=args.effective_batch_size,
            budget=args.budget,
            time_limit_s=args.time_limit,
            options=read_options(args),
        )
    except SearchInterrupt as interrupt:
        print_error(f"checkmate-tf: {interrupt}")
        if interrupt.found is not None:
            _report(interrupt.found, args)
        return ExitStatus.INTERRUPTED
    _report(found, args)
    return ExitStatus.FOUND


def _report(found: "BestBatch", args: argparse.Namespace) -> None:
    if args.json:
        print_json(_list_figures(found))
    else:
        print_text(found)
    plan = found.plan
    write_outputs(
        (args.output, lambda path: write_solution(plan.solution, plan.graph, path)),
        (args.plot, lambda path: save_figure(found.plot(), path)),
    )


def _list_figures(found: "BestBatch") -> dict[str, Any]:
    return {
        "name": found.name,
        "device": found.device,
        "budget_bytes": found.budget_bytes,
        "effective_batch_size": found.effective_batch_size,
        "batch_size": found.batch_size,
        "accumulation_steps": found.accumulation_steps,
        "samples_per_s": found.best.samples_per_s,
        "normalizes": found.normalizes,
        "took_s": found.took_s,
        "trials": [{**asdict(trial), "samples_per_s": trial.samples_per_s} for trial in found.trials],
    }
