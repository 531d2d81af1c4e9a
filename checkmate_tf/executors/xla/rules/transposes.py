"""Writes a value once that XLA would write twice: for the forward pass, and transposed for the backward pass.

XLA:CPU transposes keys and values of an attention as soon as they exist, and holds both (TensorFlow 2.21). Here each
reader transposes the value when it comes to it.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import MemoryRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Transposes(MemoryRule):
    """Backward nodes transpose themselves what kernels that no forward node reads had transposed for them."""

    def find_transposed(self, facts: Facts) -> frozenset[tuple[int, int]]:
        graph, index = facts.graph, facts.index
        summed = {product for products in facts.lowered.products.values() for product in products}
        found = set()
        for value, producer in enumerate(graph.producer):
            written = frozenset() if graph.nodes[producer].is_backward else index.written[value]
            late = {k for k in written if index.readers[k].isdisjoint(index.forward)}
            for node in graph.users[value] if late and late < written else ():
                read = index.read[node] & written
                if graph.nodes[node].is_backward and read and read <= late and node not in summed:
                    found.add((node, value))
        return frozenset(found)
