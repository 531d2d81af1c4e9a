"""Writes to buffers the results that the filter gradients of convolutions of volumes read.

XLA:CPU transposes the input of such a gradient, and computes it again within that, from inputs that it holds beside it
(TensorFlow 2.21). For images the rules `operands_apart` and `held_results` do what this does.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Volumes(BufferRule):
    """Forward results that backward convolutions of volumes read lie in buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        nodes = facts.graph.nodes
        read = {value for node in nodes if node.is_backward and "Conv3D" in node.op_type for value in node.inputs}
        forward = (node for node in facts.large if not nodes[node].is_backward)
        return frozenset(node for node in forward if not read.isdisjoint(nodes[node].outputs))
