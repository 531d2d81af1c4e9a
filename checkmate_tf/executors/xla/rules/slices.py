"""Writes the slices of a tensor to buffers, because they read more than they yield.

XLA computes a slice within each of its readers, which then hold the whole tensor (seen in TensorFlow 2.21 on CPU, and
on an H100). One barrier makes XLA:GPU compute all slices of a tensor at once. Otherwise, it would hold the whole for a
slice that is read late, such as one of the gradients of a concatenation.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Slices(BufferRule):
    """Writes slices to buffers.

    Args:
        are_together: the slices of a tensor are written at once.
    """

    are_together: bool = False

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(node for node in facts.large if facts.graph.nodes[node].op_type == "Slice")

    def shares(self, op: tf.Operation) -> bool:
        return self.are_together and op.type == "Slice"
