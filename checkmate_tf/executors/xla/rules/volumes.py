"""Writes results to buffers if filter gradients of convolutions of volumes read them.

XLA:CPU transposes the input of such a gradient. Within that kernel, it computes the input again, so it also holds the
inputs of that computation (TensorFlow 2.21). For images, the rules `operands_apart` and `held_results` have the same
effect.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Volumes(BufferRule):
    """Writes forward results that backward convolutions of volumes read to buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        nodes = facts.graph.nodes
        read = {value for node in nodes if node.is_backward and "Conv3D" in node.op_type for value in node.inputs}
        forward = (node for node in facts.large if not nodes[node].is_backward)
        return frozenset(node for node in forward if not read.isdisjoint(nodes[node].outputs))
