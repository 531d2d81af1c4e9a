"""These are the exceptions that checkmate_tf raises on purpose. Each message gives the numbers and a remedy."""

import reprlib
from typing import Any

# A message quotes names out of files and models, which may be of any length.
_MOST_MESSAGE_CHARACTERS = 4000


def make_printable(text: str) -> str:
    """Writes what a terminal would obey, or cannot show, as Python writes it in a string: names are anyone's.

    >>> make_printable("conv\x1b[2J")
    'conv\\\\x1b[2J'
    """
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def make_message(text: str) -> str:
    """Makes text printable, and no longer than a page: its middle is left out."""
    if len(text) <= _MOST_MESSAGE_CHARACTERS:
        message = make_printable(text)
        if len(message) <= _MOST_MESSAGE_CHARACTERS:
            return message
    kept = _MOST_MESSAGE_CHARACTERS // 2
    first, last = make_printable(text[:kept])[:kept], make_printable(text[-kept:])[-kept:]
    return f"{first} ... (the middle of {len(text)} characters is left out) ... {last}"


def quote(value: object) -> str:
    """Writes a value that somebody gave, whatever it is, in a few words.

    >>> quote([1, 2]), quote(10**5000)
    ('[1, 2]', 'int')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # integers of thousands of digits, and what the value's own class does
        return type(value).__name__


class CheckmateError(Exception):
    """Every error that this package raises on purpose is of this class."""

    def __str__(self) -> str:
        return make_message(super().__str__())


class GraphError(CheckmateError, ValueError):
    """A training graph, or its JSON, is malformed."""


class ScheduleError(CheckmateError, ValueError):
    """A schedule does not compute its graph."""


class BudgetError(CheckmateError, ValueError):
    """A memory budget cannot be read."""


class BatchError(CheckmateError, ValueError):
    """A batch, or its size, is not one that the model can train on."""


class InfeasibleBudgetError(CheckmateError):
    """No schedule within the budget exists, or none was found in time.

    `least_budget_bytes` is the least budget known to work, None where none is known; `proved` says
    that no schedule within the budget exists; `closest` is the plan of least memory, None where none was made.
    """

    def __init__(
        self,
        message: str,
        *,
        least_budget_bytes: int | None = None,
        proved: bool = False,
        closest: Any = None,
    ):
        super().__init__(message)
        self.least_budget_bytes = least_budget_bytes
        self.proved = proved
        self.closest = closest


class PatternError(CheckmateError, ValueError):
    """A pattern of nodes to keep or to recompute matches none, or contradicts another one."""


class SolverError(CheckmateError):
    """A solver is unknown, cannot run here, or broke its contract."""


class UnsupportedModelError(CheckmateError):
    """The model, its compile() arguments or its training step cannot be rematerialized."""


class PlanError(CheckmateError):
    """A plan file cannot be read, or is the plan of another step."""


class EmissionError(CheckmateError):
    """A schedule cannot be written as a TensorFlow graph, or its step cannot run on this device."""


class OffloadError(CheckmateError):
    """Values of a step cannot be copied out of memory: the disk is full, or the directory cannot be written."""


class ProfileError(CheckmateError):
    """A node cannot be measured, or a profile does not fit its graph."""


class SearchInterrupt(KeyboardInterrupt):
    """A search was interrupted; `found` is the best result until then, None where there is none."""

    def __init__(self, message: str, found: Any = None):
        super().__init__(message)
        self.found = found
