"""Compares solvers side by side: `checkmate-tf compare GRAPH.json --budget 90% 80%`."""

import argparse

from checkmate_tf.budget import parse_budget
from checkmate_tf.commands.common import (
    EXIT_STATUS,
    ExitStatus,
    add_graph_argument,
    add_json_argument,
    add_search_arguments,
    print_error,
    print_json,
    print_text,
)
from checkmate_tf.errors import SolverError
from checkmate_tf.files import check_outputs
from checkmate_tf.graph import Graph
from checkmate_tf.progress import show_solving
from checkmate_tf.reports.pictures import check_picture
from checkmate_tf.reports.tables import make_comparison_row, save_pareto_picture, tabulate_rows
from checkmate_tf.serialization import load_graph
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solution_json import solution_to_json
from checkmate_tf.solvers import SOLVER_NAMES, Solution, get_solver, solve

_MOST_NODES_EXHAUSTIVE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `compare`."""
    add_graph_argument(parser)
    parser.add_argument(
        "--budget",
        required=True,
        nargs="+",
        help='memory budgets, each in bytes, as "6GiB", or as "80%%" of the peak without rematerialization',
    )
    parser.add_argument(
        "--solver",
        nargs="+",
        metavar="NAME",
        help=f"solvers to run (default: all; exhaustive only up to {_MOST_NODES_EXHAUSTIVE} nodes)",
    )
    add_search_arguments(parser)
    parser.add_argument("--plot", metavar="PICTURE.png", help="file for a picture of overhead over peak memory")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Runs the solvers. Returns FOUND if some solver has a schedule for every budget.

    Otherwise returns the worst status of a budget.
    """
    check_outputs([args.plot], inputs=[args.graph])
    if args.plot is not None:
        check_picture(args.plot)
    graph = load_graph(args.graph)
    peak_bytes = simulate_stock(graph).peak_bytes
    budgets = {text: parse_budget(text, peak_bytes=peak_bytes) for text in args.budget}
    names = args.solver or _choose_solvers(graph)
    for name in names:
        get_solver(name)
    solutions: dict[str, list[Solution]] = {}
    for text, budget_bytes in budgets.items():
        solutions[text] = []
        for name in names:
            with show_solving(graph, name=f"{text} {name}", time_limit_s=args.time_limit) as on_progress:
                try:
                    solution = solve(
                        graph,
                        budget_bytes,
                        solver=name,
                        order=args.order,
                        time_limit_s=args.time_limit,
                        seed=args.seed,
                        on_progress=on_progress,
                    )
                except SolverError as error:
                    print_error(f"checkmate-tf: {name} at {text}: {error}")
                    continue
            solutions[text].append(solution)
    if args.json:
        entries = [
            {**solution_to_json(solution, graph), "budget_bytes": budgets[text]}
            for text, of_budget in solutions.items()
            for solution in of_budget
        ]
        print_json({"graph": graph.name, "baseline_peak_bytes": peak_bytes, "solutions": entries})
    else:
        rows = [
            make_comparison_row(graph, solution, budget=text)
            for text, of_budget in solutions.items()
            for solution in of_budget
        ]
        print_text(tabulate_rows(rows))
    if args.plot is not None:
        save_pareto_picture(graph, [solution for of_budget in solutions.values() for solution in of_budget], args.plot)
    return max(_choose_status(of_budget) for of_budget in solutions.values())


def _choose_solvers(graph: Graph) -> list[str]:
    """Returns the solvers that are worth running on a graph of this size."""
    small = len(graph.nodes) <= _MOST_NODES_EXHAUSTIVE
    return [name for name in SOLVER_NAMES if small or name != "exhaustive"]


def _choose_status(solutions: list[Solution]) -> ExitStatus:
    statuses = {EXIT_STATUS[solution.status] for solution in solutions}
    return min(statuses, default=ExitStatus.NOT_FOUND)
