"""Writes sums of three and more terms as sums of two.

If grappler's memory optimizer estimates that a step takes most of the device, it adds up the terms of such an `AddN` in
a temporary variable (`SchedulingPass` of tensorflow/core/grappler/optimizers/memory_optimizer.cc, TensorFlow 2.21). The
variable is made when the first term exists, long before the sum is needed. Its initial zeros are a constant, which is
held as long as the function lives. The optimizer does not change sums of two terms.
"""

from collections.abc import Mapping
from functools import reduce

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

# Of the kernel (`AddNOp` of tensorflow/core/kernels/aggregate_ops.h).
_TERMS_AT_ONCE = 8


def split_sums(body: GraphDef, shapes: Mapping[str, TensorShapeProto]) -> GraphDef:
    """Returns a graph in which n - 1 sums of two replace each `AddN` of n terms. The last of them has its name.

    Grappler sorts the terms of an `AddN` by name. They are added up in that order, in the same groups as the kernel
    adds them up.

    Args:
        shapes: the shape of each `AddN`, by its name.
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
        """Writes a sum of two, and a view that keeps grappler from joining it with the next one."""
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
    """Returns the number of terms that the kernel adds up first. The others follow in separate sums of eight."""
    rest = num_terms % _TERMS_AT_ONCE
    return min(num_terms, rest if rest > 1 else rest + _TERMS_AT_ONCE)
