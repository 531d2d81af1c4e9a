"""Writes concatenations to buffers: several products may read one as a whole.

XLA:CPU computes a concatenation within each of its readers, which hold all its parts (TensorFlow 2.21). XLA:GPU writes
such to buffers as it sees fit, in kernels that do more.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Concatenations(BufferRule):
    """Concatenations lie in buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(node for node in facts.large if facts.graph.nodes[node].op_type == "ConcatV2")
