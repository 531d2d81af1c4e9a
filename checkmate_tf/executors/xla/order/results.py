"""Ties backward products to gradients of weights, for the rules that choose these gradients."""

from collections.abc import Mapping

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


def tie_to_results(progress: Progress, index: int) -> Mapping[str, str]:
    """Makes a backward product wait for the gradients of weights for which no operation waits yet.

    A select copies the tensor that it ties, so a product of matrices is tied by its smallest operand. A convolution is
    tied by its filter, because XLA:CPU would otherwise transpose the filter at the start of the step, and hold the copy
    until the backward pass (TensorFlow 2.21).
    """
    node, copies = progress.graph.nodes[index], progress.copies
    if not progress.results or not node.is_backward or not is_product(node.op_type):
        return {}
    weights = [tensor for tensor in progress.list_float_reads(index) if _is_weight(progress, tensor)]
    if not weights:
        return {}
    operands = weights if "Conv" in node.op_type else weights + _list_computed(progress, index)
    smallest = min(operands, key=copies.size_bytes)
    name = copies.tensor(smallest)
    own = progress.start_ties(progress.results)
    tied = {name: own.tie(name, copies.dtype(smallest))}
    copies.renamed.update(own.finish())
    progress.results, progress.of_repeats = [], []
    return tied


def _list_computed(progress: Progress, index: int) -> list[TensorId]:
    """Lists the tensors of floats of a known size that the products of a node read from other nodes."""
    copies, node = progress.copies, progress.xla_graph.nodes[index]
    within = {node, *progress.xla_graph.fused[node]}
    found = []
    for member in copies.grouping.groups[node].members:
        for tensor in copies.ops.inputs[member] if is_product(copies.ops.ops[member].type) else ():
            root = copies.grouping.root(tensor)
            is_computed = root is not None and copies.grouping.group_of[root[0]] not in within
            if is_computed and copies.dtype(tensor).is_floating and copies.size_bytes(tensor):
                found.append(tensor)
    return found


def _is_weight(progress: Progress, tensor: TensorId) -> bool:
    """Returns whether a tensor exists from the start, or is small enough to count as such."""
    size_bytes = progress.copies.size_bytes(tensor)
    is_given = progress.copies.grouping.root(tensor) is None
    return size_bytes > 0 and (is_given or size_bytes <= progress.small_bytes)
