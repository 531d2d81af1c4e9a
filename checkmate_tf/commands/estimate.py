"""Estimates the memory of a model's stock training step, part by part: `checkmate-tf estimate MODEL --batch-size N`."""

import argparse
from dataclasses import asdict

from checkmate_tf.commands.common import ExitStatus, add_json_argument, prepare_tensorflow, print_json, print_text
from checkmate_tf.commands.models import add_model_argument, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `estimate`."""
    add_model_argument(parser)
    parser.add_argument("--batch-size", type=int, required=True, help="rows of the batch")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Estimates the step of a model and prints the parts. Returns FOUND whether or not they fit the device."""
    prepare_tensorflow()
    from checkmate_tf.training.estimate import estimate

    found = estimate(load_model(args.model), batch_size=args.batch_size)
    if args.json:
        print_json({"peak_bytes": found.peak_bytes, **asdict(found)})
    else:
        print_text(found)
    return ExitStatus.FOUND
