"""Represents a graph as flat NumPy arrays, for vectorized code and compiled kernels (see `Graph.arrays`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Lists of indices of different lengths: row i is `index[start[i] : start[i + 1]]`.

    Args:
        start: int64 [num_rows + 1].
        index: int64 [sum of the lengths].

    >>> rows = Rows.of([(3, 1), (), (2,)])
    >>> rows.start.tolist(), rows.index.tolist(), rows.lengths.tolist()
    ([0, 2, 2, 3], [3, 1, 2], [2, 0, 1])
    """

    start: np.ndarray
    index: np.ndarray

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> "Rows":
        """Returns the concatenation of lists of indices."""
        start = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
        return Rows(start, np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(start[-1])))

    @property
    def lengths(self) -> np.ndarray:
        """Returns the length of each row, int64 [num_rows]."""
        return np.diff(self.start)

    def transpose(self, num_columns: int) -> "Rows":
        """Lists, for each index below `num_columns`, the rows that contain it, in ascending order."""
        row = np.repeat(np.arange(len(self.start) - 1), self.lengths)
        start = np.concatenate(([0], np.cumsum(np.bincount(self.index, minlength=num_columns), dtype=np.int64)))
        return Rows(start, row[np.argsort(self.index, kind="stable")])

    def sum(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the sum over each row of the numbers of its entries, int64 [num_rows]."""
        until = np.concatenate(([0], np.cumsum(numbers, dtype=np.int64)))  # may wrap around; differences do not
        return np.diff(until[self.start])

    def join(self, other: "Rows") -> "Rows":
        """Appends to each row the row of `other` with the same number."""
        index = np.empty(len(self.index) + len(other.index), dtype=np.int64)
        index[np.arange(len(self.index)) + np.repeat(other.start[:-1], self.lengths)] = self.index
        index[np.arange(len(other.index)) + np.repeat(self.start[1:], other.lengths)] = other.index
        return Rows(self.start + other.start, index)


@dataclass(frozen=True)
class GraphArrays:
    """Facts about nodes and values, in addition to `Graph.costs` and `Graph.sizes_bytes`. Read-only.

    Args:
        inputs: the values that each node reads, [num_nodes] rows.
        outputs: the values that each node yields, [num_nodes] rows.
        users: the nodes that read each value, ascending, [num_values] rows.
        producer: the node that yields each value, int64 [num_values].
        last_use: the last node that reads each value, int64 [num_values]; num_nodes if it must exist at the end, -1 if
            it is neither read nor kept.
        is_output: whether a value must exist at the end of the step, bool [num_values].
        workspace_bytes: held only while a node runs, int64 [num_nodes].
        recomputable: whether a node may run more than once, bool [num_nodes].
        inplace_output: the first output of an in-place node, -1 for other nodes, int64 [num_nodes].
        takes_over_bytes: the size of an input whose storage the first output of a node may take over, -1 if there can
            be none, int64 [num_nodes].
    """

    inputs: Rows
    outputs: Rows
    users: Rows
    producer: np.ndarray
    last_use: np.ndarray
    is_output: np.ndarray
    workspace_bytes: np.ndarray
    recomputable: np.ndarray
    inplace_output: np.ndarray
    takes_over_bytes: np.ndarray


def mark(indices: Iterable[int], length: int) -> np.ndarray:
    """Returns whether each of the numbers below `length` is among the indices, bool [length]."""
    marked = np.zeros(length, dtype=np.bool_)
    marked[list(indices)] = True
    return marked
