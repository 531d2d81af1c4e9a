"""Detects that the loss alone keeps every schedule above a certain peak, as it does over a large vocabulary."""

from checkmate_tf.budget import format_bytes
from checkmate_tf.graph import Graph, Node
from checkmate_tf.origins import Origins, read_scope
from checkmate_tf.simulator import find_peak_bound

_LOSS_TYPE = "CrossEntropyWithLogits"
# The name scope in which Keras computes losses.
_LOSS_SCOPE = "compile_loss"


def explain_loss_limit(graph: Graph, origins: Origins) -> str:
    """Returns the size of the loss's logits and the remedies, in words, if the loss sets the least peak; otherwise "".

    The loss sets it if it is computed by the node that has the largest need of memory in any schedule. It also does if
    the largest value that this node reads or yields comes from the loss: that is the gradient of the logits, which is
    as large.
    """
    least = find_peak_bound(graph)
    node = graph.nodes[least.node]
    largest = max((*node.inputs, *node.outputs), key=lambda value: graph.values[value].size_bytes, default=None)
    if largest is None or not any(map(_is_of_loss, (node, graph.nodes[graph.producer[largest]]))):
        return ""
    tensor = str(origins.values[largest])
    return (
        f"No schedule takes less than {format_bytes(least.peak_bytes)}, because of the loss: its logits, or their "
        f"gradient, take {format_bytes(graph.values[largest].size_bytes)} at once{f' ({tensor})' if tensor else ''}. "
        'The loss in chunks (Options(chunk_loss="auto")), fewer rows a step, with gradients accumulated '
        "(checkmate_tf.best_batch), or shorter sequences take less."
    )


def _is_of_loss(node: Node) -> bool:
    return _LOSS_TYPE in node.op_type or read_scope(node.name).startswith(_LOSS_SCOPE)
