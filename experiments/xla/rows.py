"""How rows are shown."""

from collections.abc import Callable, Sequence

from tabulate import tabulate

from experiments.running import Row


def table_of(columns: Sequence[str]) -> Callable[[Sequence[Row]], str]:
    """The table of these columns, in markdown; bytes as MiB."""
    shown = (*columns, "error")
    headers = [column.replace("_bytes", ", MiB").replace("_", " ") for column in shown]

    def table(rows: Sequence[Row]) -> str:
        lines = [[_shown(column, row[column]) for column in shown] for row in rows]
        return tabulate(lines, headers, tablefmt="github", floatfmt=".4g")

    return table


def _shown(column: str, value: str) -> str | float:
    if value and column.endswith("_bytes"):
        return round(int(value) / 2**20, 1)
    if column == "error" and "cannot be met" in value:
        return "refused"
    return " ".join(value[:80].split())
