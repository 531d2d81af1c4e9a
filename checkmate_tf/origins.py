"""Describes the origins of a training graph's nodes for users: Keras layers, source lines, shapes and types.

It is a table beside the graph. Solvers do not need it, but people who read a schedule do.
"""

import re
from dataclasses import dataclass

from checkmate_tf.graph import Graph

_GRADIENT_SCOPE = re.compile(r"^(gradient_tape|gradients)/")
_COUNT = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The origin of a node.

    Args:
        layer: the path of the Keras layer, such as "encoder/block_0/dense". A gradient or an update has the layer to
            which it belongs. A node of no layer has its name scope, such as "compile_loss/mse"; "" if it is not known.
        source: file and line of the user's code, such as "model.py:42"; "" if only code of Keras and TensorFlow made
            it, as in a functional model.
    """

    layer: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The shape and the type of a value that is one tensor. Both are empty for several small tensors or if unknown."""

    shape: tuple[int, ...] | None = None
    dtype: str = ""

    def __str__(self) -> str:
        """Returns a text such as "float32 [64, 128]"; "" if the type is not known.

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
    """Reads layers from the nodes' names, for graphs without a table.

    TensorFlow makes names of name scopes. In a graph of layers, the name is that of the layer.

    >>> from checkmate_tf.graph import Node, Value
    >>> node = Node("gradient_tape/unet_1/conv_1/Relu/ReluGrad", "ReluGrad", (), (0,), cost=1)
    >>> guess_origins(Graph((node,), (Value("dx", 400),))).nodes[0].layer
    'unet/conv/Relu'
    """
    layers = (read_scope(node.name) or node.name.removesuffix("_gradient") for node in graph.nodes)
    return Origins(tuple(map(NodeOrigin, layers)), tuple(ValueType() for _ in graph.values))


def read_scope(name: str) -> str:
    """Returns the name scopes around an operation, without those of gradients and without TensorFlow's counts."""
    scopes, _, _ = _GRADIENT_SCOPE.sub("", name).rpartition("/")
    return "/".join(_COUNT.sub("", scope) for scope in scopes.split("/"))
