"""Chooses in how many chunks a step computes its loss, by what the budget leaves."""

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.planning.options import ChunkLoss
from checkmate_tf.planning.step import Step

# Chunks of fewer rows take longer, as the gradient of the vocabulary's matrix is added up once a chunk.
_LEAST_ROWS = 128
# Twice as many chunks must lower the peak by this share of it.
_LEAST_GAIN = 0.01


def chunk_loss_for(step: Step, chunk_loss: ChunkLoss, target_bytes: int) -> Step:
    """Returns a step with its loss in as few chunks as keep it within a target, nothing computed again.

    Where no number of chunks does, it gets as many as still lower the peak; the solver does the rest.

    Args:
        chunk_loss: "auto"; or the most rows of a chunk, whatever the target; or None to leave the step as it is.

    Raises UnsupportedModelError where the loss cannot be computed in chunks of a given number of rows; for "auto" the
    step is left as it is.
    """
    if chunk_loss is None:
        return step
    if chunk_loss != "auto":
        return step.chunk_loss(chunk_loss)
    try:
        num_rows = step.count_loss_rows()
    except UnsupportedModelError:
        return step
    most_rows, best_bytes, chosen = num_rows // 2, step.predict_chunked(num_rows), None
    while best_bytes > target_bytes and most_rows >= min(_LEAST_ROWS, num_rows // 2) > 0:
        peak_bytes = step.predict_chunked(most_rows)
        if peak_bytes > (1 - _LEAST_GAIN) * best_bytes:
            break
        chosen, best_bytes, most_rows = most_rows, peak_bytes, most_rows // 2
    return step if chosen is None else step.chunk_loss(chosen)
