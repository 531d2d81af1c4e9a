"""Computes the input of a filter gradient in a kernel of its own, after the gradient of the layer's result exists.

XLA:CPU transposes the input of a filter gradient (TensorFlow 2.21). That takes several times as long if the same kernel
also computes the input, such as a batch normalization or the select of a tie. With this rule, the input is a quotient
that is written to a buffer before it is transposed. The price is one more copy.

Over-fitted: `most_share` was chosen on a U-Net, whose least budget would be higher without it.
"""

from dataclasses import dataclass, replace

import tensorflow as tf

from checkmate_tf.executors.xla.model.graph import OptionalLowering, XlaGraph
from checkmate_tf.executors.xla.order.ties import divide, hold_always, select
from checkmate_tf.executors.xla.rules.rule import Lowering
from checkmate_tf.simulator import find_peak_bound, simulate_stock


@dataclass(frozen=True)
class OperandsApart(OptionalLowering):
    """Makes filter gradients compute their input before XLA transposes it.

    The rule leaves out gradients that would then need more memory than any node needs now, and more than a share of the
    stock step's memory, because they would raise the least peak of any schedule.

    Args:
        most_share: that share of the stock step's memory. Few schedules need less.
    """

    most_share: float = 0.25

    def lower(self, op: tf.Operation) -> Lowering | None:
        if op.type != "Conv2DBackpropFilter" or not op.outputs[0].shape.is_fully_defined():
            return None
        sizes = op.outputs[0].shape.as_list()
        names = ("strides", "padding", "explicit_paddings", "data_format", "dilations")
        attributes = {name: op.get_attr(name) for name in names}

        def build(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
            # If x is a quotient, XLA would merge it with this one.
            apart = divide(select(hold_always(gradient), x), gradient)
            result = tf.raw_ops.Conv2DBackpropFilter(
                input=apart, filter_sizes=sizes, out_backprop=gradient, **attributes
            )
            return select(hold_always(apart), result)  # XLA writes the quotient to a buffer if it has two readers.

        return Lowering((0, 2), build, is_product=True)

    def choose(self, xla_graph: XlaGraph) -> XlaGraph:
        graph, training_graph = xla_graph.graph, xla_graph.training_graph
        ops, stock_bytes = training_graph.ops, simulate_stock(graph).peak_bytes - graph.resident_bytes
        least_bytes = max(find_peak_bound(graph).peak_bytes - graph.resident_bytes, self.most_share * stock_bytes)
        nodes, apart = list(graph.nodes), set()
        for index, node in enumerate(graph.nodes):
            members = training_graph.grouping.groups[xla_graph.nodes[index]].members
            copied = [ops.inputs[member][0] for member in members if self._is_open(xla_graph, ops.ops[member])]
            copy_bytes = sum(ops.sizes_bytes[op][position] or 0 for op, position in copied)
            needed_bytes = int(graph.sizes_bytes[[*node.inputs, *node.outputs]].sum()) + node.workspace_bytes
            if copied and needed_bytes + copy_bytes <= least_bytes:
                nodes[index] = replace(node, workspace_bytes=node.workspace_bytes + copy_bytes)
                apart.add(xla_graph.nodes[index])
        return replace(xla_graph, graph=replace(graph, nodes=tuple(nodes)), apart=frozenset(apart))

    def _is_open(self, xla_graph: XlaGraph, op: tf.Operation) -> bool:
        """Returns whether this rule may lower an operation that no other rule lowers."""
        return self.lower(op) is not None and xla_graph.backend.lower(op) is None
