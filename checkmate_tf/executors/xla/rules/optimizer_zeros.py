"""Counts the zeros to which an optimizer adds the gradients of the rows of an embedding.

XLA:CPU computes such constants first, and holds them until the caller needs them (TensorFlow 2.21).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import MemoryRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class OptimizerZeros(MemoryRule):
    """Counts constants that the caller reads together with gradients throughout the step."""

    def count_constants_bytes(self, facts: Facts) -> int:
        index = facts.index
        late = {k for k, kernel in enumerate(index.stock) if not kernel.is_constant} - index.forward - index.in_nodes
        held = {k for reader in late for k in index.stock[reader].reads if index.stock[k].is_constant}
        return sum(index.stock[k].size_bytes for k in held - index.in_nodes)
