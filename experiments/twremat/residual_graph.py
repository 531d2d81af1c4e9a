"""Graphs shaped like the training step of a ResNet, of any number of nodes: for the time that solvers take.

TWRemat's ResNet200 has 17,705 nodes because TensorFlow 1 has a node for every read, constant and update of a
parameter; ours fuses those. Here the blocks of ResNet200 have their convolutions, normalizations and gradients, and
each parameter as many small nodes as make up the number asked for.
"""

from collections.abc import Sequence

from checkmate_tf.graph import Graph, Node, Value

RESNET200_BLOCKS = (3, 24, 36, 3)
_PARAMETER_BYTES = 4 * 64 * 64


def residual_graph(num_nodes: int, *, blocks: Sequence[int] = RESNET200_BLOCKS, batch_size: int = 32) -> Graph:
    """A ResNet v2 of bottleneck blocks at 224 x 224, at unit costs, of `num_nodes` nodes.

    Raises ValueError where the blocks alone have more nodes.
    """
    least = len(_Builder(blocks, batch_size, []).nodes)
    num_parameters = sum(node.op_type == "update" for node in _Builder(blocks, batch_size, []).nodes)
    if num_nodes < least:
        raise ValueError(f"a ResNet of blocks {tuple(blocks)} has at least {least} nodes, {num_nodes} were asked for")
    each, rest = divmod(num_nodes - least, num_parameters)
    extra = [each + (index < rest) for index in range(num_parameters)]
    builder = _Builder(blocks, batch_size, extra)
    return Graph(tuple(builder.nodes), tuple(builder.values), name=f"residual-{num_nodes}")


class _Builder:
    """Forward nodes, then gradients in the opposite order; `extra[i]` small nodes after the i-th update."""

    def __init__(self, blocks: Sequence[int], batch_size: int, extra: Sequence[int]):
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.extra = list(extra)
        self.backward: list[tuple] = []
        size = 4 * batch_size * 64 * 56 * 56
        x = self.unit(None, size)
        for stage, num_blocks in enumerate(blocks):
            # Filters double where height and width halve.
            inner, outer = size >> stage, 4 * size >> stage
            for index in range(num_blocks):
                shortcut = self.unit(x, outer) if index == 0 else x
                hidden = self.unit(self.unit(x, inner), inner)
                hidden = self.unit(hidden, outer)
                x = self.node("add", (shortcut, hidden), outer)
                self.backward.append(("add", shortcut, hidden, x))
        loss = self.node("loss", (x,), 4)
        self.gradients: dict[int, int] = {x: self.node("loss_grad", (x, loss), self.values[x].size_bytes)}
        for kind, *values in reversed(self.backward):
            (self.add_gradient if kind == "add" else self.unit_gradient)(*values)

    def node(self, op_type: str, inputs: tuple[int, ...], size_bytes: int) -> int:
        value = len(self.values)
        self.values.append(Value(f"{op_type}{value}", size_bytes))
        self.nodes.append(Node(f"{op_type}{value}", op_type, tuple(sorted(set(inputs))), (value,), 1))
        return value

    def unit(self, x: int | None, size_bytes: int) -> int:
        """Normalization in five nodes, ReLU and convolution."""
        x = self.node("input", (), size_bytes) if x is None else x
        held = self.values[x].size_bytes
        mean, variance = self.node("mean", (x,), 256), self.node("variance", (x,), 256)
        scale = self.node("rsqrt", (variance,), 256)
        normalized = self.node("scale", (x, mean, scale), held)
        relu = self.node("relu", (normalized,), held)
        convolved = self.node("conv", (relu,), size_bytes)
        self.backward.append(("unit", x, mean, scale, normalized, relu, convolved))
        return convolved

    def add_gradient(self, shortcut: int, hidden: int, x: int) -> None:
        for source in (shortcut, hidden):
            self.accumulate(source, self.gradients[x])

    def unit_gradient(self, x: int, mean: int, scale: int, normalized: int, relu: int, convolved: int) -> None:
        gradient = self.gradients[convolved]
        self.update(self.node("filter_grad", (relu, gradient), _PARAMETER_BYTES))
        held = self.values[x].size_bytes
        relu_gradient = self.node("relu_grad", (relu, self.node("conv_grad", (gradient,), held)), held)
        sums = self.node("scale_grad", (normalized, relu_gradient), 256)
        self.update(sums)
        self.accumulate(x, self.node("norm_grad", (x, mean, scale, sums, relu_gradient), held))

    def accumulate(self, value: int, gradient: int) -> None:
        if value in self.gradients:
            gradient = self.node("accumulate", (self.gradients[value], gradient), self.values[value].size_bytes)
        self.gradients[value] = gradient

    def update(self, gradient: int) -> None:
        size = self.values[gradient].size_bytes
        for _ in range(self.extra.pop(0) if self.extra else 0):
            gradient = self.node("small", (gradient,), size)
        self.node("update", (gradient,), 0)
