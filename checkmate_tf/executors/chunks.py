"""Computes parts of a step in chunks of rows, for either executor."""

from collections.abc import Sequence
from dataclasses import dataclass

from checkmate_tf.executors.step import Chunked, Chunks, Step
from checkmate_tf.rewriting.chunks import find_block_regions, find_loss_region, write_chunks
from checkmate_tf.rewriting.regions import Region
from checkmate_tf.rewriting.rows import find_widest
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tracing.extraction import extract


@dataclass(frozen=True)
class Chunkable:
    """Regions of a step that treat their rows independently.

    Args:
        what: "loss" for the loss, "blocks" for the blocks.
    """

    step: Step
    what: Chunked
    regions: tuple[Region, ...]

    @property
    def num_rows(self) -> int:
        """Returns the most rows of any region, counted as tokens."""
        return find_widest(region.rows for region in self.regions).num_tokens

    def predict_peak(self, most_rows: int) -> int:
        """Predicts the peak of the step without recomputation, in chunks of at most `most_rows` rows."""
        chunked = write_chunks(self.step.training_graph.function, self.regions, most_rows)
        resident_bytes = self.step.graph.resident_bytes
        return simulate_stock(extract(chunked.function, resident_bytes=resident_bytes).graph).peak_bytes

    def write(self, most_rows: int) -> Step:
        """Returns the same step in chunks of at most `most_rows` rows. `stock` stays as it is."""
        chunked = write_chunks(self.step.training_graph.function, self.regions, most_rows)
        widest = find_widest(chunked.rows)
        chunks = Chunks(self.what, widest.num_tokens, widest.chunk_tokens, len(self.regions))
        return self.step.replace_function(chunked.function, chunks)


def find_chunkable(step: Step, what: Chunked) -> Chunkable:
    """Returns the regions of a step that can be computed in chunks. Raises UnsupportedModelError if there are none."""
    function = step.training_graph.function
    if what == "loss":
        return Chunkable(step, what, (find_loss_region(function),))
    return Chunkable(step, what, find_block_regions(function))


def repeat_chunks(step: Step, chunks: Sequence[Chunks]) -> Step:
    """Returns the same step in the chunks of a plan. Raises UnsupportedModelError if that is impossible."""
    for one in chunks:
        step = find_chunkable(step, one.what).write(one.chunk_rows)
    return step
