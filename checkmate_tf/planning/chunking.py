"""Chooses in how many chunks a step computes its loss, by what the budget leaves."""

from collections.abc import Iterator

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.step import Step
from checkmate_tf.planning.options import ChunkLoss

# Chunks of fewer rows take longer, as the gradient of the vocabulary's matrix is added up once a chunk.
_LEAST_ROWS = 128
# Twice as many chunks must lower the peak by this share of it.
_LEAST_GAIN = 0.01


def list_chunked(step: Step, chunk_loss: ChunkLoss, target_bytes: int) -> Iterator[Step]:
    """Lists a step with its loss in ever more chunks, each to be planned for where the one before it is infeasible.

    The first has as few chunks as are predicted to keep it within a target, nothing computed again. Where no number of
    chunks does, it has as many as still lower the peak, and the solver does the rest.

    Args:
        chunk_loss: "auto"; or the most rows of a chunk, whatever the target; or None to leave the step as it is.

    Raises UnsupportedModelError where the loss cannot be computed in chunks of a given number of rows; for "auto" the
    step is left as it is.
    """
    if chunk_loss is None:
        yield step
        return
    if chunk_loss != "auto":
        yield step.chunk_loss(chunk_loss)
        return
    try:
        num_rows = step.count_loss_rows()
    except UnsupportedModelError:
        yield step
        return
    best_bytes, rows = step.predict_chunked(num_rows), [num_rows]
    is_enough = False
    while rows[-1] >= 2 * _LEAST_ROWS:
        peak_bytes = step.predict_chunked(rows[-1] // 2)
        if peak_bytes > (1 - _LEAST_GAIN) * best_bytes:
            break
        best_bytes = peak_bytes
        rows.append(rows[-1] // 2)
        if is_enough := is_enough or peak_bytes <= target_bytes:
            yield step.chunk_loss(rows[-1])
    if not is_enough:
        yield step if len(rows) == 1 else step.chunk_loss(rows[-1])
