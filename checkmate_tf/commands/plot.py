"""Draws a schedule, or makes a page or a trace of it: `checkmate-tf plot GRAPH.json SCHEDULE.json`."""

import argparse
from dataclasses import replace
from pathlib import Path

from checkmate_tf.budget import parse_budget
from checkmate_tf.commands.common import ExitStatus, add_graph_argument, print_text
from checkmate_tf.files import check_outputs
from checkmate_tf.reports.page import save_page
from checkmate_tf.reports.pictures import save_picture
from checkmate_tf.reports.trace import save_trace
from checkmate_tf.reports.view import PlanView
from checkmate_tf.schedule import check_schedule
from checkmate_tf.serialization import load_graph, load_origins, load_schedule


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
        metavar="FILE",
        help="file to write: a picture as .png, .pdf or .svg, a page for a browser as .html, a trace for Perfetto as "
        ".json (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> ExitStatus:
    """Draws a schedule into a file."""
    check_outputs([args.output], inputs=[args.graph, args.schedule])
    graph = load_graph(args.graph)
    schedule = load_schedule(args.schedule)
    check_schedule(graph, schedule)
    view = PlanView(graph.name, graph, schedule, load_origins(args.graph))
    if args.budget is not None:
        view = replace(view, budget_bytes=parse_budget(args.budget, peak_bytes=view.stock.simulation.peak_bytes))
    writers = {".html": save_page, ".json": save_trace}
    writers.get(Path(args.output).suffix, save_picture)(view, args.output)
    print_text(f"wrote {args.output}")
    return ExitStatus.FOUND
