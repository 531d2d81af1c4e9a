"""The benchmark's commands.

    python -m experiments.benchmark build FOLDER [--networks layers ops fastsa] [--graphs NAME ...]
    python -m experiments.benchmark solve FOLDER --time-limit 10 [--solvers auto ...] [--orders fixed free]
    python -m experiments.benchmark check FILE ... [--folder FOLDER] [--record NAME]

`build` writes the graphs and their manifest, `solve` runs solvers and keeps what they find, and `check` scores
schedules. docs/BENCHMARK.md documents the files.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from checkmate_tf.errors import CheckmateError
from experiments.benchmark.instances import BUDGETS_PERCENT, NETWORKS, build, load_manifest
from experiments.benchmark.results import COLUMNS, ORDERS, RESULTS, SOLVERS, page, solve_all
from experiments.benchmark.scoring import entry_key, entry_row, manifest_folder, scores, table
from experiments.running import all_columns, read_rows, run_rows, write_text

PAGE = RESULTS.with_suffix(".md")


def run_build(options: argparse.Namespace) -> None:
    entries = build(options.folder, options.networks, options.graphs)
    print(f"{len(entries)} graphs and {options.folder / 'manifest.json'}")


def run_solve(options: argparse.Namespace) -> None:
    entries = [entry for entry in load_manifest(options.folder) if not options.graphs or entry.name in options.graphs]
    solve_all(
        options.folder,
        entries,
        solvers=options.solvers,
        budgets=options.budgets,
        orders=options.orders,
        time_limit_s=options.time_limit,
    )
    write_text(PAGE, page())


def run_check(options: argparse.Namespace) -> None:
    rows = read_rows(RESULTS)
    scored = [
        (path.name, score)
        for path in options.files
        for score in scores(path, options.folder or manifest_folder(path), rows)
    ]
    print(table(scored))
    if options.record:
        entered = [score for _, score in scored if score.within_budget]
        run_rows(
            [entry_key(score, options.record) for score in entered],
            lambda point: next(entry_row(score) for score in entered if entry_key(score, options.record) == point),
            RESULTS,
            all_columns(COLUMNS),
            digits=6,
        )
        write_text(PAGE, page())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("build", help="write the graphs and their manifest")
    command.add_argument("folder", type=Path)
    command.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    command.add_argument("--graphs", nargs="+", default=[], metavar="NAME", help="only these")
    command.set_defaults(run=run_build)
    command = commands.add_parser("solve", help="run solvers, and keep what they find")
    command.add_argument("folder", type=Path)
    command.add_argument("--time-limit", type=float, default=10.0, help="seconds for each instance and solver")
    command.add_argument("--solvers", nargs="+", choices=SOLVERS, default=["auto"])
    command.add_argument("--budgets", nargs="+", type=int, choices=BUDGETS_PERCENT, default=list(BUDGETS_PERCENT))
    command.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    command.add_argument("--graphs", nargs="+", default=[], metavar="NAME", help="only these")
    command.set_defaults(run=run_solve)
    command = commands.add_parser("check", help="score schedules")
    command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    command.add_argument("--folder", type=Path, help="of the graphs; by default one above the file")
    command.add_argument("--record", metavar="NAME", help="enter the schedules under this name")
    command.set_defaults(run=run_check)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except CheckmateError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
