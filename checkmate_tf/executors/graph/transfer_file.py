"""Copies values out of memory into a file, and back into tensors, while a step of the graph executor runs.

The file has no name in its folder, so no other user can read it, and the operating system frees its space when the
process ends for any reason. Its space is reserved before the first step runs, so that a full disk is an error before
the step changes a variable.
"""

import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import OffloadError


@dataclass(frozen=True)
class PythonCall:
    """A Python function that an operation of a step calls with arrays that share the memory of its inputs."""

    run: Callable[[np.ndarray], None]

    def __call__(self, array: np.ndarray) -> list[Any]:
        self.run(array.reshape(-1).view(np.uint8))
        return []


class TransferFile:
    """A file with room for each value that a step offloads. It exists as long as an object refers to it."""

    def __init__(self, directory: str, size_bytes: int):
        """Makes the file and reserves its space. Raises OffloadError if that fails."""
        self.directory = directory
        self.size_bytes = size_bytes
        self.held: dict[int, np.ndarray] = {}  # values that could not be written, by their offsets
        self.failure: OSError | None = None
        try:
            self.descriptor = _make_unnamed_file(directory)
        except OSError as error:
            raise self._explain(directory, size_bytes, error) from error
        close = weakref.finalize(self, os.close, self.descriptor)
        try:
            os.posix_fallocate(self.descriptor, 0, size_bytes)
        except OSError as error:
            close()
            raise self._explain(directory, size_bytes, error) from error

    @staticmethod
    def _explain(directory: str, size_bytes: int, error: OSError) -> OffloadError:
        """Returns the error for a file that could not be made."""
        return OffloadError(
            f"the step offloads {format_bytes(size_bytes)} to a file in {directory!r}, which failed: {error}. Free "
            "that much space, or choose another directory"
        )

    def check(self) -> None:
        """Raises OffloadError if a value could not be written since the last check."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise OffloadError(
                f"the step could not write an offloaded value to {self.directory!r}: {failure}. The step held it in "
                "memory and completed with the right numbers, so the model has trained on this batch. Free space, or "
                "choose another directory, and continue"
            ) from failure

    def make_offload(self, offset_bytes: int) -> PythonCall:
        """Returns a call that writes a tensor to a place in the file."""

        def write(data: np.ndarray) -> None:
            self.held.pop(offset_bytes, None)
            done = 0
            try:
                while done < len(data):
                    done += os.pwrite(self.descriptor, data[done:].data, offset_bytes + done)
            except OSError as error:
                self.held[offset_bytes] = data.copy()
                self.failure = error

        return PythonCall(write)

    def make_fetch(self, offset_bytes: int) -> PythonCall:
        """Returns a call that reads a tensor from a place in the file into the tensor's own memory."""

        def read(data: np.ndarray) -> None:
            held = self.held.get(offset_bytes)
            if held is not None:
                data[:] = held
                return
            done = 0
            while done < len(data):
                count = os.preadv(self.descriptor, [data[done:].data], offset_bytes + done)
                if not count:
                    raise EOFError("the file ended before the end of an offloaded value")
                done += count

        return PythonCall(read)


def _make_unnamed_file(directory: str) -> int:
    """Makes a file without a name, which only this user may read and write; returns its descriptor."""
    descriptor, path = tempfile.mkstemp(prefix="checkmate_tf-", dir=directory)
    os.unlink(path)
    return descriptor
