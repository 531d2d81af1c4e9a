"""Describes tensors of which some dimensions, flattened, are the rows that a loop processes in chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal


@dataclass(frozen=True)
class Layout:
    """The dependence of a tensor on rows.

    Args:
        kind: "rows" for a tensor with a part for each row, which depends only on the same row of other tensors;
            "shared" for a tensor that is the same for all rows; "sum" for a sum over all rows; "parts" for a sum over
            the rows of each entry of a batch, with the entries in the leading dimensions, if only their total is read.
        before: the number of times that all rows follow each other in a tensor: 1 if its first dimensions are the rows,
            `batch` in [batch, rows, width] and in [batch * rows, width].
    """

    kind: Literal["rows", "parts", "shared", "sum"]
    before: int = 1

    @property
    def is_rows(self) -> bool:
        """Returns whether the tensor has a part for each row."""
        return self.kind == "rows"


SHARED, SUM, PARTS = Layout("shared"), Layout("sum"), Layout("parts")


@dataclass(frozen=True)
class Span:
    """The dimensions of a tensor that are rows.

    Args:
        axis: the first dimension.
        number: the number of dimensions.
        repeats: the number of times that all rows follow each other in the first dimension.
    """

    axis: int
    number: int
    repeats: int = 1

    @property
    def axes(self) -> slice:
        """Returns the dimensions as a slice."""
        return slice(self.axis, self.axis + self.number)


@dataclass(frozen=True)
class Window:
    """The same part of the rows of each entry of a batch, such as all tokens but the last.

    Args:
        num_entries: the entries of the batch.
        length: the rows of an entry.
        begin: the first row of an entry that is in the window.
        size: the number of rows of an entry that are in the window.
    """

    num_entries: int
    length: int
    begin: int
    size: int

    @property
    def num_rows(self) -> int:
        """Returns the number of rows within the window."""
        return self.num_entries * self.size


@dataclass(frozen=True)
class Rows:
    """The number of rows, and the number of rows in a chunk.

    In a chunk, a tensor of shape [batch, length, width] has the shape [1, chunk_rows, width] if tokens are the rows. If
    each row contains the same token of all entries, it has the shape [batch, chunk_rows, width], and a tensor of shape
    [batch * length, width] has the shape [batch * chunk_rows, width]. A tensor of the rows within a window has the same
    shape. Its rows outside of the window are made up.

    Args:
        num_rows: the rows of the whole tensors.
        chunk_rows: the rows of each chunk. If it does not divide `num_rows`, the last chunk begins with rows that the
            previous chunk contains, too.
        window: the rows of some tensors; None if all tensors have all rows.
        tokens_per_row: the tokens of a row; 1 if tokens are the rows.
    """

    num_rows: int
    chunk_rows: int
    window: Window | None = None
    tokens_per_row: int = 1

    @property
    def num_chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.num_rows // self.chunk_rows)

    @property
    def overlaps(self) -> bool:
        """Returns whether the last chunk contains rows of the previous one."""
        return self.num_rows % self.chunk_rows > 0

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens in all rows."""
        return self.num_rows * self.tokens_per_row

    @property
    def chunk_tokens(self) -> int:
        """Returns the number of tokens in a chunk."""
        return self.chunk_rows * self.tokens_per_row

    def find_span(self, shape: Sequence[int], before: int = 1) -> Span | None:
        """Returns the dimensions that are rows, if all rows follow each other `before` times; None for other shapes."""
        count = 1
        for axis, size in enumerate(shape):
            if count == before:
                number = _count_dimensions(shape[axis:], self.num_rows)
                if number is None and self.window is not None and before == 1:
                    number = _count_dimensions(shape, self.window.num_rows)
                return None if number is None else Span(axis, number)
            if count * size > before:
                repeats, rest = divmod(before, count)
                return None if rest or size != repeats * self.num_rows else Span(axis, 1, repeats)
            count *= size
        return None

    def is_in_window(self, shape: Sequence[int]) -> bool:
        """Returns whether the first dimensions of a shape are the rows of the window alone."""
        return self.find_span(shape) is not None and _count_dimensions(shape, self.num_rows) is None

    def cut_shape(self, shape: Sequence[int], before: int = 1) -> list[int]:
        """Returns the shape of a tensor in a chunk, if all rows follow each other `before` times in the tensor."""
        span = self.find_span(shape, before)
        assert span is not None
        own = [*[1] * (span.number - 1), span.repeats * self.chunk_rows]
        return [*shape[: span.axis], *own, *shape[span.axis + span.number :]]


def _count_dimensions(shape: Sequence[int], num_rows: int) -> int | None:
    for number in range(1, len(shape) + 1):
        size = prod(shape[:number])
        if size >= num_rows:
            return number if size == num_rows else None
    return None


def find_widest(rows: Iterable[Rows]) -> Rows:
    """Returns the rows with the most tokens; among equals, those with the fewest tokens in each row."""
    return max(rows, key=lambda one: (one.num_tokens, one.num_rows))


def choose_rows(rows: Rows, most_tokens: int) -> Rows:
    """Chooses chunks of equal size with at most `most_tokens` tokens, but at least one row.

    It chooses up to a quarter more chunks than necessary if their size then divides the rows.
    """
    most_rows = max(most_tokens // rows.tokens_per_row, 1)
    least = -(-rows.num_rows // min(most_rows, rows.num_rows))
    even = next((number for number in range(least, least + least // 4 + 1) if rows.num_rows % number == 0), least)
    return replace(rows, chunk_rows=-(-rows.num_rows // even))
