"""Applies each listed mutation to a copy of the package, runs its tests there, and counts those that they catch.

A mutation is caught where one of its tests fails. Before any is applied, all their tests have to pass in that copy.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from experiments.running import environment_cells, read_rows
from tests.mutations.listed import MUTATIONS
from tests.mutations.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]
_ROOMS_BESIDE = ("profiling", "solvers")  # which are installed in checkmate_tf
_PASSED, _FAILED = 0, 1  # of what pytest returns; all else is a fault of the mutation or of its tests
_LIMIT_S = 120  # for one test: a mutation may make it run for ever


def main() -> int:
    """Returns 1 where a mutation is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", nargs="+", type=int, help="the numbers of the mutations to apply (default: all)")
    parser.add_argument("--csv", type=Path, help="keep what caught each in this file, with the commit and the versions")
    args = parser.parse_args()
    chosen = {number: MUTATIONS[number] for number in args.only or range(len(MUTATIONS))}
    environment = environment_cells() if args.csv else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_package(tree)
        failed = find_failed_test(tree, {test for mutation in chosen.values() for test in mutation.tests})
        if failed:
            sys.exit(f"{failed} fails without any mutation: mend it first")
        for number, mutation in tqdm(chosen.items(), disable=None):
            caught_by = try_mutation(tree, mutation)
            rows.append({"number": number, "path": mutation.path, "why": mutation.why, "caught_by": caught_by})
            if not caught_by:
                tqdm.write(f"survives: number {number}, {mutation.path}: {mutation.old!r} -> {mutation.new!r}")
    num_caught = sum(bool(row["caught_by"]) for row in rows)
    print(f"{num_caught} of {len(rows)} mutations are caught")
    if args.csv:
        keep_rows(args.csv, [row | environment for row in rows])
    return int(num_caught < len(rows))


def source_of(path: str) -> Path:
    """The file of this repository that is installed as `path`."""
    inside = path.removeprefix("checkmate_tf/")
    return ROOT / (inside if inside.partition("/")[0] in _ROOMS_BESIDE else path)


def keep_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Writes rows to a CSV file, in place of those of the same numbers there."""
    new = {str(row["number"]): row for row in rows}
    known = {row["number"]: row for row in read_rows(path)}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for _, row in sorted((known | new).items(), key=lambda item: int(item[0])))


def copy_package(tree: Path) -> None:
    """Copies the package, laid out as it is installed, and its tests to a folder."""
    ignore = shutil.ignore_patterns("results")
    for room in ("checkmate_tf", "tests", "experiments"):
        shutil.copytree(ROOT / room, tree / room, ignore=ignore)
    for room in _ROOMS_BESIDE:
        shutil.copytree(ROOT / room, tree / "checkmate_tf" / room, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tree)


def try_mutation(tree: Path, mutation: Mutation) -> str:
    """Applies a mutation, and takes it back once its tests ran; returns the test that caught it, "" where none did."""
    path = tree / mutation.path
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.apply(text), encoding="utf-8")
    try:
        return find_failed_test(tree, mutation.tests)
    finally:
        path.write_text(text, encoding="utf-8")


def find_failed_test(tree: Path, tests: Iterable[str]) -> str:
    """Runs tests in a copy of the package until one fails, and returns that one; "" where all pass."""
    # Bytecode is told by a file's size and its time in whole seconds, which a mutation may leave as they were.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", f"timeout={_LIMIT_S}"]
    command = [sys.executable, "-m", "pytest", *options, *sorted(tests)]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if run.returncode == _PASSED:
        return ""
    failed = re.search(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
    timed_out = re.search(r"Timeout .*\n", run.stdout + run.stderr)
    if run.returncode != _FAILED or not (failed or timed_out):
        sys.exit(f"the tests did not run:\n{run.stdout[-4000:]}{run.stderr[-4000:]}")
    return failed[1] if failed else "a test that did not end"


if __name__ == "__main__":
    sys.exit(main())
