"""Compiles the solvers' Numba code, once after an installation. That takes long.

A process of its own compiles, so a search with less time than that can end, or continue without the compiled code. The
process keeps running when this one ends. It keeps the compiled code on disk, where the next search finds it.
"""

import contextlib
import fcntl
import importlib
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.registry import cpu_target

from checkmate_tf.child_process import start_process
from checkmate_tf.solvers.search import Search
from checkmate_tf.user_warnings import warn

_SOLVERS = Path(__file__).parent
_LOOK_S = 0.05

_ready: set["Kernel"] = set()  # known to be on disk
_started: dict["Kernel", subprocess.Popen[bytes]] = {}


def keep_compiled(*signatures: Any, **options: Any) -> Callable[[Callable], Any]:
    """Compiles a function as `numba.njit` does, and keeps the compiled code on disk for later processes.

    Numba keeps it beside the function's file or in the user's cache folder. If it can write to neither, as in many
    containers, it uses a folder of this user among the temporary files.
    """

    def compile_function(function: Callable) -> Any:
        with _choose_folder(function) as is_kept:
            return numba.njit(*signatures, cache=is_kept, **options)(function)

    return compile_function


@dataclass(frozen=True)
class Kernel:
    """Functions that are compiled together.

    Args:
        compile: a function of a module of this package that compiles them, or loads the compiled code.
        last: the function of each of their files that is compiled last, as "module.function", relative to this package.
    """

    compile: Callable[[], Any]
    last: tuple[str, ...]

    def is_compiled(self) -> bool:
        """Returns whether Numba has them on disk, from the present files, for this processor and Python's options."""
        if self not in _ready and all(map(_is_on_disk, self.last)):
            _ready.add(self)
        return self in _ready

    def compile_within(self, time_limit_s: float) -> bool:
        """Waits until they are compiled. Returns whether that was within the time; otherwise, compilation continues."""
        deadline_s = time.perf_counter() + time_limit_s
        while not self.is_compiled():
            remaining_s = max(deadline_s - time.perf_counter(), 0.0)
            try:
                process = self._start_to_compile()
                if process is not None:
                    process.wait(remaining_s)
                    return True  # If the process kept nothing, they are compiled at their first use.
            except subprocess.TimeoutExpired:
                return False
            except OSError:  # No process can be started, or nothing can be kept.
                return True
            if not remaining_s:
                return False
            time.sleep(min(_LOOK_S, remaining_s))
        return True

    def load(self, search: Search, solver: str) -> bool:
        """Compiles or loads them for a search that depends on them. Warns and returns False if time is too short."""
        if not self.compile_within(search.remaining_s):
            warn(
                f"{solver} found nothing: its code is compiled once per installation, and that takes longer than its "
                f"time limit of {search.time_limit_s:.3g} s; compilation continues, so allow more "
                "time or try again later"
            )
            return False
        self.compile()
        return True

    def _start_to_compile(self) -> subprocess.Popen[bytes] | None:
        """Starts the process, one for all callers. Returns None while a process of another program compiles.

        Raises OSError if no process can be started, or if it could keep nothing.
        """
        if self not in _started:
            with _choose_folder(self.compile) as is_kept:
                if not is_kept:
                    raise OSError("there is no folder to keep compiled code in")
                folder = Path(FunctionCache(self.compile).cache_path)
            lock = os.open(folder / f"{self.compile.__name__}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # Starting a process, outside of this block, can raise this, too.
                    return None
                # The process holds the lock until it ends.
                arguments = self.compile.__module__, self.compile.__name__
                _started[self] = start_process(__name__, *arguments, pass_fds=[lock], outlives=True)
            finally:
                os.close(lock)
        return _started[self]


def _is_on_disk(name: str) -> bool:
    """Returns whether Numba's index lists a function, compiled for this processor from its present code."""
    module, _, function_name = name.rpartition(".")
    path = _SOLVERS.joinpath(*module.split(".")).with_suffix(".py")
    # Importing the module would compile it. A function with the same code has the same entry in the index.
    function = FunctionType(_find_code(path, function_name), {})
    with _choose_folder(function) as is_kept:
        if not is_kept:
            return False
        kept = FunctionCache(function)
    _, *wanted = kept._index_key(None, cpu_target.target_context.codegen())
    return any(
        [*key[1:]] == wanted and Path(kept.cache_path, data).exists()
        for key, data in kept._cache_file._load_index().items()
    )


@cache
def _find_code(path: Path, function_name: str) -> CodeType:
    module = compile(path.read_text(encoding="utf-8"), path, "exec")
    return next(code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == function_name)


@contextmanager
def _choose_folder(function: Callable) -> Iterator[bool]:
    """Sets Numba's cache folder for a function within the block. Yields False if there is none."""
    if _can_numba_keep(function.__code__.co_filename):
        yield True
        return
    own = _make_own_folder()
    if own is None:
        yield False
        return
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(own)
    try:
        yield True
    finally:
        numba.config.CACHE_DIR = before


@cache
def _can_numba_keep(path: str) -> bool:
    """Returns whether Numba can keep code compiled from the functions of a file."""
    try:
        FunctionCache(FunctionType(compile("0", path, "eval"), {}))
    except RuntimeError:
        return False
    return True


@cache
def _make_own_folder() -> Path | None:
    """Makes a folder of this user among the temporary files, and warns about it; returns None if that is impossible."""
    problem = "compiled solver code cannot be kept: neither the package's folder nor the user's can be written"
    remedy = "set NUMBA_CACHE_DIR to a folder that can be written and stays"
    with contextlib.suppress(OSError):
        folder = Path(tempfile.gettempdir(), f"checkmate_tf-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        # Numba unpickles the files that it finds there, so the folder must be this user's own.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            warn(f"{problem}. It is kept in {folder}, which may be deleted; {remedy}")
            return folder
    warn(f"{problem}. Compiling therefore takes half a minute in each process; {remedy}")
    return None


def main(arguments: Iterable[str]) -> None:
    """Calls the function of the module, which compiles a kernel."""
    module, function = arguments
    getattr(importlib.import_module(module), function)()
