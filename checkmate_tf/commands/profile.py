"""Measures a model's nodes and how well they predict whole steps: `checkmate-tf profile MODEL | export`."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from checkmate_tf.budget import format_bytes
from checkmate_tf.commands.common import (
    ExitStatus,
    add_json_argument,
    add_search_arguments,
    add_solver_argument,
    prepare_tensorflow,
    print_json,
    print_text,
)
from checkmate_tf.commands.models import MODEL_HELP, load_model
from checkmate_tf.profiling.cache import ProfileCache
from checkmate_tf.reports.tables import tabulate_rows

if TYPE_CHECKING:
    from checkmate_tf.graph import Graph
    from checkmate_tf.profiling.profiler import Profile
    from checkmate_tf.schedule import Schedule

_NUM_TOP_NODES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `profile`."""
    parser.add_argument(
        "what",
        metavar="MODEL|export",
        help=f"{MODEL_HELP}; or export, to print the stored measurements",
    )
    parser.add_argument(
        "--batch-size", type=int, default=8, help="rows of the batch to profile with (default: %(default)s)"
    )
    parser.add_argument(
        "--budget",
        default="60%",
        help="memory budget of the rewritten step, which is measured too (default: 60%% of the stock peak)",
    )
    add_solver_argument(parser)
    add_search_arguments(parser, limited="the solver that plans that step")
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of measurements of each kind of step (default: %(default)s)"
    )
    parser.add_argument(
        "--cache", metavar="FILE", help="file that keeps the measurements (default: one in the user's cache directory)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Profiles a model, or prints the measurements in the cache."""
    return _export(args) if args.what == "export" else _profile(args)


def _export(args: argparse.Namespace) -> ExitStatus:
    with ProfileCache(args.cache) as cache:
        print(json.dumps(cache.export(), indent=None if args.json else 1))
    return ExitStatus.FOUND


def _profile(args: argparse.Namespace) -> ExitStatus:
    prepare_tensorflow()
    from checkmate_tf.executors.graph.accuracy import measure_accuracy
    from checkmate_tf.profiling.costs import cost_training_graph
    from checkmate_tf.profiling.device import find_default_device
    from checkmate_tf.profiling.profiler import profile_graph
    from checkmate_tf.simulator import make_retain_all_schedule
    from checkmate_tf.training.traced_model import trace_model

    traced = trace_model(load_model(args.what), batch_size=args.batch_size)
    step = traced.make_graph_step(traced.spec.make_zeros())
    profile = profile_graph(step.training_graph, cache_path=args.cache)
    training_graph = cost_training_graph(step.training_graph, cache_path=args.cache)
    graph = training_graph.graph
    schedules = {"in order": make_retain_all_schedule(graph)}
    rewritten = _solve_for_budget(graph, args)
    if rewritten is not None:
        schedules[f"budget {args.budget}"] = rewritten
    accuracy = measure_accuracy(
        training_graph, schedules, step.arguments or (), device=find_default_device(), rounds=args.rounds
    )
    if args.json:
        print_json(
            {
                "profile": _list_figures(profile),
                "accuracy": accuracy.list_figures(),
                "nodes": _list_costliest_nodes(graph, profile),
            }
        )
        return ExitStatus.FOUND
    print_text(_summarize(graph, profile))
    print_text(f"\nOne node after the other, beside what is resident:\n{accuracy.tabulate_steps()}")
    print_text(f"\nThe nodes that cost most:\n{tabulate_rows(_list_costliest_nodes(graph, profile))}")
    return ExitStatus.FOUND


def _solve_for_budget(graph: "Graph", args: argparse.Namespace) -> "Schedule | None":
    from checkmate_tf.budget import parse_budget
    from checkmate_tf.simulator import simulate_stock
    from checkmate_tf.solvers import solve

    peak_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = parse_budget(args.budget, peak_bytes=peak_bytes)
    solution = solve(
        graph, budget_bytes, solver=args.solver, order=args.order, time_limit_s=args.time_limit, seed=args.seed
    )
    return solution.schedule


def _summarize(graph: "Graph", profile: "Profile") -> str:
    lines = [
        f"{graph.name}: {len(graph.nodes)} nodes of {profile.num_signatures} signatures on {profile.key.device}, "
        f"{profile.num_measured} measured now, in {profile.took_s:.1f} s"
    ]
    if profile.reasons:
        node, reason = next(iter(profile.reasons.items()))
        lines.append(f"{len(profile.reasons)} are estimated, the first is {graph.nodes[node].name}: {reason}")
    return "\n".join(lines)


def _list_costliest_nodes(graph: "Graph", profile: "Profile") -> list[dict[str, Any]]:
    """Lists the nodes with the largest costs, each with its share of the whole step."""
    ranked = sorted(range(len(graph.nodes)), key=lambda node: -graph.nodes[node].cost)[:_NUM_TOP_NODES]
    rows = []
    for node in ranked:
        measurement = profile.measurements[node]
        rows.append(
            {
                "node": graph.nodes[node].name,
                "operations": graph.nodes[node].op_type,
                "cost ms": f"{graph.nodes[node].cost / 1e6:.2f}",
                "share": f"{graph.nodes[node].cost / max(graph.baseline_cost, 1):.1%}",
                "spread": f"{measurement.relative_spread:.1%}" if measurement else "estimated",
                "workspace": format_bytes(graph.nodes[node].workspace_bytes),
            }
        )
    return rows


def _list_figures(profile: "Profile") -> dict[str, Any]:
    return {
        **asdict(profile.key),
        "num_nodes": len(profile.measurements),
        "num_signatures": profile.num_signatures,
        "num_measured": profile.num_measured,
        "num_estimated": len(profile.reasons),
        "took_s": profile.took_s,
    }
