"""Plans a model's training step within a budget, and measures its memory and time: `checkmate-tf plan MODEL`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from checkmate_tf.commands.common import (
    ExitStatus,
    add_measure_argument,
    add_pattern_arguments,
    prepare_tensorflow,
    print_json,
    print_text,
    write_outputs,
    write_solution,
)
from checkmate_tf.commands.models import (
    add_model_argument,
    add_plan_arguments,
    load_model,
    read_options,
)
from checkmate_tf.files import check_outputs

if TYPE_CHECKING:
    from checkmate_tf.reports.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `plan`."""
    add_model_argument(parser)
    parser.add_argument("--batch-size", type=int, required=True, help="rows of the batch to plan for")
    parser.add_argument(
        "--budget",
        default="auto",
        help='memory budget in bytes, as "6GiB", or as "60%%" of the stock peak (default: free memory minus 10%%)',
    )
    add_measure_argument(parser)
    add_plan_arguments(parser)
    add_pattern_arguments(parser)
    parser.add_argument(
        "--offload",
        metavar="PLACE",
        help="file:DIRECTORY: copy values to a file in a directory and back, if that costs less than computing them "
        "again; host: copy them from a GPU to host memory",
    )
    parser.add_argument(
        "--bandwidth", metavar="BYTES", help='bytes per second of these copies, such as "2GiB" (default: measured)'
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="plan for a GPU that this machine need not have: h100, a100, l4, t4 or v100. JAX then compiles the step "
        "with XLA, for any model",
    )
    parser.add_argument(
        "--graph", metavar="GRAPH.json", help="file for the training graph, in the format checkmate-graph/1"
    )
    parser.add_argument("--html", metavar="PLAN.html", help="file for a page about the plan, to open in a browser")
    parser.add_argument(
        "--save", metavar="PLAN.json", help="file for the plan, which rematerialize(model, plan=...) installs"
    )
    parser.add_argument("--trace", metavar="TRACE.json", help="file for a trace of the step, to open in Perfetto")


def run(args: argparse.Namespace) -> ExitStatus:
    """Plans the step of a model and prints the plan."""
    check_outputs([args.output, args.graph, args.html, args.trace, args.save], inputs=[args.model])
    prepare_tensorflow()
    from checkmate_tf.serialization import save_graph
    from checkmate_tf.training.rematerialize import rematerialize

    options, model = read_options(args), load_model(args.model)
    if options.device is not None:
        model.jit_compile = True
    plan = rematerialize(
        model,
        batch_size=args.batch_size,
        budget=args.budget,
        time_limit_s=args.time_limit,
        options=options,
        measure=args.measure,
    )
    if args.json:
        print_json(_list_figures(plan))
    else:
        print_text(plan)
    write_outputs(
        (args.output, lambda path: write_solution(plan.solution, plan.graph, path)),
        (args.graph, lambda path: save_graph(plan.graph, path, plan.origins)),
        (args.html, plan.to_html),
        (args.trace, plan.to_trace),
        (args.save, plan.save),
    )
    return ExitStatus.FOUND


def _list_figures(plan: "Plan") -> dict[str, Any]:
    return {
        "name": plan.name,
        "budget_bytes": plan.budget_bytes,
        "stock_peak_bytes": plan.stock_peak_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "predicted_stock_peak_bytes": plan.predicted_stock_peak_bytes,
        "resident_bytes": asdict(plan.resident),
        "overhead": plan.overhead,
        "measured_overhead": plan.measured_overhead,
        "patterns": [asdict(one) for one in plan.patterns],
        "num_nodes": len(plan.graph.nodes),
        "recomputed": [asdict(one) for one in plan.recomputed],
        "offloaded": [asdict(one) for one in plan.offloaded],
        "hidden_share": plan.hidden_share,
        "solver": plan.solution.solver,
        "status": str(plan.solution.status),
        "gap": plan.solution.gap,
        "solve_time_s": plan.solution.solve_time_s,
    }
