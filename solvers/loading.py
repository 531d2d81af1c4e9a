"""Imports solvers and the libraries behind them. That takes seconds if Python has not compiled them yet."""

import sys
import time
from importlib import import_module
from types import ModuleType

_PACKAGE = __name__.rpartition(".")[0]

_longest_s = [0.0]  # the longest import in this process


def load(module: str) -> ModuleType:
    """Imports a module of `checkmate_tf.solvers`, named relative to it, and remembers how long that took."""
    began_s = time.perf_counter()
    loaded = import_module(f"{_PACKAGE}.{module}")
    _longest_s[0] = max(_longest_s[0], time.perf_counter() - began_s)
    return loaded


def can_load(module: str, time_limit_s: float) -> bool:
    """Returns whether a module of `checkmate_tf.solvers` is imported already or can be expected to be within the time.

    An import can take ten times as long on a busy machine, or if Python cannot keep compiled modules. The expected time
    is therefore that of the longest import so far. Importing a solver, with Numba and SciPy, takes about as long as
    OR-tools.
    """
    return f"{_PACKAGE}.{module}" in sys.modules or time_limit_s > _longest_s[0]
