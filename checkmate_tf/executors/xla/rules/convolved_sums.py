"""Writes sums to buffers if the gradient of a convolution reads them, such as the sums of a residual stream.

XLA computes the sum again within the gradient, which then holds all its terms (seen in TensorFlow 2.21 on CPU, and on
an H100).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.model.index import is_product


@dataclass(frozen=True)
class ConvolvedSums(BufferRule):
    """Writes forward sums that gradients of convolutions read to buffers.

    Args:
        least_read: a node is a sum if it reads more than this many times the bytes that it yields.
    """

    least_read: float = 1.5

    def find(self, facts: Facts) -> frozenset[int]:
        convolved = {
            value
            for node, described in enumerate(facts.graph.nodes)
            if described.is_backward and "Conv" in described.op_type and node not in facts.lowered.otherwise
            for value in described.inputs
        }
        sums = (node for node in facts.large if self._is_forward_sum(facts, node))
        return frozenset(node for node in sums if not convolved.isdisjoint(facts.graph.nodes[node].outputs))

    def _is_forward_sum(self, facts: Facts, node: int) -> bool:
        """Returns whether a forward node combines several inputs to one result of fewer bytes, without a product."""
        graph = facts.graph
        described = graph.nodes[node]
        if described.is_backward or is_product(described.op_type):
            return False
        read_bytes, yielded_bytes = (graph.sizes_bytes[list(v)].sum() for v in (described.inputs, described.outputs))
        return bool(read_bytes > self.least_read * yielded_bytes)
