"""Describes tensors whose leading dimensions, flattened, are the rows that a loop takes in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod


class Layout(Enum):
    """A layout says how a tensor depends on rows.

    ROWS: its leading dimensions are all rows, and each row depends on the same row of other tensors alone. SHARED: it
    is the same for all rows. SUM: it is a sum over all rows. PARTS: it has such sums for parts of the rows, those of
    each entry of a batch, in its leading dimensions, and only their sum is read.
    """

    ROWS = "rows"
    PARTS = "parts"
    SHARED = "shared"
    SUM = "sum"


@dataclass(frozen=True)
class Window:
    """A window is the same part of the rows of each entry of a batch, such as all tokens but the last.

    Args:
        num_entries: of the batch.
        length: rows of an entry.
        begin: the first row of an entry that is in the window.
        size: how many are.
    """

    num_entries: int
    length: int
    begin: int
    size: int

    @property
    def num_rows(self) -> int:
        """Counts the rows within the window."""
        return self.num_entries * self.size


@dataclass(frozen=True)
class Rows:
    """Rows say how many there are, and how many of them one chunk takes.

    In a chunk, a tensor of shape [batch, length, width] has the shape [1, chunk_rows, width]. A tensor of the rows
    within a window has it, too: the rows outside of the window are made up.

    Args:
        num_rows: of the whole tensors.
        chunk_rows: of each chunk; where it does not divide the rows, the last chunk begins with rows that the one
            before it took, too.
        window: the rows of some tensors; None where all tensors have all rows.
    """

    num_rows: int
    chunk_rows: int
    window: Window | None = None

    @property
    def num_chunks(self) -> int:
        """Counts the chunks."""
        return -(-self.num_rows // self.chunk_rows)

    @property
    def overlaps(self) -> bool:
        """Returns whether the last chunk takes rows again that another one took."""
        return self.num_rows % self.chunk_rows > 0

    def count_lead(self, shape: Sequence[int]) -> int | None:
        """Counts the leading dimensions that are the rows; None for a shape that does not begin with them."""
        lead = _count_lead(shape, self.num_rows)
        return _count_lead(shape, self.window.num_rows) if lead is None and self.window is not None else lead

    def is_in_window(self, shape: Sequence[int]) -> bool:
        """Tells whether a shape begins with the rows of the window alone."""
        return self.count_lead(shape) is not None and _count_lead(shape, self.num_rows) is None

    def cut_shape(self, shape: Sequence[int]) -> list[int]:
        """Returns the shape that a tensor of ROWS has in a chunk."""
        lead = self.count_lead(shape)
        assert lead is not None
        return [*[1] * (lead - 1), self.chunk_rows, *shape[lead:]]


def _count_lead(shape: Sequence[int], num_rows: int) -> int | None:
    for number in range(1, len(shape) + 1):
        size = prod(shape[:number])
        if size >= num_rows:
            return number if size == num_rows else None
    return None


def choose_rows(num_rows: int, most_rows: int, *, window: Window | None = None) -> Rows:
    """Chooses chunks of equal size with at most so many rows: a few chunks more, where their size then divides them."""
    least = -(-num_rows // min(most_rows, num_rows))
    even = next((number for number in range(least, least + least // 4 + 1) if num_rows % number == 0), least)
    return Rows(num_rows, -(-num_rows // even), window)
