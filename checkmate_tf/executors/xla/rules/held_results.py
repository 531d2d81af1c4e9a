"""Writes results to buffers of which XLA would hold more than themselves for the backward pass.

XLA:CPU computes again within a backward kernel whatever is cheap, and holds all inputs of that (TensorFlow 2.21): the
random numbers of a mask instead of the mask, or the product that a ReLU is applied to beside the ReLU, which a filter
gradient of one pixel, written as a product, and the gradient of a pooling read themselves. A result divided by a one
that XLA does not know to be one is computed once, by the kernel that wrote it before, and is bit for bit the same.

Over-fitted: products with one column are left out, as XLA computes them as sums, within which it computes what is
multiplied. It was found on a
U-Net with one class, which took a compilation more without.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class HeldResults(BufferRule):
    """Forward results lie in buffers for which XLA holds more otherwise.

    Args:
        least_held: a result is written where XLA holds more than this many times its bytes.
    """

    least_held: float = 1.5

    def find(self, facts: Facts) -> frozenset[int]:
        sizes_bytes = facts.graph.sizes_bytes
        return frozenset(
            node
            for node in facts.large
            if _count_held_bytes(facts, node)
            > self.least_held * sizes_bytes[list(facts.graph.nodes[node].outputs)].sum()
        )


def _count_held_bytes(facts: Facts, node: int) -> int:
    """Counts what XLA holds of a forward node for backward kernels, which may compute the results of it again."""
    graph, index = facts.graph, facts.index
    if graph.nodes[node].is_backward:
        return 0
    own = {number for name in index.names[node] for number in index.writers.get(name, ())}
    late = {number for number in own if not index.readers[number] <= index.kernels[node] | index.forward}
    for value in graph.nodes[node].outputs:
        if any(_reads_stored(facts, user) for user in graph.users[value]):
            late |= index.written[value]
    return sum(index.stock[k].size_bytes for k in late)


def _reads_stored(facts: Facts, node: int) -> bool:
    """Returns whether what is written in the place of a backward node reads its inputs from buffers."""
    filters = [op for op in facts.get_ops(node) if op.type == "Conv2DBackpropFilter"]
    is_sum = any(1 in op.outputs[0].shape[2:] for op in filters)
    return node in facts.lowered.otherwise and facts.graph.nodes[node].is_backward and not is_sum
