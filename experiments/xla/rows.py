"""What the rows of both tables have in common: what they were measured with, and how they are shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from experiments import running
from experiments.running import Row

# Of what a row was measured with.
_CIRCUMSTANCES = ("seed", "commit", "tensorflow", "keras", "machine")


def append_row(path: Path, columns: Sequence[str], values: dict[str, Any]) -> None:
    """Adds a row with its circumstances; what `values` does not tell of the columns is left empty."""
    found = running.environment()
    versions = found["versions"]
    known = {"seed": 0, "tensorflow": versions["tensorflow"], "keras": versions["keras"]}
    circumstances = known | {key: found[key] for key in ("commit", "machine")}
    running.append_row(path, [*columns, *_CIRCUMSTANCES], values | circumstances)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """These columns; bytes as MiB."""
    headers = [column.replace("_bytes", ", MiB").replace("_", " ") for column in columns]
    return tabulate([[_shown(column, row[column]) for column in columns] for row in rows], headers)


def _shown(column: str, value: str) -> str | float:
    return round(int(value) / 2**20, 1) if value and column.endswith("_bytes") else value
