"""Makes all runs of recomputation for one gradient but the first wait for the newest gradient of a filter as well.

One gradient may have many readers: all layers of a WaveNet feed one sum. XLA:CPU would run what is computed again for
them at once, when that gradient is there (TensorFlow 2.21).

Over-fitted: it holds in steps most of whose products are convolutions; in others, runs wait for all gradients of
weights by `results_wait`. It was found on a WaveNet.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class CrowdedRuns(OrderRule):
    """A run whose gradient another waited for waits for the newest gradient of a filter too."""

    def list_more(self, progress: Progress, gradient: TensorId) -> list[TensorId]:
        is_crowded = progress.is_convolutional and gradient in progress.awaited
        return [progress.newest_result] if is_crowded and progress.newest_result is not None else []
