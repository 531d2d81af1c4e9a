"""Makes filter gradients read the step's images, or volumes, late, as `late_reads` does with forward results.

XLA:CPU transposes the input of a filter gradient as soon as it exists (TensorFlow 2.21). It transposes that of the
first layer at the start of the step, and holds the copy until the end.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class GivenImages(OrderRule):
    """Makes filter gradients that transpose an argument of the step read it late."""

    def list_given(self, progress: Progress, index: int) -> list[TensorId]:
        copies = progress.copies
        is_apart = progress.xla_graph.nodes[index] in progress.xla_graph.apart
        is_filter = "BackpropFilter" in progress.graph.nodes[index].op_type
        if not is_filter or progress.multiplies_matrices(index) or is_apart:
            return []
        given = (tensor for tensor in progress.list_float_reads(index) if copies.grouping.root(tensor) is None)
        return [tensor for tensor in given if copies.size_bytes(tensor) > progress.small_bytes]
