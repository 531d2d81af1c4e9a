"""Budgets as people write them."""

import math

import numpy as np
import pytest

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.errors import BudgetError


@pytest.mark.parametrize(
    ("budget", "num_bytes"),
    [
        (1, 1),
        (12_345, 12_345),
        (13_484_795_520, 13_484_795_520),
        (1e9, 1_000_000_000),
        (np.int64(7), 7),
        ("4096", 4096),
        ("4096 B", 4096),
        ("6GiB", 6 * 1024**3),
        ("6 gib", 6 * 1024**3),
        (" 1.5 KiB ", 1536),
        ("500 MB", 500_000_000),
        ("2TB", 2 * 10**12),
        ("100%", 2000),
        ("60%", 1200),
        ("33.3 %", 666),
        ("150%", 3000),
    ],
)
def test_readable_budgets(budget: int | float | str, num_bytes: int) -> None:
    assert parse_budget(budget, peak_bytes=2000) == num_bytes


def test_percentage_of_a_large_peak_is_exact() -> None:
    assert parse_budget("100%", peak_bytes=38_059_356_160) == 38_059_356_160
    assert parse_budget("80%", peak_bytes=46_319) == 37_055
    assert parse_budget("100%", peak_bytes=10**17 - 1) == 10**17 - 1
    assert parse_budget(2**53 + 1, peak_bytes=1) == 2**53 + 1


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0, "it must be at least 1 byte"),
        (-5, "it must be at least 1 byte"),
        ("-5 GiB", "it must be at least 1 byte"),
        ("0%", "it must be at least 1 byte"),
        ("-60%", "it must be at least 1 byte"),
        (math.nan, "nan bytes"),
        (math.inf, "inf bytes"),
        ("", "is not bytes, a size"),
        ("lots", "is not bytes, a size"),
        ("6,5 GiB", "is not bytes, a size"),
        ("6 GiB please", "is not bytes, a size"),
        ("nan", "is not bytes, a size"),
        ("6 parsecs", "unknown unit 'parsecs'"),
        (10**400, "not between 1 and 1e\\+18 bytes"),
        (-(10**400), "not between 1 and 1e\\+18 bytes"),
        ("9" * 30 + " GiB", "not between 1 and 1e\\+18 bytes"),
        ("9" * 5000, "is not bytes, a size"),
        (True, "is not bytes, a size"),
        (None, "is not bytes, a size"),
        ([1], "is not bytes, a size"),
    ],
)
def test_unreadable_budgets(budget: object, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        parse_budget(budget, peak_bytes=2000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 1024**2 // 2, "1.50 MiB"),
        (5 * 1024**4, "5.00 TiB"),
        (4096 * 1024**4, "4096.00 TiB"),
    ],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
