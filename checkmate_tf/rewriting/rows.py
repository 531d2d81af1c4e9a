"""Describes tensors of which some dimensions, flattened, are the rows that a loop takes in chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal


@dataclass(frozen=True)
class Layout:
    """A layout says how a tensor depends on rows.

    Args:
        kind: "rows" for a tensor that has a part for each row, which depends on the same row of other tensors alone;
            "shared" for one that is the same for all rows; "sum" for a sum over all rows; "parts" for such sums of
            parts of the rows, those of each entry of a batch, in the leading dimensions, of which only their sum is
            read.
        before: how often all rows follow each other in a tensor: 1 where its first dimensions are the rows, and
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
    """A span says which dimensions of a tensor are the rows.

    Args:
        axis: the first.
        number: how many.
        repeats: how often all rows follow each other in the first of them.
    """

    axis: int
    number: int
    repeats: int = 1

    @property
    def axes(self) -> slice:
        """Returns the dimensions."""
        return slice(self.axis, self.axis + self.number)


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

    In a chunk, a tensor of shape [batch, length, width] has the shape [1, chunk_rows, width] where tokens are the rows,
    and [batch, chunk_rows, width] where each row has the same token of all entries; [batch * length, width] has the
    shape [batch * chunk_rows, width] there. A tensor of the rows within a window has the same shape: the rows outside
    of the window are made up.

    Args:
        num_rows: of the whole tensors.
        chunk_rows: of each chunk; where it does not divide the rows, the last chunk begins with rows that the one
            before it took, too.
        window: the rows of some tensors; None where all tensors have all rows.
        tokens_per_row: how many a row has; 1 where tokens are the rows.
    """

    num_rows: int
    chunk_rows: int
    window: Window | None = None
    tokens_per_row: int = 1

    @property
    def num_chunks(self) -> int:
        """Counts the chunks."""
        return -(-self.num_rows // self.chunk_rows)

    @property
    def overlaps(self) -> bool:
        """Returns whether the last chunk takes rows again that another one took."""
        return self.num_rows % self.chunk_rows > 0

    @property
    def num_tokens(self) -> int:
        """Counts the tokens of all rows."""
        return self.num_rows * self.tokens_per_row

    @property
    def chunk_tokens(self) -> int:
        """Counts the tokens of a chunk."""
        return self.chunk_rows * self.tokens_per_row

    def find_span(self, shape: Sequence[int], before: int = 1) -> Span | None:
        """Finds the dimensions that are the rows, where these follow each other so often; None for other shapes."""
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
        """Returns whether a shape begins with the rows of the window alone."""
        return self.find_span(shape) is not None and _count_dimensions(shape, self.num_rows) is None

    def cut_shape(self, shape: Sequence[int], before: int = 1) -> list[int]:
        """Returns the shape that a tensor has in a chunk, whose rows follow each other so often."""
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
    """Finds the rows with the most tokens; among equals, those with the fewest in each row."""
    return max(rows, key=lambda one: (one.num_tokens, one.num_rows))


def choose_rows(rows: Rows, most_tokens: int) -> Rows:
    """Chooses chunks of equal size with at most so many tokens: a few chunks more, where their size then divides them.

    A chunk has at least one row.
    """
    most_rows = max(most_tokens // rows.tokens_per_row, 1)
    least = -(-rows.num_rows // min(most_rows, rows.num_rows))
    even = next((number for number in range(least, least + least // 4 + 1) if rows.num_rows % number == 0), least)
    return replace(rows, chunk_rows=-(-rows.num_rows // even))
