"""Rows: which dimensions they are, and how they are cut into chunks."""

import pytest

from checkmate_tf.rewriting.rows import Rows, Span, choose_rows


@pytest.mark.parametrize(
    ("shape", "number", "cut"),
    [
        ([12], 1, [4]),
        ([12, 1], 1, [4, 1]),
        ([3, 4, 7], 2, [1, 4, 7]),
        ([1, 12, 7], 2, [1, 4, 7]),
        ([3, 2, 2, 7], 3, [1, 1, 4, 7]),
        ([4, 7], None, None),
        ([24], None, None),
        ([], None, None),
    ],
)
def test_rows_are_the_first_dimensions(shape: list[int], number: int | None, cut: list[int] | None) -> None:
    rows = Rows(12, 4)
    assert ((span := rows.find_span(shape)) and span.number) == number
    if cut is not None:
        assert rows.cut_shape(shape) == cut


@pytest.mark.parametrize(
    ("shape", "before", "span", "cut"),
    [
        ([2, 3, 12, 7], 6, Span(2, 1), [2, 3, 4, 7]),
        ([2, 12, 12], 24, Span(2, 1), [2, 12, 4]),
        ([5, 3, 4, 7], 5, Span(1, 2), [5, 1, 4, 7]),
        ([60, 7], 5, Span(0, 1, 5), [20, 7]),
        ([2, 36, 7], 6, Span(1, 1, 3), [2, 12, 7]),
        ([2, 24, 7], 2, None, None),
        ([2, 60, 7], 4, None, None),
    ],
)
def test_rows_may_be_other_dimensions(shape: list[int], before: int, span: Span | None, cut: list[int] | None) -> None:
    """The last factor of a dimension, too: the same row of all entries is then cut from [batch * length, width]."""
    rows = Rows(12, 4)
    assert rows.find_span(shape, before) == span
    if cut is not None:
        assert rows.cut_shape(shape, before) == cut


def test_a_chunk_has_whole_rows_of_several_tokens() -> None:
    """At least one, however many tokens it has."""
    rows = Rows(24, 1, tokens_per_row=8)
    assert [choose_rows(rows, tokens).chunk_rows for tokens in (192, 191, 64, 7)] == [24, 12, 8, 1]
    assert choose_rows(rows, 64).chunk_tokens == 64


def test_the_same_chunks_follow_from_their_tokens() -> None:
    """A plan file keeps no more of them."""
    for num_rows in range(1, 40):
        for most_tokens in range(1, 90):
            rows = choose_rows(Rows(num_rows, 1, tokens_per_row=2), most_tokens)
            assert choose_rows(rows, rows.chunk_tokens) == rows


@pytest.mark.parametrize(
    ("num_rows", "most_rows", "chunk_rows", "num_chunks", "overlaps"),
    [
        (12, 4, 4, 3, False),
        (12, 5, 4, 3, False),
        (12, 100, 12, 1, False),
        (2047, 256, 256, 8, True),  # 2047 is 23 x 89: too many chunks would divide it
        (8192, 1000, 911, 9, True),
        (46, 6, 6, 8, True),
    ],
)
def test_chunks_are_of_equal_size(
    num_rows: int, most_rows: int, chunk_rows: int, num_chunks: int, overlaps: bool
) -> None:
    rows = choose_rows(Rows(num_rows, 1), most_rows)
    assert rows.chunk_rows <= most_rows
    assert rows.num_chunks * rows.chunk_rows >= num_rows > (rows.num_chunks - 1) * rows.chunk_rows
    assert (rows.chunk_rows, rows.num_chunks, rows.overlaps) == (chunk_rows, num_chunks, overlaps)
