"""Writes sums of three and more terms as sums of two.

Where grappler's memory optimizer estimates that a step takes most of the device, it adds up such an `AddN` in a
temporary variable (`SchedulingPass` of tensorflow/core/grappler/optimizers/memory_optimizer.cc, TensorFlow 2.21). The
variable is made when the first term is there, long before the sum is needed, and its initial zeros are a constant that
is held for as long as the function lives. Sums of two terms are left alone, and sum in the same order as the kernel.
"""

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef


def split_sums(body: GraphDef) -> GraphDef:
    """Returns a graph with the same operations, an `AddN` of n terms as n - 1 sums of two, the last with its name."""
    split = GraphDef(versions=body.versions, library=body.library)
    for definition in body.node:
        split.node.extend(_split(definition) if definition.op == "AddN" else [definition])
    return split


def _split(definition: NodeDef) -> list[NodeDef]:
    terms = [name for name in definition.input if not name.startswith("^")]
    waits = [name for name in definition.input if name.startswith("^")]
    sums: list[NodeDef] = []
    total = terms[0]
    for number, term in enumerate(terms[1:], start=2):
        part = NodeDef()
        part.CopyFrom(definition)
        part.name = definition.name if number == len(terms) else f"{definition.name}/terms_{number}"
        part.attr["N"].i = 2
        del part.input[:]
        part.input.extend([total, term, *waits])
        sums.append(part)
        total = f"{part.name}:0"
    return sums or [definition]
