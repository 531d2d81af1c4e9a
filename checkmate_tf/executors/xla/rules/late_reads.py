"""Makes backward nodes read large results of forward nodes late: not before the newest gradient that they read.

XLA:CPU runs an operation as soon as its operands exist (TensorFlow 2.21). If a node's operations need only forward
results, such as the transposes of filter gradients, XLA would compute them in the forward pass, and hold their results,
too. XLA:GPU orders operations for memory, and would fuse less with this rule.

The input of the node is tied before the node pads it, because XLA would share the padded tensor with the forward pass.
The node also waits for earlier products that read recomputed values, which are held for them. At the start of the
backward pass, no gradient exists. Nodes there wait for the newest result, the loss, because XLA would otherwise compute
it after some gradients of weights, and hold the logits until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class LateReads(OrderRule):
    """Makes backward nodes read forward results through ties to gradients."""

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
    """Lists large tensors of floats that a node reads and that are older than its gradients, or held for others."""
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
    """Returns the values that a product reads directly, not through fused operations. A select would copy them.

    Only products of matrices, and those whose operands are computed in kernels of their own, read values in this way.
    """
    graph = progress.xla_graph
    node = graph.nodes[index]
    if not progress.multiplies_matrices(index) and node not in graph.apart:
        return frozenset()
    nodes, products = graph.training_graph.graph.nodes, [node, *graph.list_summed(node)]
    read = {v for product in products for v in nodes[product].inputs if (product, v) not in graph.transposed}
    return frozenset(v for v in graph.graph.nodes[index].inputs if graph.values[v] in read)
