"""Writes files completely or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from checkmate_tf.arguments import check_path
from checkmate_tf.errors import CheckmateError

# These are not files of their own: a file renamed to one of them would not reach its reader.
_DEVICES = ("/dev/", "/proc/")


def write_file(path: str | Path, content: str | bytes) -> None:
    """Writes a file and makes its folder. If the disk is full or the process is ended, the file is not changed.

    The text is in a second file beside it until it is complete. A device, such as /dev/stdout, is written directly.

    Raises OSError, which names the file, and CheckmateError for a path that cannot name a file.

    >>> write_file("made/graph.json", "{}")
    >>> Path("made/graph.json").read_text()
    '{}'
    """
    check_path(path)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        if _is_device(path):
            with Path(path).open("wb") as device:
                device.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_outputs(outputs: Iterable[str | Path | None], *, inputs: Iterable[str | Path] = ()) -> None:
    """Raises CheckmateError if a file that is to be written later cannot be written, or would replace another one.

    Args:
        outputs: the files to write, None for one that was not requested.
        inputs: the files that are read.
    """
    asked, inputs = [path for path in outputs if path is not None], list(inputs)
    for path in (*asked, *inputs):
        check_path(path)
    taken = {os.path.realpath(path): f"{path} is read" for path in inputs}
    for path in asked:
        if _is_device(path):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise CheckmateError(f"cannot write {path}: {taken[place]} in the same command; give another name")
        taken[place] = f"{path} is written"
        try:
            _try_to_write(Path(place))
        except OSError as error:
            raise CheckmateError(f"cannot write {path}: {error.strerror}; give another name") from error


def _is_device(path: str | Path) -> bool:
    is_usual = os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path)
    return not is_usual or os.path.abspath(path).startswith(_DEVICES)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _try_to_write(path: Path) -> None:
    """Raises OSError if `_replace` could not begin. Leaves nothing behind."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    folder = next(parent for parent in path.parents if parent.exists())
    beside = folder / f".{secrets.token_hex(8)}.partial"
    try:
        beside.open("xb").close()
    finally:
        beside.unlink(missing_ok=True)
