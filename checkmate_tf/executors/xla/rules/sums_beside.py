"""Makes small sums of a gradient, such as those for a bias, read it as it was before recomputation waited for it.

XLA:GPU computes some sums in the kernel that writes the gradient. Behind the barrier of a run that waits for the
gradient, they would be kernels of their own, which read it again (seen in JAX 0.10.2, for an H100).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress


@dataclass(frozen=True)
class SumsBeside(OrderRule):
    """Makes nodes with small results read tensors from before a barrier if a kernel of the stock step writes both."""

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        graph, copies = progress.graph, progress.copies
        if any(graph.values[value].size_bytes > progress.small_bytes for value in graph.nodes[index].outputs):
            return {}
        kernels = progress.xla_graph.list_kernels(index)
        together = [value for value in graph.nodes[index].inputs if kernels & progress.xla_graph.written[value]]
        tensors = [tensor for value in together for tensor in progress.xla_graph.tensors(value)]
        return {copies.tensor(tensor): f"{copies.name_of[tensor[0]]}:{tensor[1]}" for tensor in tensors}
