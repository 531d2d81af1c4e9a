"""Writes a value once that XLA would write twice: for the forward pass, and transposed for the backward pass.

XLA:CPU transposes keys and values of an attention as soon as they exist, and holds both copies (TensorFlow 2.21). With
this rule, each reader transposes the value when it runs.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import MemoryRule
from checkmate_tf.executors.xla.model.facts import Facts


@dataclass(frozen=True)
class Transposes(MemoryRule):
    """Makes backward nodes transpose those values that the stock step stores transposed for the backward pass alone."""

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
