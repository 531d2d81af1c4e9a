"""Runs the `checkmate-tf` command: finds the module of a subcommand, runs it, and reports an error in one line.

A subcommand NAME is a module commands/NAME.py (`-` in the name becomes `_`) and a line in COMMANDS. The module has
`add_arguments(parser)` and `run(args) -> ExitStatus`. Only the module of the chosen subcommand is imported.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from checkmate_tf.commands.common import ExitStatus, print_error
from checkmate_tf.errors import CheckmateError, InfeasibleBudgetError, make_printable

COMMANDS = {
    "demo": "train two small models within memory budgets and show the extra time",
    "solve": "find the cheapest schedule of a training graph within a memory budget",
    "compare": "run several solvers on a training graph and compare their schedules",
    "solvers": "list the solvers with a short description of each",
    "profile": "measure the cost of a model's nodes on this device, and how well these costs predict whole steps",
    "cache": "list or clear the plans and measurements stored on disk",
    "estimate": "estimate the memory of a model's stock training step, part by part, without running it",
    "plan": "plan a model's training step within a memory budget, and measure the planned step",
    "pareto": "show the cost of each memory budget of a model's training step, predicted and measured",
    "max-batch": "find the largest batch, image or sequence whose training step fits a memory budget",
    "best-batch": "find the micro-batch and gradient accumulation that train the fastest within a memory budget",
    "plot": "draw the recomputations of a schedule and its memory over time, or write a page or a trace about it",
}
_LAST_STREAM = 2  # standard error


class _OneLineErrors(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(ExitStatus.BAD_INPUT, make_printable(f"{self.prog}: {message}; see {self.prog} --help\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status (see ExitStatus)."""
    _open_closed_streams()
    try:
        os.getcwd()
    except FileNotFoundError:  # Numba and TensorFlow cannot be imported there.
        return _report_failure("the current directory was removed: change to another", ExitStatus.BAD_INPUT)
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _OneLineErrors(
        prog="checkmate-tf",
        description="Train Keras models within a memory budget.",
        epilog="COMMAND --help describes one command. Exit status: 0 a schedule within the budget, 2 bad input, "
        "3 proved infeasible, 4 no schedule found in time.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen: Any = None
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if arguments and arguments[0] == name:
            chosen = import_module(f"checkmate_tf.commands.{name.replace('-', '_')}")
            chosen.add_arguments(subparser)
    try:
        args = parser.parse_args(arguments)
        status = int(chosen.run(args))
        sys.stdout.flush()
        return status
    except SystemExit as stop:
        return int(stop.code or 0)
    except BrokenPipeError:
        _drop_output()  # The reader has closed the pipe.
        return 0
    except InfeasibleBudgetError as error:
        return _report_failure(error, ExitStatus.INFEASIBLE if error.proved else ExitStatus.NOT_FOUND)
    except (CheckmateError, OSError) as error:
        status = _report_failure(error, ExitStatus.BAD_INPUT)
        try:
            sys.stdout.flush()
        except OSError:  # Standard output cannot be written.
            _drop_output()
        return status
    except KeyboardInterrupt:
        return _report_failure("interrupted", ExitStatus.INTERRUPTED)


def _open_closed_streams() -> None:
    """Opens the null device for each closed standard stream, because the next file would otherwise take its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _drop_output() -> None:
    """Keeps the interpreter from writing more to standard output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_failure(error: object, status: ExitStatus) -> int:
    print_error(f"checkmate-tf: {' '.join(str(error).split())}")
    return int(status)
