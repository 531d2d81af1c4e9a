"""Counts each form in which XLA stores a gradient.

XLA:CPU writes a gradient once for each reader, where these want it transposed otherwise; of one that is divided, as
others wait for it, once for each product (TensorFlow 2.21).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import Buffers, MemoryRule


@dataclass(frozen=True)
class GradientForms(MemoryRule):
    """A gradient counts once for each form in which other nodes read it."""

    def find_forms(self, buffers: Buffers, value: int) -> frozenset[int] | None:
        facts, index = buffers.facts, buffers.facts.index
        producer = facts.graph.producer[value]
        if not facts.graph.nodes[producer].is_backward:
            return None
        forms = {k for k in index.written[value] - facts.for_sums if not index.readers[k] <= index.kernels[producer]}
        if producer in buffers.awaited:
            forms = {k for k in forms if not index.readers[k].isdisjoint(index.in_products)}
        return frozenset(forms)
