"""Chooses the number of chunks in which a step computes its loss and its blocks, from the room in the budget."""

from collections.abc import Iterator

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.chunks import find_chunkable
from checkmate_tf.executors.step import Step
from checkmate_tf.planning.options import ChunkRows
from checkmate_tf.simulator import find_peak_bound

# Chunks of fewer rows take longer, because each chunk adds to the gradient of a product's matrix.
_LEAST_ROWS = 128
# Twice as many chunks must lower the peak by this share of it.
_LEAST_GAIN = 0.01


def list_chunked(step: Step, chunk_loss: ChunkRows, chunk_rows: ChunkRows, target_bytes: int) -> Iterator[Step]:
    """Lists a step in more and more chunks of rows. Each is planned for if the one before it is infeasible.

    Args:
        chunk_loss: for the loss: "auto"; or the most rows of a chunk, whatever the target; or None to compute it as a
            whole.
        chunk_rows: the same for blocks.

    Raises UnsupportedModelError if the loss, or every block, cannot be computed in chunks of a given number of rows.
    For "auto", such parts are computed as a whole.
    """
    for chunked in _list_chunked_losses(step, chunk_loss, target_bytes):
        if chunk_rows is None or chunk_rows == "auto":
            yield chunked
        else:
            yield find_chunkable(chunked, "blocks").write(chunk_rows)
    if chunk_rows == "auto":
        yield from _list_chunked_blocks(chunked)


def _list_chunked_losses(step: Step, chunk_loss: ChunkRows, target_bytes: int) -> Iterator[Step]:
    """Lists a step with its loss in more and more chunks.

    The first has the fewest chunks that are predicted to stay within a target without recomputation. If no number of
    chunks does, it has the most chunks that still lower the peak, and the solver does the rest.
    """
    if chunk_loss is None:
        yield step
        return
    if chunk_loss != "auto":
        yield find_chunkable(step, "loss").write(chunk_loss)
        return
    try:
        loss = find_chunkable(step, "loss")
    except UnsupportedModelError:
        yield step
        return
    best_bytes, rows = loss.predict_peak(loss.num_rows), [loss.num_rows]
    is_enough = False
    while rows[-1] >= 2 * _LEAST_ROWS:
        peak_bytes = loss.predict_peak(rows[-1] // 2)
        if peak_bytes > (1 - _LEAST_GAIN) * best_bytes:
            break
        best_bytes = peak_bytes
        rows.append(rows[-1] // 2)
        if is_enough := is_enough or peak_bytes <= target_bytes:
            yield loss.write(rows[-1])
    if not is_enough:
        yield step if len(rows) == 1 else loss.write(rows[-1])


def _list_chunked_blocks(step: Step) -> Iterator[Step]:
    """Lists a step with its blocks in more and more chunks, if that lowers the least peak of all schedules.

    A few large chunks may take more memory than the block as a whole, of which a schedule holds only the inputs of the
    running node. If a schedule of the step without chunks stays within the budget, it takes less time for the same
    recomputation.
    """
    try:
        blocks = find_chunkable(step, "blocks")
    except UnsupportedModelError:
        return
    best_bytes, rows = find_peak_bound(step.graph).peak_bytes, blocks.num_rows
    while rows >= 2 * _LEAST_ROWS:
        rows //= 2
        chunked = blocks.write(rows)
        least_bytes = find_peak_bound(chunked.graph).peak_bytes
        if least_bytes <= (1 - _LEAST_GAIN) * best_bytes:
            best_bytes = least_bytes
            yield chunked
