"""Finds a schedule within a budget: `checkmate-tf solve GRAPH.json --budget 80%`."""

import argparse

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.commands.common import (
    EXIT_STATUS,
    ExitStatus,
    add_graph_argument,
    add_json_argument,
    add_pattern_arguments,
    add_search_arguments,
    add_solver_argument,
    print_error,
    print_json,
    print_text,
    write_solution,
)
from checkmate_tf.files import check_outputs
from checkmate_tf.graph import Graph
from checkmate_tf.patterns import constrain_by_patterns
from checkmate_tf.progress import show_solving
from checkmate_tf.reports.tables import tabulate_solution
from checkmate_tf.serialization import load_graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solution_json import solution_to_json
from checkmate_tf.solvers import Solution, Status, Update, solve

# The fields of each update in `--json`.
_FIGURES = ("time_s", "cost", "peak_bytes", "cost_lower_bound")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `solve`."""
    add_graph_argument(parser)
    parser.add_argument(
        "--budget",
        required=True,
        help='memory budget in bytes, as "6GiB", or as "80%%" of the peak without rematerialization',
    )
    add_solver_argument(parser)
    add_pattern_arguments(parser)
    add_search_arguments(parser)
    parser.add_argument(
        "--output", metavar="SCHEDULE.json", help="file for the schedule, in the format checkmate-schedule/1"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Solves for a budget and prints the schedule's figures, or the least budget known to work."""
    check_outputs([args.output], inputs=[args.graph])
    graph = load_graph(args.graph)
    peak_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = parse_budget(args.budget, peak_bytes=peak_bytes)
    improvements: list[Update] = []
    with show_solving(graph, name=args.solver, time_limit_s=args.time_limit) as show:

        def on_progress(found: Update) -> None:
            improvements.append(found)
            show(found)

        solution = solve(
            graph,
            budget_bytes,
            solver=args.solver,
            order=args.order,
            time_limit_s=args.time_limit,
            seed=args.seed,
            on_progress=on_progress,
            keep=args.keep,
            recompute=args.recompute,
        )
    known_bytes = _find_least_budget(graph, solution, args)
    if args.json:
        more = {
            "budget_bytes": budget_bytes,
            "baseline_peak_bytes": peak_bytes,
            "least_budget_bytes": known_bytes,
            "progress": [{figure: getattr(update, figure) for figure in _FIGURES} for update in improvements],
        }
        print_json({**solution_to_json(solution, graph), **more})
    else:
        print_text(tabulate_solution(graph, solution, budget_bytes=budget_bytes))
    if args.output is not None and solution.schedule is not None:
        write_solution(solution, graph, args.output, is_printed=args.json)
    if known_bytes is not None:
        print_error(_explain_failure(graph, solution, budget_bytes, known_bytes))
    return EXIT_STATUS[solution.status]


def _find_least_budget(graph: Graph, solution: Solution, args: argparse.Namespace) -> int | None:
    """Returns the least budget known to work, in bytes; None if the given one worked."""
    if solution.schedule is not None:
        return None
    from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory

    time_limit_s = min(args.time_limit, 20.0)
    constrained = constrain_by_patterns(graph, keep=args.keep, recompute=args.recompute)
    return minimum_memory(constrained.graph, order=args.order, time_limit_s=time_limit_s, seed=args.seed).budget_bytes


def _explain_failure(graph: Graph, solution: Solution, budget_bytes: int, known_bytes: int) -> str:
    budget, known = format_bytes(budget_bytes), f"{format_bytes(known_bytes)} ({known_bytes} bytes)"
    if solution.status is Status.NOT_FOUND:
        why = f"({solution.stats['gave_up']})" if "gave_up" in solution.stats else "in time"
        proved = "none exists in Checkmate's stages, and " if solution.stats.get("infeasible_in") == "stages" else ""
        return (
            f"checkmate-tf: no schedule within {budget} found {why}; {proved}the least budget known to work is "
            f"{known}. Raise --budget or --time-limit, or try another --solver"
        )
    least = find_peak_bound(graph)
    if least.peak_bytes > budget_bytes:
        why = f"any schedule needs at least {format_bytes(least.peak_bytes)} (step {graph.nodes[least.node].name})"
    else:
        why = "no schedule in this --order exists"
    return f"checkmate-tf: budget {budget} is too small: {why}; the least budget known to work is {known}"
