"""Writes forward results to buffers if XLA would otherwise hold larger tensors for the backward pass.

XLA:CPU repeats cheap operations within a backward kernel, and holds all their inputs (TensorFlow 2.21). It holds the
random numbers of a mask instead of the mask. It also holds the input of a ReLU besides its result, if a filter gradient
of one pixel, written as a product, or the gradient of a pooling reads that result. A result divided by a 1 that XLA
does not know is computed once, by the same kernel as before, and is bit for bit the same.

Over-fitted: products with one column are left out, because XLA computes them as sums, and fuses their operands. This
was found on a U-Net with one class, which needed one more compilation without the exception.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class HeldResults(BufferRule):
    """Writes forward results to buffers if XLA would otherwise hold more.

    Args:
        least_held: a result is written to a buffer if XLA holds more than this many times its bytes.
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
    """Returns the bytes that XLA holds for backward kernels that may compute a forward node's results again."""
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
    """Returns whether a backward node is lowered to operations that read their inputs from buffers."""
    filters = [op for op in facts.get_ops(node) if op.type == "Conv2DBackpropFilter"]
    is_sum = any(1 in op.outputs[0].shape[2:] for op in filters)
    return node in facts.lowered.otherwise and facts.graph.nodes[node].is_backward and not is_sum
