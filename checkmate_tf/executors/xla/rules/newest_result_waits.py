"""Makes products wait for the newest gradient of a filter, in steps of convolutions.

XLA runs gradients of filters last, and holds what they read until then; XLA:CPU transposes filters at the start of the
step, which wait with the products that read them (TensorFlow 2.21).

Over-fitted: a step counts as one of convolutions if most of its products are, and there neither do products wait for
more than the newest gradient, nor runs of recomputation for any. A U-Net held more with waits for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.order.results import tie_to_results


@dataclass(frozen=True)
class NewestResultWaits(OrderRule):
    """The next product waits for the newest gradient of a filter."""

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        return tie_to_results(progress, index) if progress.is_convolutional else {}

    def note(self, progress: Progress, index: int) -> None:
        result = progress.find_result(index)
        is_filter = is_product(progress.graph.nodes[index].op_type) and progress.returns_gradient(index)
        if progress.is_convolutional and result is not None and is_filter:
            progress.results = [result]
