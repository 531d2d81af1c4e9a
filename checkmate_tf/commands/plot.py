"""Draws a schedule: `checkmate-tf plot GRAPH.json SCHEDULE.json`."""

import argparse

from checkmate_tf.budget import parse_budget
from checkmate_tf.commands.common import ExitStatus, add_graph_argument, print_text
from checkmate_tf.reports.tables import save_schedule_picture
from checkmate_tf.schedule import check_schedule
from checkmate_tf.serialization import load_graph, load_schedule
from checkmate_tf.simulator import simulate_stock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `plot`."""
    add_graph_argument(parser)
    parser.add_argument(
        "schedule",
        metavar="SCHEDULE.json",
        help="file of a schedule of that graph, written by checkmate-tf solve --output",
    )
    parser.add_argument(
        "--budget", help='memory budget to draw beside the memory in use: bytes, "6GiB", or "80%%" of the stock peak'
    )
    parser.add_argument(
        "--output",
        default="schedule.png",
        metavar="PICTURE.png",
        help="file for the picture: PNG, PDF or SVG (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> ExitStatus:
    """Draws a schedule into a file."""
    graph = load_graph(args.graph)
    schedule = load_schedule(args.schedule)
    check_schedule(graph, schedule)
    peak_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = None if args.budget is None else parse_budget(args.budget, peak_bytes=peak_bytes)
    save_schedule_picture(graph, schedule, args.output, budget_bytes=budget_bytes)
    print_text(f"wrote {args.output}")
    return ExitStatus.FOUND
