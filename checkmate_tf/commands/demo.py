"""Trains two models within memory budgets and prints one table: `checkmate-tf demo`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from checkmate_tf.budget import format_bytes
from checkmate_tf.commands.common import ExitStatus, add_json_argument, prepare_tensorflow, print_json, print_text
from checkmate_tf.files import check_outputs
from checkmate_tf.reports.tables import format_share, tabulate_rows

if TYPE_CHECKING:
    from checkmate_tf.demo import Result

BUDGETS = ("60%", "40%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `demo`."""
    parser.add_argument(
        "--output", default="demo-output", metavar="FOLDER", help="folder for the pages (default: %(default)s)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Trains both models at every budget, prints the results, and writes a page of each model's last plan."""
    check_outputs([args.output and Path(args.output, "page.html")])
    prepare_tensorflow()
    from tqdm import tqdm

    from checkmate_tf.demo import make_tasks, run_task

    results, pages = [], []
    with tqdm(total=2 * (1 + len(BUDGETS)), desc="training", unit="run", disable=None, leave=False) as bar:
        for task in make_tasks():
            for result in run_task(task, BUDGETS):
                results.append(result)
                bar.update()
            pages.append(_write_page(result, Path(args.output)))
    if args.json:
        print_json({"results": [_list_figures(result) for result in results], "pages": pages})
        return ExitStatus.FOUND
    print_text(tabulate_rows(_make_row(result) for result in results))
    print_text(
        "\nPeaks include parameters, optimizer state and batch; budgets are shares of the stock step's peak.\n"
        "Extra time is measured in planning, where each step runs in turn with the stock step."
    )
    print_text(f"A page of each model's last plan, to open in a browser: {' and '.join(pages)}")
    return ExitStatus.FOUND


def _write_page(result: "Result", folder: Path) -> str:
    assert result.plan is not None
    path = folder / f"{result.plan.graph.name}-{result.budget.rstrip('%')}.html"
    result.plan.to_html(path)
    return str(path)


def _make_row(result: "Result") -> dict[str, str]:
    plan = result.plan
    return {
        "model": result.task,
        "budget": f"{format_bytes(plan.budget_bytes)} ({result.budget})" if plan else result.budget,
        "predicted peak": format_bytes(result.predicted_peak_bytes),
        "measured peak": format_bytes(result.measured_peak_bytes),
        "step": f"{1000 * result.step_time_s:.0f} ms",
        "extra time": format_share(plan.measured_overhead) if plan else "-",
        "predicted": format_share(plan.overhead) if plan else "-",
        "solver": f"{plan.solution.solver} ({plan.solution.status})" if plan else "-",
        "weights differ by": f"{result.weight_difference:.1e}",
    }


def _list_figures(result: "Result") -> dict[str, float | int | str | None]:
    plan = result.plan
    return {
        "model": result.task,
        "budget": result.budget,
        "budget_bytes": plan.budget_bytes if plan else None,
        "predicted_peak_bytes": result.predicted_peak_bytes,
        "measured_peak_bytes": result.measured_peak_bytes,
        "step_time_s": result.step_time_s,
        "measured_overhead": plan.measured_overhead if plan else 0.0,
        "overhead": plan.overhead if plan else 0.0,
        "solver": plan.solution.solver if plan else None,
        "weight_difference": result.weight_difference,
    }
