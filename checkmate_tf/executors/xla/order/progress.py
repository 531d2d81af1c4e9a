"""Records the part of a schedule that is written so far, for the rules of the order."""

from collections.abc import Iterable, Sequence

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.late_runs import find_runs
from checkmate_tf.executors.xla.order.ties import Ties
from checkmate_tf.graph import Graph
from checkmate_tf.tracing.ops import TensorId


class Progress:
    """A schedule, and the state of its writing.

    Attributes:
        run_ends: position -> the end of its run of recomputation.
        computed_at: value of the graph -> the position that computed it last.
        num_ties: the number of ties that were started.
        awaited: gradients for which a run waited.
        results: gradients of weights, which only the caller reads, for which no operation waits yet.
        newest_result: the newest gradient of weights from a product.
        of_repeats: results of products that read recomputed values. These values are held for the products.
    """

    def __init__(self, xla_graph: XlaGraph, copies: Copies, order: Sequence[int]):
        """Begins with nothing written; `order` is the node of `xla_graph.graph` at each position."""
        self.xla_graph = xla_graph
        self.copies = copies
        self.order = order
        self.run_ends = find_runs(xla_graph.graph, order)
        self.is_convolutional = _is_convolutional(xla_graph.graph)
        self.computed_at: dict[int, int] = {}
        self.num_ties = 0
        self.awaited: set[TensorId] = set()
        self.results: list[TensorId] = []
        self.newest_result: TensorId | None = None
        self.of_repeats: list[TensorId] = []

    @property
    def graph(self) -> Graph:
        return self.xla_graph.graph

    @property
    def small_bytes(self) -> int:
        return self.copies.grouping.small_bytes

    def is_late(self, position: int) -> bool:
        """Returns whether a position computes its node again, or later than the stock step does."""
        return position in self.run_ends

    def note(self, position: int) -> None:
        """Records that a position is written."""
        index = self.order[position]
        self.computed_at |= dict.fromkeys(self.graph.nodes[index].outputs, position)
        result = self.find_result(index)
        if result is not None and self.returns_gradient(index) and is_product(self.graph.nodes[index].op_type):
            self.newest_result = result

    def start_ties(self, gradients: Iterable[TensorId]) -> Ties:
        """Starts ties to gradients. Their operations are appended to the written ones."""
        self.num_ties += 1
        copies = self.copies
        named = [(copies.tensor(gradient), copies.dtype(gradient)) for gradient in gradients]
        return self.xla_graph.backend.ties(f"checkmate_tie_{self.num_ties}", named, copies.written)

    def find_newest_float(self, values: Iterable[int]) -> TensorId | None:
        """Returns a tensor of floats from the value that was computed last, or None."""
        for value in sorted(values, key=lambda value: -self.computed_at[value]):
            for tensor in self.xla_graph.tensors(value):
                if self.copies.dtype(tensor).is_floating and self.copies.size_bytes(tensor):
                    return tensor
        return None

    def find_result(self, index: int) -> TensorId | None:
        """Returns the largest tensor of floats from a backward node, such as a filter's gradient; otherwise None."""
        node = self.graph.nodes[index]
        yielded = (tensor for value in node.outputs for tensor in self.xla_graph.tensors(value))
        floats = [t for t in yielded if self.copies.dtype(t).is_floating and self.copies.size_bytes(t)]
        return max(floats, key=self.copies.size_bytes) if node.is_backward and floats else None

    def returns_gradient(self, index: int) -> bool:
        """Returns whether a node only yields results of the step."""
        return set(self.graph.nodes[index].outputs) <= set(self.graph.outputs)

    def list_float_reads(self, index: int) -> list[TensorId]:
        """Lists the tensors of floats that the operations of a node read."""
        copies = self.copies
        members = copies.grouping.groups[self.xla_graph.nodes[index]].members
        return [t for member in members for t in copies.ops.inputs[member] if copies.dtype(t).is_floating]

    def list_operands(self, index: int) -> list[TensorId]:
        """Lists the tensors that the products of a node read, or those of which they read a view."""
        copies = self.copies
        members = copies.grouping.groups[self.xla_graph.nodes[index]].members
        read = (t for member in members if is_product(copies.ops.ops[member].type) for t in copies.ops.inputs[member])
        return [root for root in map(copies.grouping.root, read) if root is not None]

    def multiplies_matrices(self, index: int) -> bool:
        """Returns whether a node, as it is written, multiplies matrices. Such a product fuses none of its operands."""
        ops = self.xla_graph.training_graph.get_node_ops(self.xla_graph.nodes[index])
        op_type = self.graph.nodes[index].op_type
        lowered = (self.xla_graph.backend.lower(op) for op in ops)
        return "MatMul" in op_type or "Einsum" in op_type or any(found and found.is_product for found in lowered)


def _is_convolutional(graph: Graph) -> bool:
    """Returns whether most products are convolutions."""
    convolutions = sum("Conv" in node.op_type for node in graph.nodes)
    return convolutions > sum("MatMul" in node.op_type or "Einsum" in node.op_type for node in graph.nodes)
