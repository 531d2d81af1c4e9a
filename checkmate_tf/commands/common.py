"""Exit statuses, arguments and JSON output that several subcommands share."""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from checkmate_tf.errors import make_message, make_printable
from checkmate_tf.graph import Graph
from checkmate_tf.solution_json import save_solution, solution_to_json
from checkmate_tf.solvers import Solution, Status

_STANDARD_ERROR = 2


class ExitStatus(IntEnum):
    """The exit status of `checkmate-tf`."""

    FOUND = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


EXIT_STATUS = {
    Status.OPTIMAL: ExitStatus.FOUND,
    Status.FEASIBLE: ExitStatus.FOUND,
    Status.INFEASIBLE: ExitStatus.INFEASIBLE,
    Status.NOT_FOUND: ExitStatus.NOT_FOUND,
}


def add_graph_argument(parser: argparse.ArgumentParser) -> None:
    """Adds GRAPH.json."""
    parser.add_argument("graph", metavar="GRAPH.json", help="file of a training graph, in the format checkmate-graph/1")


def add_search_arguments(parser: argparse.ArgumentParser, *, limited: str = "each run of a solver") -> None:
    """Adds --time-limit, with the work that it covers as `limited`, --order and --seed."""
    parser.add_argument(
        "--time-limit",
        type=_parse_seconds,
        default=60.0,
        metavar="SECONDS",
        help=f"time for {limited} (default: %(default)g)",
    )
    parser.add_argument(
        "--order",
        choices=("fixed", "free"),
        default="fixed",
        help="fixed keeps first computations in the order of the graph, free may reorder them (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of random choices; the same seed leads to the same schedule (default: %(default)s)",
    )


def add_solver_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --solver."""
    parser.add_argument(
        "--solver", default="auto", metavar="NAME", help="a name from checkmate-tf solvers (default: auto)"
    )


def add_pattern_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --keep and --recompute."""
    helps = {
        "keep": 'layers or operations that are never computed again, such as "*attention*"; may be given several times',
        "recompute": "layers or operations whose results are not retained for the backward pass; may be given several "
        "times",
    }
    for name, text in helps.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar="PATTERN", help=text)


def add_costs_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --costs."""
    parser.add_argument(
        "--costs",
        default="auto",
        help="source of the nodes' costs: measured, roofline, flops, unit, or auto, which is roofline for a model that "
        "XLA compiles and measured otherwise; for a device that is not here: h100, a100, l4, t4, v100, or a file "
        "NAME.json that `checkmate-tf profile export` printed there (default: %(default)s)",
    )


def add_measure_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --no-measure."""
    parser.add_argument(
        "--no-measure", dest="measure", action="store_false", help="only predict, without running a step"
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")


def print_text(text: object) -> None:
    """Prints text, with characters from names in files and models that control a terminal escaped."""
    print(make_printable(str(text)))


def print_error(text: str) -> None:
    """Prints an error on standard error."""
    print(make_message(text), file=sys.stderr)


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one line of strict JSON."""
    print(json.dumps(data, allow_nan=False))


def write_outputs(*outputs: tuple[str | None, Callable[[str], object]]) -> None:
    """Writes the requested files, each by its function. If one fails, raises its OSError after the others."""
    failures = []
    for path, write in outputs:
        try:
            if path is not None:
                write(path)
        except OSError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def write_solution(solution: Solution, graph: Graph, path: str, *, is_printed: bool = False) -> None:
    """Writes a schedule file. If that fails, prints the schedule, which took long, unless it is printed already."""
    try:
        save_solution(solution, graph, path)
    except OSError:
        if not is_printed:
            print_json(solution_to_json(solution, graph))
        raise


def prepare_tensorflow() -> None:
    """Imports TensorFlow for a command that measures, without its start-up messages on standard error.

    oneDNN is enabled, because the allocator of the CPU counts memory only then, and it is the default only on newer
    processors. If TensorFlow cannot be imported, the messages are shown.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _hold_standard_error():
        import tensorflow as tf

        tf.config.list_physical_devices()  # looks for GPUs, and logs if there are none


@contextmanager
def _hold_standard_error() -> Iterator[None]:
    """Holds back text on standard error, including that from C++, and writes it only if an exception is raised."""
    sys.stderr.flush()
    terminal = os.dup(_STANDARD_ERROR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STANDARD_ERROR)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, _STANDARD_ERROR)
            os.close(terminal)


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds
