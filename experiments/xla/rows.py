"""The rows of an experiment in one CSV file, each appended when it is known: a run goes on where it stopped."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from experiments.running import environment

# Of what a row was measured with.
_CIRCUMSTANCES = ("seed", "commit", "tensorflow", "keras", "machine")

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, columns: Sequence[str], values: dict[str, Any]) -> None:
    """Adds a row with its circumstances; what `values` does not tell of the columns is left empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    found = environment()
    versions = found["versions"]
    known = {"seed": 0, "tensorflow": versions["tensorflow"], "keras": versions["keras"]}
    circumstances = known | {key: found[key] for key in ("commit", "machine")}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *_CIRCUMSTANCES], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(values | circumstances)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """These columns; bytes as MiB."""
    headers = [column.replace("_bytes", ", MiB").replace("_", " ") for column in columns]
    return tabulate([[_shown(column, row[column]) for column in columns] for row in rows], headers)


def _shown(column: str, value: str) -> str | float:
    return round(int(value) / 2**20, 1) if value and column.endswith("_bytes") else value
