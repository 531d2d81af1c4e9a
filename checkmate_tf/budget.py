"""Parses memory budgets, such as "6GiB" or "60%", and formats bytes for people."""

import math
import re
from fractions import Fraction
from numbers import Rational, Real

from checkmate_tf.errors import BudgetError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_MOST_BYTES = 10**18  # more than any machine has, and within 64 bits
_SOME_PEAK_BYTES = 10**12
_PATTERN = re.compile(r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*(%|[a-z]*)\s*", re.IGNORECASE)


def parse_budget(budget: int | float | str, *, peak_bytes: int) -> int:
    """Returns the bytes of a budget: bytes, "6GiB", "500 MB", or a percentage of `peak_bytes`, "60%".

    Raises BudgetError if it cannot be read, is less than one byte, or is above 10**18 bytes.

    >>> parse_budget("60%", peak_bytes=2000), parse_budget("1.5 KiB", peak_bytes=2000)
    (1200, 1536)
    """
    if isinstance(budget, bool) or not isinstance(budget, (Real, str)):
        raise BudgetError(f'budget {budget!r} is not bytes, a size such as "6GiB" or a percentage such as "60%"')
    amount, unit = _split_amount(budget)
    if unit != "%" and unit not in _UNITS:
        raise BudgetError(f'budget {budget!r} has the unknown unit {unit!r}; use MiB, GiB, MB, GB, bytes or "%"')
    if not unit and 0 < amount < 1:
        meant = f'"{100 * float(amount):g}%"'
        raise BudgetError(f"budget {budget!r} is {float(amount):g} bytes; for a share of the stock peak write {meant}")
    num_bytes = amount * peak_bytes / 100 if unit == "%" else amount * _UNITS[unit]
    if abs(num_bytes) > _MOST_BYTES:
        raise BudgetError(f"the budget is not between 1 and {_MOST_BYTES:g} bytes; use the device's memory")
    if num_bytes < 1:
        raise BudgetError(f"budget {budget!r} is {float(num_bytes):g} bytes; it must be at least 1 byte")
    return int(num_bytes)


def check_budget(budget: int | float | str) -> None:
    """Raises BudgetError for a value that cannot be a budget for any peak."""
    parse_budget(budget, peak_bytes=_SOME_PEAK_BYTES)


def format_bytes(num_bytes: int) -> str:
    """Formats bytes in the largest binary unit of which they are at least 1.

    >>> format_bytes(1536)
    '1.50 KiB'
    """
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def _split_amount(budget: int | float | str) -> tuple[Fraction, str]:
    """Splits a budget into an exact number and a unit."""
    if isinstance(budget, Rational):
        return Fraction(budget), ""
    if not isinstance(budget, str):
        if not math.isfinite(budget):
            raise BudgetError(f"budget {budget!r} is {budget:g} bytes; it must be a finite number of bytes")
        return Fraction(float(budget)), ""
    match = _PATTERN.fullmatch(budget.removeprefix("-"))
    if match is None:
        raise BudgetError(f'budget {budget!r} is not bytes, a size such as "6GiB" or a percentage such as "60%"')
    sign = -1 if budget.startswith("-") else 1
    return sign * Fraction(match[1]), match[2].lower()
