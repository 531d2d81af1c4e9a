"""Emits a schedule of a training graph as a new static TensorFlow function for XLA.

`gradient_ties` contains the ordering policy. A node that XLA fuses is written once for each reader that computes it,
and reads the same copies as that reader.
"""

from collections.abc import Mapping

from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.awaited_calls import delay_changes, find_awaited_nodes
from checkmate_tf.executors.emission.copies import Copies, Reads
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.emission.writer import NodeWriter, check_emitted
from checkmate_tf.executors.xla.delays import delay_fused, delay_repeats
from checkmate_tf.executors.xla.host_copies import HostCopies
from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.executors.xla.order.gradient_ties import GradientTies
from checkmate_tf.executors.xla.order.ties import Ties, write_operations
from checkmate_tf.rewriting.body import build_function
from checkmate_tf.schedule import Schedule, drop_unread
from checkmate_tf.tracing.ops import TensorId


def arrange_for_xla(xla_graph: XlaGraph, schedule: Schedule) -> Schedule:
    """Returns a schedule of `xla_graph.graph` in the form in which XLA runs it.

    It drops computations that nothing reads, and moves changes of variables behind the last repeat of a call that reads
    them. If nothing is offloaded, repeats move to the place before their first reader if that saves memory. On a GPU,
    recomputation then moves out from between nodes that XLA fuses.
    """
    graph = xla_graph.graph
    read = drop_unread(graph, schedule)
    late = read if read.fetches else delay_repeats(graph, read)
    if xla_graph.backend.ties.is_free and not read.fetches:
        kernels = [xla_graph.list_kernels(node) for node in range(len(graph.nodes))]
        late = delay_fused(graph, late, kernels, xla_graph.training_graph.grouping.small_bytes)
    return delay_changes(graph, late, _find_awaited_nodes(xla_graph))


def emit_for_xla(xla_graph: XlaGraph, schedule: Schedule) -> EmittedFunction:
    """Writes a step for XLA that computes the nodes of `xla_graph.graph` in the order of `schedule`.

    Args:
        schedule: a schedule from `arrange_for_xla`, or one that repeats no call that reads variables.

    Raises EmissionError if the schedule does not compute the graph, or if TensorFlow refuses the step.
    """
    check_emitted(xla_graph.graph, schedule, _find_awaited_nodes(xla_graph))
    if schedule.fetches and not xla_graph.backend.has_host_memory:
        raise EmissionError("steps that XLA compiles for a CPU do not offload values: solve without offloading")
    writer = _XlaWriter(xla_graph, schedule)
    writer.write_positions()
    copies = writer.copies
    outputs = copies.write_outputs()
    source = xla_graph.training_graph.function
    function = build_function(source, copies.graph_def(), outputs, copies.control_outputs())
    return EmittedFunction(function, dict(sorted(writer.num_copied_ops.items())))


def _find_awaited_nodes(xla_graph: XlaGraph) -> list[set[int]]:
    """Returns, for each node of `xla_graph.graph`, the nodes with the calls for which it waits, [num_nodes]."""
    awaited = find_awaited_nodes(xla_graph.training_graph.ops, xla_graph.training_graph.grouping)
    place = {node: index for index, node in enumerate(xla_graph.nodes)}
    return [{place[call] for call in awaited[node] if call in place} for node in xla_graph.nodes]


class _XlaWriter:
    """Writes the nodes of an XlaGraph in the order of a schedule, each with the nodes that it fuses."""

    def __init__(self, xla_graph: XlaGraph, schedule: Schedule):
        self.xla_graph = xla_graph
        self.order = schedule.order
        self.copies = Copies(xla_graph.training_graph, lower=self.write_lowered, compute_within=self.compute_within)
        self.policy = GradientTies(xla_graph, self.copies, self.order)
        self.host_copies = HostCopies(self.policy, schedule)
        self.nodes = NodeWriter(self.copies, self.policy)
        self.versions: dict[tuple[int, int, tuple[str, ...]], dict[int, str]] = {}  # copies of nodes, by `key`
        self.early: dict[int, dict[TensorId, str]] = {}  # forward inputs of nodes with an early part
        self.num_copied_ops: dict[int, int] = {}
        self.argument = self.find_argument()
        self.shared: dict[str, Ties] = {}  # tensor -> ties of the results that are written at once from it

    def find_argument(self) -> TensorId | None:
        """Returns an argument of the step that has elements; None if there is none."""
        for number, op in enumerate(self.copies.ops.ops):
            if op.type == "Placeholder" and self.copies.size_bytes((number, 0)):
                dtype = op.outputs[0].dtype
                if dtype.is_floating or dtype.is_integer:
                    return number, 0
        return None

    def write_positions(self) -> None:
        """Writes the nodes of all positions."""
        computed: set[int] = set()
        for position, index in enumerate(self.order):
            self.host_copies.begin_position(position)
            late = self.policy.begin_position(position)
            node = self.xla_graph.nodes[index]
            within = self.xla_graph.fused[node]
            if index in self.xla_graph.early:
                self.copies.reads = Reads(within=within, late=late)
                self.early[node] = self.read_forward(node)
                fresh: dict[int, str] = {}
            else:
                self.copies.reads = Reads(self.early.get(node, {}), within, late)
                fresh = self.write_node(node)
            self.copies.reads = Reads()
            if fresh and index in computed:
                self.num_copied_ops[node] = self.num_copied_ops.get(node, 0) + len(fresh)
            computed.add(index)
            self.policy.end_position(position, fresh)
            self.host_copies.end_position(position)
        self.policy.finish()

    def write_node(self, node: int) -> dict[int, str]:
        """Writes the next copy of a node, and returns the names of its operations."""
        key = self.key(node)
        written = self.nodes.write_copy(node)
        self.versions[key] = written
        self.copies.name_of.update(written)
        if node in self.xla_graph.materialized:
            self.materialize(written)
        return written

    def compute_within(self, node: int) -> Mapping[int, str]:
        """Writes the operations of a fused node, which read the same copies as its reader. Returns their names."""
        key = self.key(node)
        if key not in self.versions:
            self.versions[key] = self.nodes.write_copy(node)
        return self.versions[key]

    def materialize(self, written: Mapping[int, str]) -> None:
        """Makes all readers read the results of operations from buffers.

        In a run of recomputation, results are never written at once, because they may wait for each other.
        """
        copies, backend = self.copies, self.xla_graph.backend
        rules = backend.list_rules(BufferRule)
        for op, name in written.items():
            if not self.policy.run and any(rule.shares(copies.ops.ops[op]) for rule in rules):
                whole = copies.tensor(copies.ops.inputs[op][0])
                if whole not in self.shared:
                    self.shared[whole] = backend.ties(f"{name}/buffer", [], copies.written)
                copies.renamed[f"{name}:0"] = self.shared[whole].tie(f"{name}:0", copies.dtype((op, 0)))
                continue
            for position, output in enumerate(copies.ops.ops[op].outputs):
                tensor = f"{name}:{position}", output.dtype
                scope = f"{name}/buffer_{position}"
                known = tensor if self.argument is None else (copies.tensor(self.argument), copies.dtype(self.argument))
                copies.renamed[tensor[0]] = backend.ties.write_buffer(
                    scope, tensor, known, copies.written, copies.source.library
                )

    def read_forward(self, node: int) -> dict[TensorId, str]:
        """Returns the newest copies of a node's inputs from the forward pass."""
        grouping, ops = self.copies.grouping, self.copies.ops
        nodes = self.xla_graph.training_graph.graph.nodes
        reads = {t: grouping.root(t) for op in grouping.groups[node].members for t in ops.inputs[op]}
        return {
            tensor: self.copies.tensor(tensor)
            for tensor, root in reads.items()
            if root is not None and not nodes[grouping.group_of[root[0]]].is_backward
        }

    def write_lowered(self, op: int, name: str, inputs: list[str]) -> bool:
        """Writes an operation in the form of a rule, if one lowers it. Returns whether it was written."""
        operation = self.copies.ops.ops[op]
        lowered = self.xla_graph.lower(op)
        if lowered is None:
            return False
        controls = [source for source in inputs if source.startswith("^")]
        readers, sources = (operation,), [inputs]
        if lowered.within:
            readers = lowered.within
            found = [self.find_copy(name, one.type) for name, one in zip(inputs, readers, strict=False)]
            sources = [list(copy.input) for copy in found if copy is not None]
            if len(sources) < len(readers):
                return False
        given = [
            (names[i], reader.inputs[i].dtype)
            for reader, names in zip(readers, sources, strict=True)
            for i in lowered.inputs
        ]
        written = write_operations(lowered.build, f"{name}/lowered", given, self.copies.written)
        definition = NodeDef(name=name, op="IdentityN", device=operation.device, input=[*written.results, *controls])
        definition.attr["T"].list.type.extend(output.dtype.as_datatype_enum for output in operation.outputs)
        self.copies.written.append(definition)
        return True

    def find_copy(self, name: str, op_type: str) -> NodeDef | None:
        """Returns the operation of a type that yields a tensor, perhaps behind ties; None if a tie hides it."""
        copies = {copy.name: copy for copy in self.copies.written}
        tied = {new: old for old, new in self.copies.renamed.items()}
        while name in tied and copies[name.partition(":")[0]].op != op_type:
            name = tied[name]
        copy = copies[name.partition(":")[0]]
        return copy if copy.op == op_type else None

    def key(self, node: int) -> tuple[int, int, tuple[str, ...]]:
        """Returns a node, the run of recomputation that is being written, and the names of the node's inputs."""
        members = self.copies.grouping.groups[node].members
        reads = {t for op in members for t in self.copies.ops.inputs[op] if not self.reads_itself(node, t)}
        return node, self.policy.run, tuple(self.copies.tensor(t) for t in sorted(reads))

    def reads_itself(self, node: int, tensor: TensorId) -> bool:
        """Returns whether a tensor that a node's operation reads is the node's own, or a view of such a tensor."""
        root = self.copies.grouping.root(tensor)
        return root is not None and self.copies.grouping.group_of[root[0]] == node
