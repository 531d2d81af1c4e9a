"""Writes concatenations to buffers, because several products may read one.

XLA:CPU computes a concatenation within each of its readers, which then hold all its parts (TensorFlow 2.21). XLA:GPU
writes concatenations to buffers if it needs to, in kernels that also compute other operations.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Concatenations(BufferRule):
    """Writes concatenations to buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(node for node in facts.large if facts.graph.nodes[node].op_type == "ConcatV2")
