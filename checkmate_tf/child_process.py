"""Starts processes of this package. They run no code from the current directory, and end with this process.

Such a process also runs this file, before it imports anything else of this package. Whatever it does then, and however
long it takes to start, the operating system ends it once the process that started it is gone, unless it is to continue.
If the system runs out of memory, it ends such a process first.
"""

import contextlib
import fcntl
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# After a change of directory, a relative name would be that of another file.
_THIS_FILE = Path(__file__).resolve()


def start_process(
    module: str,
    *arguments: str,
    pass_fds: Iterable[int] = (),
    output: Any = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    folder: str = "",
    outlives: bool = False,
    without: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts a process that calls `main(arguments)` of a module of this package.

    It finds modules where this process finds them, except in the current directory, whose files may have the names of
    modules. It has a session of its own, so that an interrupt from the terminal reaches only this process. Closing its
    standard input ends it. It optimizes Python's code as this process does.

    Args:
        output: the file for its standard output and standard error.
        environment: variables in addition to those of this process.
        folder: the new process removes this folder if this process ends first. Nothing of the package may then delay
            that.
        outlives: whether it continues when this process ends. Its standard input is then empty.
        without: packages that imports in the new process do not find. Libraries that can do without them load sooner.

    Raises OSError if no process can be started.
    """
    # Paths that are not absolute depend on the current directory at that time. The package itself may have such a path.
    path = [*filter(os.path.isabs, sys.path), str(_THIS_FILE.parents[1])]
    options = json.dumps({"path": path, "folder": folder, "outlives": outlives, "without": [*without]})
    return subprocess.Popen(
        [sys.executable, "-P", *["-O"] * sys.flags.optimize, str(_THIS_FILE), options, module, *arguments],
        stdin=subprocess.DEVNULL if outlives else subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=tuple(pass_fds),
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )


def end_process(process: subprocess.Popen[bytes], *, patience_s: float = 0.0) -> int:
    """Ends a process that `start_process` started, and returns its exit status. It may first end in its own way."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        assert process.stdin is not None
        process.stdin.close()


def _end_with_parent() -> None:
    """Makes the system end this process when its standard input is closed, even inside compiled code."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # The input was closed before.
        os._exit(1)


def _remove_with_parent(folder: str) -> None:
    """Waits until the standard input is closed, removes the folder, and ends this process."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _run(options: str, module: str, *arguments: str) -> None:
    given = json.loads(options)
    if given["folder"]:
        threading.Thread(target=_remove_with_parent, args=(given["folder"],), daemon=True).start()
    elif not given["outlives"]:
        _end_with_parent()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.path[:] = given["path"]
    sys.modules.update(dict.fromkeys(given["without"]))  # None stands for no module.
    sys.argv = [module, *arguments]
    importlib.import_module(module).main(arguments)


if __name__ == "__main__":
    _run(*sys.argv[1:])
