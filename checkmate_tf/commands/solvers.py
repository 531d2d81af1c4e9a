"""Lists every solver with a short description: `checkmate-tf solvers`."""

import argparse
import inspect
import re

from checkmate_tf.commands.common import ExitStatus, add_json_argument, print_json, print_text
from checkmate_tf.reports.tables import tabulate_rows
from checkmate_tf.solvers import SOLVER_NAMES, get_solver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `solvers`."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Prints a line for each solver."""
    described = [{"solver": name, "description": _describe(name)} for name in SOLVER_NAMES]
    if args.json:
        print_json({"solvers": described})
    else:
        print_text(tabulate_rows(described))
    return ExitStatus.FOUND


def _describe(name: str) -> str:
    """Returns the first sentence of the solver's file."""
    module = inspect.getmodule(type(get_solver(name)))
    text = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    return re.split(r"\.(?:\s+(?=[A-Z])|$)", text)[0]
