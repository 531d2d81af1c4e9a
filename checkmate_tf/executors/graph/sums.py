"""Writes sums of three and more terms as sums of two.

Where grappler's memory optimizer estimates that a step takes most of the device, it adds up such an `AddN` in a
temporary variable (`SchedulingPass` of tensorflow/core/grappler/optimizers/memory_optimizer.cc, TensorFlow 2.21). The
variable is made when the first term is there, long before the sum is needed, and its initial zeros are a constant that
is held for as long as the function lives. It leaves sums of two terms alone.
"""

from collections.abc import Mapping
from functools import reduce

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

# Of the kernel (`AddNOp` of tensorflow/core/kernels/aggregate_ops.h).
_TERMS_AT_ONCE = 8


def split_sums(body: GraphDef, shapes: Mapping[str, TensorShapeProto]) -> GraphDef:
    """Returns a graph with the same operations, an `AddN` of n terms as n - 1 sums of two, the last with its name.

    Terms are added up in the order of their names, to which grappler sorts those of an `AddN`, and together as the
    kernel adds them up.

    Args:
        shapes: of each `AddN`, by its name.
    """
    split = GraphDef(versions=body.versions, library=body.library)
    for definition in body.node:
        is_sum = definition.op == "AddN" and definition.attr["N"].i > 2
        split.node.extend(_split(definition, shapes[definition.name]) if is_sum else [definition])
    return split


def _split(definition: NodeDef, shape: TensorShapeProto) -> list[NodeDef]:
    terms = sorted(name for name in definition.input if not name.startswith("^"))
    waits = [name for name in definition.input if name.startswith("^")]
    written: list[NodeDef] = []

    def add(first: str, second: str) -> str:
        """Writes a sum of two, and a view through which grappler does not join it with the next one."""
        part = NodeDef()
        part.CopyFrom(definition)
        part.name = f"{definition.name}/sum_{len(written) // 2}"
        part.attr["N"].i = 2
        del part.input[:]
        part.input.extend([first, second, *waits])
        view = NodeDef(name=f"{part.name}/view", op="EnsureShape", device=part.device, input=[f"{part.name}:0"])
        view.attr["T"].type = part.attr["T"].type
        view.attr["shape"].shape.CopyFrom(shape)
        written.extend([part, view])
        return f"{view.name}:0"

    begin = _count_first_terms(len(terms))
    total = reduce(add, terms[:begin])
    for start in range(begin, len(terms), _TERMS_AT_ONCE):
        total = add(total, reduce(add, terms[start : start + _TERMS_AT_ONCE]))
    written.pop()
    written[-1].name = definition.name
    return written


def _count_first_terms(num_terms: int) -> int:
    """Counts the terms that the kernel adds up first; the others follow in eights, each added up for itself."""
    rest = num_terms % _TERMS_AT_ONCE
    return min(num_terms, rest if rest > 1 else rest + _TERMS_AT_ONCE)
