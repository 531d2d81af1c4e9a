"""Imports solvers and the libraries behind them, which takes seconds where Python has not compiled them yet."""

import sys
import time
from importlib import import_module
from types import ModuleType

_PACKAGE = __name__.rpartition(".")[0]

_longest_s = [0.0]  # that an import has taken in this process


def load(module: str) -> ModuleType:
    """Imports a module below `checkmate_tf.solvers`, by its name there, and remembers how long that took."""
    began_s = time.perf_counter()
    loaded = import_module(f"{_PACKAGE}.{module}")
    _longest_s[0] = max(_longest_s[0], time.perf_counter() - began_s)
    return loaded


def can_load(module: str, time_limit_s: float) -> bool:
    """Returns whether a module below `checkmate_tf.solvers` is there already, or can be expected to be within the time.

    An import can take ten times as long on a busy machine, or where Python keeps nothing that it compiles. So the
    expectation is the longest import so far: that of a solver, with Numba and SciPy, takes about as long as OR-tools.
    """
    return f"{_PACKAGE}.{module}" in sys.modules or time_limit_s > _longest_s[0]
