"""A training graph as XLA runs it: what fuses into its readers is computed again there and never stored."""

from dataclasses import dataclass, replace

from checkmate_tf.extraction import TrainingGraph
from checkmate_tf.graph import Graph, Node

# A node that reads more than this many times its own bytes is not taken into its readers: they would have to hold all
# that it reads, where a fusion of another shape, or none, holds less.
_MOST_READ = 1.5


@dataclass(frozen=True)
class XlaGraph:
    """The nodes of a training graph whose results XLA writes to buffers.

    Args:
        graph: node i computes `nodes[i]` of the training graph, and within it every inline node that it reads.
        nodes: of the training graph, ascending, [num_nodes].
        values: of the training graph, [num_values].
        inline: nodes of the training graph that exist only inside fusions.
    """

    graph: Graph
    training_graph: TrainingGraph
    nodes: tuple[int, ...]
    values: tuple[int, ...]
    inline: frozenset[int]


def xla_graph(training_graph: TrainingGraph, materialized: frozenset[str]) -> XlaGraph:
    """The training graph with nodes that XLA fuses into their readers taken into them.

    `materialized`: names of the operations whose results the stock step, compiled, writes to buffers. A
    node whose results none of them is, is inline: its readers read its inputs instead. Nodes that must run
    once, or whose results the step returns, are kept. What the step returns is written to buffers of its
    own that XLA holds from the start: it counts as resident.
    """
    whole = training_graph.graph
    reads = _reads(training_graph, materialized)
    inline = frozenset(range(len(whole.nodes))) - reads.keys()
    kept = tuple(sorted(reads))
    values = [value for index in kept for value in whole.nodes[index].outputs]
    position = {value: new for new, value in enumerate(values)}
    nodes: list[Node] = []
    for index in kept:
        node = whole.nodes[index]
        nodes.append(
            Node(
                node.name,
                node.op_type,
                tuple(sorted(position[value] for value in reads[index])),
                tuple(position[value] for value in node.outputs),
                node.cost,
                node.workspace_bytes,
                node.is_backward,
                node.recomputable,
                node.inplace,
            )
        )
    returned = frozenset(whole.outputs)
    graph = Graph(
        tuple(nodes),
        tuple(replace(whole.values[v], size_bytes=0) if v in returned else whole.values[v] for v in values),
        tuple(sorted(position[value] for value in returned)),
        whole.resident_bytes + int(whole.sizes_bytes[list(returned)].sum()),
        whole.cost_unit,
        whole.name,
        whole.source,
    )
    return XlaGraph(graph, training_graph, kept, tuple(values), inline)


def _reads(training_graph: TrainingGraph, materialized: frozenset[str]) -> dict[int, frozenset[int]]:
    """The values that each kept node reads, those of the inline nodes that it reads in their place."""
    graph = training_graph.graph
    through: dict[int, frozenset[int]] = {}  # inline node -> values of kept nodes that it reads
    reads: dict[int, frozenset[int]] = {}
    for index, node in enumerate(graph.nodes):
        read = frozenset(v for value in node.inputs for v in through.get(graph.producer[value], (value,)))
        read_bytes = int(graph.sizes_bytes[list(read)].sum())
        output_bytes = sum(int(graph.sizes_bytes[value]) for value in node.outputs)
        if _is_kept(training_graph, index, materialized) or read_bytes > _MOST_READ * output_bytes:
            reads[index] = read
        else:
            through[index] = read
    return reads


def _is_kept(training_graph: TrainingGraph, index: int, materialized: frozenset[str]) -> bool:
    graph = training_graph.graph
    node = graph.nodes[index]
    if not node.recomputable or not node.outputs or any(value in graph.outputs for value in node.outputs):
        return True
    tensors = [tensor for value in node.outputs for tensor in training_graph.value_tensors(value)]
    # A value without tensors only orders nodes that share state.
    ordering = any(not training_graph.tensors[value] for value in node.outputs)
    return ordering or any(tensor.op.name in materialized for tensor in tensors)
