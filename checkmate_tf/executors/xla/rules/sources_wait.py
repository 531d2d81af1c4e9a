"""Makes forward nodes with large results but no large inputs, such as random numbers, wait for the nodes before them.

Random numbers read no activation, so XLA:CPU draws all of them at the start of the step, and holds them until their
layers run (TensorFlow 2.21). XLA:GPU draws some of them early (seen in JAX 0.10.2, for an H100). It computes the
others, such as slices of the batch, several in one kernel. Waits would make these several kernels.
"""

import re
from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId

_RANDOM = re.compile("Random|TruncatedNormal")


@dataclass(frozen=True)
class SourcesWait(OrderRule):
    """Makes a node without large inputs wait for the newest result.

    Args:
        are_random: only nodes that draw random numbers wait.
    """

    are_random: bool = False

    def find_awaited(self, progress: Progress, index: int) -> TensorId | None:
        node, sizes_bytes = progress.graph.nodes[index], progress.graph.sizes_bytes
        reads, yields = ((sizes_bytes[list(v)] > progress.small_bytes).any() for v in (node.inputs, node.outputs))
        is_source = not node.is_backward and yields and not reads
        if self.are_random:
            ops = progress.xla_graph.training_graph.get_node_ops(progress.xla_graph.nodes[index])
            is_source = is_source and any(_RANDOM.search(op.type) for op in ops)
        return progress.find_newest_float(progress.computed_at) if is_source else None
