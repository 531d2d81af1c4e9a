"""Makes backward nodes read large results of forward nodes late: not before the newest gradient that they read.

XLA:CPU runs whatever it can as soon as its operands exist (TensorFlow 2.21): it would compute what the node needs of
the results alone, such as transposes for filter gradients, in the forward pass, and hold that too. XLA:GPU orders for
memory, and would fuse less.

The wait is on what the node reads, before it pads that: XLA would share the padded tensor with the forward pass. The
node waits as well for products before it that read a repeat, which is held for them. Where the backward pass begins
there is no gradient: nodes wait for what was computed last, the loss, for which XLA would hold the logits until after
some gradients of weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class LateReads(OrderRule):
    """Backward nodes read forward results through ties to gradients."""

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        graph, copies = progress.graph, progress.copies
        node = graph.nodes[index]
        if not node.is_backward or progress.xla_graph.is_split(index):
            return {}
        gradients = [value for value in node.inputs if graph.nodes[graph.producer[value]].is_backward]
        if not gradients:
            gradients = [value for value in progress.computed_at if value not in node.inputs]
        gradient = progress.find_newest_float(gradients)
        old = _list_old(progress, index, gradients)
        for rule in progress.xla_graph.backend.list_rules(OrderRule):
            old += rule.list_given(progress, index)
        if gradient is None or not old:
            return {}
        own = progress.start_ties([gradient, *progress.of_repeats])
        late = {copies.tensor(t): own.tie(copies.tensor(t), copies.dtype(t)) for t in old}
        return late | own.finish()


def _list_old(progress: Progress, index: int, gradients: list[int]) -> list[TensorId]:
    """Lists the large tensors of floats that a node reads that are older than its gradients, or held for others."""
    copies, computed_at = progress.copies, progress.computed_at
    newest = max((computed_at[value] for value in gradients), default=0)
    as_they_are = _list_operands(progress, index)
    return [
        tensor
        for value in progress.graph.nodes[index].inputs
        if value not in gradients
        and value not in as_they_are
        and (computed_at[value] <= newest or (progress.of_repeats and progress.is_late(computed_at[value])))
        for tensor in progress.xla_graph.tensors(value)
        if copies.dtype(tensor).is_floating and copies.size_bytes(tensor) > progress.small_bytes
    ]


def _list_operands(progress: Progress, index: int) -> frozenset[int]:
    """Lists the values that a product reads as they are, not through what is fused with it.

    Only products of matrices, and those that compute their operands apart, do. A select before them would copy them.
    """
    graph = progress.xla_graph
    node = graph.nodes[index]
    if not progress.multiplies_matrices(index) and node not in graph.apart:
        return frozenset()
    nodes, products = graph.training_graph.graph.nodes, [node, *graph.list_summed(node)]
    read = {v for product in products for v in nodes[product].inputs if (product, v) not in graph.transposed}
    return frozenset(v for v in graph.graph.nodes[index].inputs if graph.values[v] in read)
