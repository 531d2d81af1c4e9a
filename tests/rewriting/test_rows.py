"""Rows: which dimensions they are, and how they are cut into chunks."""

import pytest

from checkmate_tf.rewriting.rows import Rows, choose_rows


@pytest.mark.parametrize(
    ("shape", "lead", "cut"),
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
def test_rows_are_the_first_dimensions(shape: list[int], lead: int | None, cut: list[int] | None) -> None:
    rows = Rows(12, 4)
    assert rows.count_lead(shape) == lead
    if cut is not None:
        assert rows.cut_shape(shape) == cut


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
    rows = choose_rows(num_rows, most_rows)
    assert rows.chunk_rows <= most_rows
    assert rows.num_chunks * rows.chunk_rows >= num_rows > (rows.num_chunks - 1) * rows.chunk_rows
    assert (rows.chunk_rows, rows.num_chunks, rows.overlaps) == (chunk_rows, num_chunks, overlaps)
