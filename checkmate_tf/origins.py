"""Says in the user's words where the nodes of a training graph come from: Keras layers, source lines, shapes and types.

A table beside the graph: solvers need none of it, people who look at a schedule do.
"""

import re
from dataclasses import dataclass

from checkmate_tf.graph import Graph

_GRADIENT_SCOPE = re.compile(r"^(gradient_tape|gradients)/")
_COUNT = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Where a node comes from.

    Args:
        layer: the path of the Keras layer, such as "encoder/block_0/dense", of a gradient or an update that of the
            layer it belongs to; the name scope of what belongs to none, such as "compile_loss/mse"; "" where unknown.
        source: file and line of the user's code, such as "model.py:42"; "" where only Keras and TensorFlow were at
            work, as in a functional model.
    """

    layer: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The shape and the type of a value that is one tensor; both are empty for several small ones and where unknown."""

    shape: tuple[int, ...] | None = None
    dtype: str = ""

    def __str__(self) -> str:
        """Writes "float32 [64, 128]"; "" where unknown.

        >>> str(ValueType((64, 128), "float32"))
        'float32 [64, 128]'
        """
        return "" if self.shape is None else f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Origins:
    """The origins of a graph's nodes, [num_nodes], and the types of its values, [num_values]."""

    nodes: tuple[NodeOrigin, ...]
    values: tuple[ValueType, ...]


def guess_origins(graph: Graph) -> Origins:
    """Reads layers from the nodes' names, for graphs that come without a table.

    TensorFlow makes names of name scopes; in a graph of layers the name is the layer's.

    >>> from checkmate_tf.graph import Node, Value
    >>> node = Node("gradient_tape/unet_1/conv_1/Relu/ReluGrad", "ReluGrad", (), (0,), cost=1)
    >>> guess_origins(Graph((node,), (Value("dx", 400),))).nodes[0].layer
    'unet/conv/Relu'
    """
    layers = (read_scope(node.name) or node.name.removesuffix("_gradient") for node in graph.nodes)
    return Origins(tuple(map(NodeOrigin, layers)), tuple(ValueType() for _ in graph.values))


def read_scope(name: str) -> str:
    """Reads the name scopes around an operation, without those of gradients and without TensorFlow's counts."""
    scopes, _, _ = _GRADIENT_SCOPE.sub("", name).rpartition("/")
    return "/".join(_COUNT.sub("", scope) for scope in scopes.split("/"))
