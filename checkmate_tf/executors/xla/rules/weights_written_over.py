"""Returns each large gradient of weights to the caller after all operations that read these weights.

XLA writes new weights over the old ones only if it can prove that nothing reads the old ones later. Otherwise, it
copies all weights at the start of the step, as it does in a stock step (seen in TensorFlow 2.21 on CPU). XLA:GPU copies
none (JAX 0.10.2).
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress


@dataclass(frozen=True)
class WeightsWrittenOver(OrderRule):
    """Makes gradients of weights wait, at the end of the step, for the gradients of inputs that read the weights."""

    def finish(self, progress: Progress) -> None:
        graph, copies = progress.graph, progress.copies
        readers = _list_readers_of_weights(progress)
        for value in graph.outputs:
            node = graph.nodes[graph.producer[value]]
            result = progress.find_newest_float([value]) if node.is_backward else None
            if result is None or copies.size_bytes(result) <= progress.small_bytes:
                continue
            others = {reader for given in node.inputs for reader in readers.get(given, ())} - {graph.producer[value]}
            found = (progress.find_newest_float(graph.nodes[reader].outputs) for reader in sorted(others))
            awaited = [tensor for tensor in found if tensor is not None]
            if awaited:
                own, name = progress.start_ties(awaited), copies.tensor(result)
                copies.renamed[name] = own.tie(name, copies.dtype(result))
                copies.renamed.update(own.finish())


def _list_readers_of_weights(progress: Progress) -> dict[int, list[int]]:
    """Maps each gradient to the backward nodes that read it and weights."""
    graph, copies = progress.graph, progress.copies
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        if not node.is_backward or not any(
            copies.grouping.root(tensor) is None and copies.size_bytes(tensor) > progress.small_bytes
            for tensor in progress.list_float_reads(index)
        ):
            continue
        for value in node.inputs:
            if graph.nodes[graph.producer[value]].is_backward:
                readers.setdefault(value, []).append(index)
    return readers
