"""Sees to it that the annealing's moves are compiled, which is done once after an installation and takes long.

Numba compiles them where they are imported, and keeps them on disk. A process of its own does it, so that a search
with less time than that takes can end: what was compiled until then is kept, and the rest is soon there too.
"""

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numba

from checkmate_tf.child_process import start_process
from checkmate_tf.solvers.annealing.annealer import compiled_moves


def compile_moves(time_limit_s: float) -> bool:
    """Waits until the moves are compiled, and tells whether they are within the time; else it goes on beside."""
    if is_compiled():
        return True
    try:
        _start_to_compile().wait(max(time_limit_s, 0.0))
    except subprocess.TimeoutExpired:
        return False
    except OSError:  # no process can be started
        pass
    return True  # where nothing can be kept they are compiled where they are imported


def is_compiled() -> bool:
    """Whether the moves have been compiled before, from the files as they are, and are kept where Numba keeps them."""
    here = Path(__file__).parent
    newest = max(path.stat().st_mtime for path in (here / "settings.py", *here.glob("stage_*.py")))
    # Numba tells where it keeps what it compiles of the functions of this folder; this compiles nothing.
    kept = Path(numba.njit(cache=True)(is_compiled).stats.cache_path)
    return any(index.stat().st_mtime > newest for index in kept.glob("stage_moves.remove_unneeded-*.nbi"))


@cache
def _start_to_compile() -> subprocess.Popen[bytes]:
    """Starts the process; one is enough. It ends with this one."""
    return start_process(__name__)


def main(arguments: Iterable[str]) -> None:
    """Compiles the moves."""
    compiled_moves()
