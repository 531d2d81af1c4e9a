"""How the rows of both tables are shown."""

from collections.abc import Callable, Sequence

from tabulate import tabulate

from experiments.running import Row


def table_of(columns: Sequence[str]) -> Callable[[Sequence[Row]], str]:
    """The table of these columns; bytes as MiB."""
    shown = (*columns, "error")
    headers = [column.replace("_bytes", ", MiB").replace("_", " ") for column in shown]
    return lambda rows: tabulate([[_shown(column, row[column]) for column in shown] for row in rows], headers)


def _shown(column: str, value: str) -> str | float:
    return round(int(value) / 2**20, 1) if value and column.endswith("_bytes") else value
