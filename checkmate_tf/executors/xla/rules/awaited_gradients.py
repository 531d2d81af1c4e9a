"""Writes large gradients to buffers, because other operations may wait for them.

An operation that waits for a gradient reads its first element. XLA:CPU computes that element again from the gradient's
inputs (TensorFlow 2.21). It then holds these inputs longer, and cannot write the gradient over them.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.model.index import is_product


@dataclass(frozen=True)
class AwaitedGradients(BufferRule):
    """Writes large gradients of floats to buffers, other than products, which XLA always writes to buffers."""

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
