"""Makes products wait for the newest gradient of a filter, in steps of convolutions.

XLA:CPU runs gradients of filters last, and holds their inputs until then. It also transposes filters at the start of
the step (TensorFlow 2.21); with this rule, the transposes wait with the products that read the filters.

Over-fitted: the rule applies to steps in which most products are convolutions. In these, products wait only for the
newest gradient, and runs of recomputation for none, because a U-Net held more memory with waits for all gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.order.results import tie_to_results


@dataclass(frozen=True)
class NewestResultWaits(OrderRule):
    """Makes the next product wait for the newest gradient of a filter."""

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        return tie_to_results(progress, index) if progress.is_convolutional else {}

    def note(self, progress: Progress, index: int) -> None:
        result = progress.find_result(index)
        is_filter = is_product(progress.graph.nodes[index].op_type) and progress.returns_gradient(index)
        if progress.is_convolutional and result is not None and is_filter:
            progress.results = [result]
