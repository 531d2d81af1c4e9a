"""A section of a page: what an experiment measured, its command and its table."""

from importlib import import_module

from experiments.running import made_with, read_rows


def section(title: str, name: str, what: str) -> str:
    """The section, in markdown, of the module `experiments.NAME`, which has `RESULTS` and `table(rows)`."""
    module = import_module(f"experiments.{name}")
    rows = read_rows(module.RESULTS)
    command = f"`python -m experiments.{name}`, kept in `{module.RESULTS.name}`"
    return f"## {title}\n\n{command}\n\n{what}\n\n{module.table(rows)}\n\n{made_with(rows)}\n"
