"""Counts each form in which XLA stores a gradient.

If readers need a gradient in different transpositions, XLA:CPU writes it once for each of them (TensorFlow 2.21). It
writes a gradient that is divided, because other operations wait for it, once for each product that reads it.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import Buffers, MemoryRule


@dataclass(frozen=True)
class GradientForms(MemoryRule):
    """Counts a gradient once for each form in which other nodes read it."""

    def find_forms(self, buffers: Buffers, value: int) -> frozenset[int] | None:
        facts, index = buffers.facts, buffers.facts.index
        producer = facts.graph.producer[value]
        if not facts.graph.nodes[producer].is_backward:
            return None
        forms = {k for k in index.written[value] - facts.for_sums if not index.readers[k] <= index.kernels[producer]}
        if producer in buffers.awaited:
            forms = {k for k in forms if not index.readers[k].isdisjoint(index.in_products)}
        return frozenset(forms)
