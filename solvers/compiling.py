"""Sees to it that what Numba compiles is compiled, which is done once after an installation and takes long.

A process of its own does it, so that a search with less time than that takes can end, or do without: what was compiled
until then is kept on disk, and the rest is soon there too.
"""

import importlib
import inspect
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba

from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.solvers.search import Search
from checkmate_tf.user_warnings import warn

_ready: set["Kernel"] = set()  # which need not be looked for on disk again


@dataclass(frozen=True)
class Kernel:
    """Functions that are compiled together.

    Args:
        compile: a function of a module of this package; it compiles them, or loads what was compiled before.
        last: the one that is compiled last, as "module.function".
        sources: patterns of the files that they are compiled from, in the folder of `compile`.
    """

    compile: Callable[[], Any]
    last: str
    sources: tuple[str, ...]

    def is_compiled(self) -> bool:
        """Whether they have been compiled before, from the files as they are, and are kept where Numba keeps them."""
        here = Path(inspect.getfile(self.compile)).parent
        newest = max(path.stat().st_mtime for pattern in self.sources for path in here.glob(pattern))
        # Numba tells where it keeps what it compiles of the functions of this folder; this compiles nothing.
        kept = Path(numba.njit(cache=True)(self.compile).stats.cache_path)
        return any(index.stat().st_mtime > newest for index in kept.glob(f"{self.last}-*.nbi"))

    def compile_within(self, time_limit_s: float) -> bool:
        """Waits until they are compiled, and tells whether they are within the time; else it goes on beside."""
        if self in _ready or self.is_compiled():
            _ready.add(self)
            return True
        try:
            process = _start_to_compile(self.compile.__module__, self.compile.__name__)
            process.wait(max(time_limit_s, 0.0))
            end_process(process)
        except subprocess.TimeoutExpired:
            return False
        except OSError:  # no process can be started
            pass
        return True  # where nothing can be kept they are compiled where they are used

    def load(self, search: Search, solver: str) -> bool:
        """Compiles or loads them for a search that finds nothing without; warns where its time is too short.

        The time for loading is no time of the search.
        """
        if not self.compile_within(search.remaining_s):
            warn(
                f"{solver} finds nothing, as it is compiled once after an installation, which takes longer than its "
                f"time limit of {search.time_limit_s:.3g} s and goes on beside: allow more time, or ask again later"
            )
            return False
        started_s = time.perf_counter()
        self.compile()
        search.started_s += time.perf_counter() - started_s
        return True


@cache
def _start_to_compile(module: str, function: str) -> subprocess.Popen[bytes]:
    """Starts the process; one is enough. It ends with this one."""
    return start_process(__name__, module, function)


def main(arguments: Iterable[str]) -> None:
    """Compiles what the function of the module compiles."""
    module, function = arguments
    getattr(importlib.import_module(module), function)()
