"""Writes sums of gradients to buffers where no kernel of the stock step does.

XLA:CPU computes the sum of the gradients that several readers of a value yield within each reader of the sum, which
holds all terms, and those of the sums that are terms of it (TensorFlow 2.21). XLA:GPU writes and reduces a sum in
one kernel, which takes less time (seen on an H100).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class GradientSums(BufferRule):
    """Sums of gradients lie in buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(n for n in facts.large if facts.sums_gradients(n) and not facts.index.kernels[n])
