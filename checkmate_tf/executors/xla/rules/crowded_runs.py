"""Makes all runs of recomputation for one gradient but the first wait for the newest gradient of a filter, too.

One gradient may have many readers: all layers of a WaveNet feed one sum. As soon as that gradient exists, XLA:CPU would
run the recomputation for all of them at once (TensorFlow 2.21).

Over-fitted: it was found on a WaveNet. It applies to steps in which most products are convolutions; in others, runs
wait for all gradients of weights by `results_wait`.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class CrowdedRuns(OrderRule):
    """Makes a run wait for the newest gradient of a filter if an earlier run waited for the same gradient."""

    def list_more(self, progress: Progress, gradient: TensorId) -> list[TensorId]:
        is_crowded = progress.is_convolutional and gradient in progress.awaited
        return [progress.newest_result] if is_crowded and progress.newest_result is not None else []
