"""Keeps variables in a file: the pages of the file are their memory.

TensorFlow reads such a variable as any other one, and saving, restoring and predicting need not know of it. A step that
changes it in place leaves it in the file. Any other assignment gives it memory of the allocator again, and the next
step moves it back.

The pages belong to the operating system, which writes them to the disk when it needs their memory. They count in the
resident set of the process only from the time when an operation reads or changes them until they are released.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate_tf.executors.graph.transfer_file import TransferFile


def _assign(old: np.ndarray, value: np.ndarray, *, out: np.ndarray) -> None:
    del old
    np.copyto(out, value)


# The assignments that can be done in place: each computes the new value from the old one and the operation's input.
UPDATES: Mapping[str, Callable[..., Any]] = {
    "AssignVariableOp": _assign,
    "AssignAddVariableOp": np.add,
    "AssignSubVariableOp": np.subtract,
}


@dataclass(frozen=True)
class InPlaceUpdate:
    """A Python function that an operation of a step calls to change a variable in place.

    Args:
        combine: one of `UPDATES`.
    """

    combine: Callable[..., Any]

    def __call__(self, old: np.ndarray, value: np.ndarray) -> list[Any]:
        self.combine(old, value, out=old)
        return []


@dataclass(frozen=True)
class PageRelease:
    """A Python function that an operation of a step calls to take pages out of the process. They stay in the file."""

    mapped: mmap.mmap
    offset_bytes: int
    size_bytes: int

    def __call__(self) -> list[Any]:
        self.mapped.madvise(mmap.MADV_DONTNEED, self.offset_bytes, self.size_bytes)
        return []


class StateFile:
    """A file with room for variables. It exists as long as an object or a variable refers to it."""

    def __init__(self, directory: str, variables: Sequence[Any]):
        """Makes the file and reserves its space. Raises OffloadError if that fails."""
        sizes = [variable.dtype.size * variable.shape.num_elements() for variable in variables]
        self.variables = tuple(variables)
        ends_bytes = np.cumsum([_fill_pages(size) for size in sizes]).tolist()
        file = TransferFile(directory, ends_bytes[-1])
        self.mapped = mmap.mmap(file.descriptor, ends_bytes[-1])
        self.releases = tuple(
            PageRelease(self.mapped, end - _fill_pages(size), _fill_pages(size))
            for size, end in zip(sizes, ends_bytes, strict=True)
        )
        self.arrays = tuple(
            np.frombuffer(self.mapped, variable.dtype.as_numpy_dtype, variable.shape.num_elements(), at.offset_bytes)
            .reshape(variable.shape)
            for variable, at in zip(variables, self.releases, strict=True)
        )  # fmt: skip

    def move_in(self) -> None:
        """Moves the variables to the file that are not there."""
        for variable, array, release in zip(self.variables, self.arrays, self.releases, strict=True):
            value = _view(variable)
            if value.ctypes.data != array.ctypes.data:
                array[...] = value
                del value
                # TensorFlow takes over an array that is aligned, as pages are, without a copy.
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=array)
                release()


def _view(variable: Any) -> np.ndarray:
    """Returns the value of a variable, in the variable's own memory."""
    return np.asarray(memoryview(variable.read_value()))


def _fill_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
