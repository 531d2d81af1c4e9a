"""Makes products and runs of recomputation wait for the gradients of weights before them, in steps of matrix products.

XLA:CPU runs operations last whose results only the caller reads, such as gradients of weights and biases, and holds
their inputs until then (TensorFlow 2.21). Late reads also wait for products that read recomputed values.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.order.results import tie_to_results
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class ResultsWait(OrderRule):
    """Makes the next product and the next run wait for all gradients of weights before them."""

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        return {} if progress.is_convolutional else tie_to_results(progress, index)

    def list_more(self, progress: Progress, gradient: TensorId) -> list[TensorId]:
        return [] if progress.is_convolutional else progress.results

    def note(self, progress: Progress, index: int) -> None:
        result, node = progress.find_result(index), progress.graph.nodes[index]
        if progress.is_convolutional or result is None:
            return
        if is_product(node.op_type) and any(progress.is_late(progress.computed_at[value]) for value in node.inputs):
            progress.of_repeats.append(result)
        if progress.returns_gradient(index):
            progress.results.append(result)
