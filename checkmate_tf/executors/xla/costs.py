"""Times the nodes of an XLA graph. Each is compiled as a module of its own, with the nodes that XLA fuses with it."""

from collections.abc import Callable
from dataclasses import replace

from checkmate_tf.errors import ProfileError
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.profiling.costs import MeasuredCosts
from checkmate_tf.profiling.profiler import cut_node_fragments, profile_fragments
from checkmate_tf.profiling.signature import Fragment


def time_nodes(
    xla_graph: XlaGraph, model: MeasuredCosts, *, on_node: Callable[[int, int], None] | None = None
) -> XlaGraph:
    """Sets the costs of an XLA graph's nodes to the times of their modules, on the device where training runs.

    Times are kept in the profile cache, so equal nodes are compiled once. A node that cannot be compiled alone keeps
    its cost, which must be in nanoseconds. The early part of a node counts with the node.

    Args:
        on_node: called with the number of nodes timed and their total.
    """
    profile = profile_fragments(
        cut_nodes(xla_graph),
        cache_path=model.cache_path,
        device=model.device,
        progress=False,
        on_node=on_node,
        compiled=True,
    )
    nodes = tuple(
        node if entry is None or number in xla_graph.early else replace(node, cost=round(entry.cost_ns))
        for number, (node, entry) in enumerate(zip(xla_graph.graph.nodes, profile.measurements, strict=True))
    )
    return replace(xla_graph, graph=replace(xla_graph.graph, nodes=nodes))


def cut_nodes(xla_graph: XlaGraph) -> list[Fragment | ProfileError]:
    """Returns a fragment of each node and the nodes that it fuses, or the error that prevents it, [num_nodes]."""
    units = [frozenset((node,)) | xla_graph.fused[node] for node in xla_graph.nodes]
    return cut_node_fragments(xla_graph.training_graph, units)
