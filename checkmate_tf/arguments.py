"""Checks arguments of public functions, so that a wrong one is refused at once, in one sentence."""

import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, get_args

from checkmate_tf.errors import BatchError, BudgetError, CheckmateError, SolverError, quote

# Seeds, and the ones counted up from them, stay below 2**31, the limit of some solvers.
_NUM_SEEDS = 2**30
_MOST_SECONDS = 1e9
_MOST_ROWS = 10**12


def check_word(word: Any, name: str, words: Any) -> None:
    """Raises SolverError unless the word is one of the Literal's words."""
    if not isinstance(word, str) or word not in get_args(words):
        raise SolverError(f"{name} is {quote(word)}; it must be one of {', '.join(get_args(words))}")


def check_seed(seed: Any) -> int:
    """Returns a seed that every solver takes, always the same for one number. Raises SolverError for anything else."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise SolverError(f"seed is {quote(seed)}; it must be a whole number")
    return int(seed) % _NUM_SEEDS


def check_time_limit(time_limit_s: Any, name: str = "time_limit_s") -> float:
    """Returns the limit as a Python number. Raises SolverError unless it is a number of seconds of at least 0."""
    is_number = isinstance(time_limit_s, Real) and not isinstance(time_limit_s, bool)
    if not is_number or not 0 <= time_limit_s <= _MOST_SECONDS:
        raise SolverError(
            f"{name} is {quote(time_limit_s)}; it must be a number of seconds between 0 and {_MOST_SECONDS:g}"
        )
    return float(time_limit_s)


def check_size(size: Any, name: str) -> int:
    """Returns a number of rows, or another size of a batch. Raises BatchError unless it is a whole number above 0."""
    if isinstance(size, bool) or not isinstance(size, Integral) or not 1 <= int(size) <= _MOST_ROWS:
        raise BatchError(f"{name} is {quote(size)}; it must be a whole number of at least 1, and at most {_MOST_ROWS}")
    return int(size)


def check_share(share: Any, name: str) -> float:
    """Returns a fraction of one, such as 0.1 or "10%". Raises BudgetError for anything else."""
    try:
        text = share.strip() if isinstance(share, str) else str(float(share))
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(share, bool) or not 0 <= number < 1:
        raise BudgetError(f'{name} is {quote(share)}; it must be a share below 1, such as "10%" or 0.1')
    return number


def check_flags(**flags: Any) -> None:
    """Raises CheckmateError for the first flag that is neither True nor False."""
    for name, flag in flags.items():
        if type(flag).__name__ not in ("bool", "bool_"):  # NumPy has a class of its own.
            raise CheckmateError(f"{name} is {quote(flag)}; it must be True or False")


def check_list(values: Any, name: str) -> None:
    """Raises CheckmateError unless the values are a list. Text is not a list."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise CheckmateError(f"{name} is {quote(values)}; it must be a list")


def check_callable(function: Any, name: str) -> None:
    """Raises CheckmateError unless the function can be called."""
    if not callable(function):
        raise CheckmateError(f"{name} is {quote(function)}; it must be a function")


def check_path(path: Any) -> None:
    """Raises CheckmateError unless the path can name a file."""
    try:
        name = b"" if isinstance(path, bytes) else os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        name = b""
    if not name or b"\0" in name:
        raise CheckmateError(f"{quote(path)} names no file; give a path as text or a Path")
