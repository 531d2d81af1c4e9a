"""Writes large gradients to buffers, for others may wait for them.

What waits for a gradient reads its first element. XLA:CPU computes that element from what the gradient is computed
from, which it holds for longer, and over which it can then not write the gradient (TensorFlow 2.21).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.model.index import is_product


@dataclass(frozen=True)
class AwaitedGradients(BufferRule):
    """Large gradients, of floats, that are no products lie in buffers."""

    stops_fusion = False

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(node for node in range(len(facts.graph.nodes)) if _may_be_awaited(facts, node))


def _may_be_awaited(facts: Facts, node: int) -> bool:
    graph = facts.graph
    described = graph.nodes[node]
    if not described.is_backward or not facts.may_fuse(node) or is_product(described.op_type):
        return False
    tensors = [t for value in described.outputs for t in facts.training_graph.get_value_tensors(value)]
    is_large = bool((graph.sizes_bytes[list(described.outputs)] > facts.small_bytes).any())
    return is_large and all(tensor.dtype.is_floating for tensor in tensors)
