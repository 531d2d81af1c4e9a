"""Finds the nodes that XLA computes within the kernels of their readers, so that their results are never stored."""

from collections.abc import Mapping
from dataclasses import dataclass

from checkmate_tf.executors.xla.model.buffers import Buffers
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.model.index import is_product

# A node without a kernel that reads more than this many times its own bytes is not fused into its readers. They would
# have to hold all its inputs, and a fusion of another shape, or none, holds less.
_MOST_READ = 1.5


@dataclass(frozen=True)
class Fusion:
    """The values that each node reads from buffers, and the nodes that it computes within itself.

    Args:
        reads: node that is kept -> the values that it reads.
        fused: node that is kept -> the nodes that its kernels compute.
    """

    reads: Mapping[int, frozenset[int]]
    fused: Mapping[int, frozenset[int]]


def find_fusion(buffers: Buffers) -> Fusion:
    """Returns the nodes that are kept, from the last to the first, with the values that they read and the fused nodes.

    If a reader's kernels compute a node, the reader reads the node's inputs instead. A node without other readers is
    left out. Nodes that must run once, or whose results the step returns, are kept.
    """
    facts, graph = buffers.facts, buffers.facts.graph
    needed = {graph.producer[value] for value in graph.outputs}
    reads: dict[int, frozenset[int]] = {}
    fused: dict[int, frozenset[int]] = {}
    for index in reversed(range(len(graph.nodes))):
        if index not in needed and facts.may_fuse(index):
            continue
        read: set[int] = set()
        within: set[int] = set()
        waiting = list(graph.nodes[index].inputs)
        while waiting:
            value = waiting.pop()
            producer = graph.producer[value]
            if producer in within or _only_orders(facts, value):
                continue
            if _is_fused(buffers, producer, index):
                within.add(producer)
                waiting.extend(graph.nodes[producer].inputs)
            else:
                read.add(value)
        needed |= {graph.producer[value] for value in read}
        reads[index] = frozenset(read)
        fused[index] = frozenset(within)
    return Fusion(reads, fused)


def _only_orders(facts: Facts, value: int) -> bool:
    """Returns whether a value represents a control edge from a node without state, which XLA ignores."""
    return not facts.training_graph.tensors[value] and facts.graph.nodes[facts.graph.producer[value]].recomputable


def _is_fused(buffers: Buffers, node: int, reader: int) -> bool:
    """Returns whether the kernels of `reader` compute `node` themselves.

    They do not if they read a result of the node from another kernel, such as random numbers. For a mean, the reader's
    kernels may have the mean's name and still read its sum, and only divide it.
    """
    facts, index, graph = buffers.facts, buffers.facts.index, buffers.facts.graph
    if node in facts.constants or node in facts.lowered.products.get(reader, ()):
        return True
    if node in facts.lowered.parts.get(reader, ()):
        return True
    if not facts.may_fuse(node) or node in buffers.materialized or is_product(graph.nodes[node].op_type):
        return False
    written = {name for name in index.names[node] if name in index.writers}
    if written:
        kernels = {number for name in written for number in index.writers[name]}
        return written <= index.inside[reader] and kernels.isdisjoint(index.read[reader])
    read_bytes = int(graph.sizes_bytes[list(graph.nodes[node].inputs)].sum())
    output_bytes = sum(int(graph.sizes_bytes[value]) for value in graph.nodes[node].outputs)
    if facts.sums_gradients(node):
        return output_bytes <= facts.small_bytes
    return bool(index.names[node] & index.inside[reader]) or read_bytes <= _MOST_READ * output_bytes
