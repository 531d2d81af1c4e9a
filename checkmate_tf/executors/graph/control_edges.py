"""Orders a step on the graph executor by control edges: nodes run one by one ("chain") or in parallel ("overlap").

For each position, `find_begins` returns the first position that may run in parallel with it. The two orderings differ
in nothing else.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.emission.ordering import Ordering, OrderingPolicy
from checkmate_tf.executors.graph.folding import FoldingGuard
from checkmate_tf.executors.graph.needed_waits import NeededWaits
from checkmate_tf.executors.graph.node_ends import find_ends
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_first_beside
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.grouping import FUSED_BEHIND
from checkmate_tf.tracing.loops import WHILE_TYPES
from checkmate_tf.tracing.ops import TensorId
from checkmate_tf.tracing.semantics import FUNCTION_CALL_TYPES
from checkmate_tf.tracing.state_updates import find_readers_of_old_values

# Operations that have no original in the source have names in this scope.
_SCOPE = "checkmate"
# The input that is the gradient: oneDNN fuses the two operations if both wait for the same operations.
_GRADIENT_INPUT = {"BiasAddGrad": 0, "Conv2DBackpropFilter": 2}


def find_begins(training_graph: TrainingGraph, schedule: Schedule, ordering: Ordering) -> Sequence[int]:
    """Returns, for each position, the first one that may run in parallel with it. It waits for all before that one."""
    if ordering == "chain" or schedule.fetches:
        return range(len(schedule))
    return delay_updates(training_graph, schedule, find_first_beside(training_graph.graph, schedule).tolist())


def delay_updates(training_graph: TrainingGraph, schedule: Schedule, first: Sequence[int]) -> list[int]:
    """Returns `first`, with each update of a variable delayed until the readers of its old value have ended.

    An update that ran in parallel with a reader would write the new value to a new chunk, which may be larger.
    """
    readers = find_readers_of_old_values(training_graph.ops, training_graph.grouping.group_of)
    last: dict[int, int] = {}  # position of each node's newest copy
    begins = []
    for position, (node, begin) in enumerate(zip(schedule.order, first, strict=True)):
        begins.append(max([begin, *(last[reader] + 1 for reader in readers.get(node, ()) if reader in last)]))
        last[node] = position
    return begins


class ControlEdges(OrderingPolicy):
    """Makes each position's first large operations wait for the last ones of all positions before its begin."""

    def __init__(self, copies: Copies, order: Sequence[int], begins: Sequence[int]):
        """Prepares for the positions of a schedule.

        Args:
            order: the node of each position.
            begins: for each position, the first one that may run in parallel with it, ascending.
        """
        self.copies = copies
        self.order = order
        self.begins = begins
        self.ops = copies.ops
        self.graph = copies.training_graph.graph
        self.grouping = copies.training_graph.grouping
        self.ends = find_ends(copies.training_graph)
        self.readers = defaultdict(list, self.ops.map_consumers())
        self.guard = FoldingGuard(copies)
        self.num_begun: Counter[int] = Counter()  # copies of each node
        self.num_control_edges = 0
        self.needed = NeededWaits()
        self.transfers: dict[int, list[str]] = defaultdict(list)  # position -> copies out that end with it
        self.tails: list[tuple[tuple[str, int], ...]] = []  # names and ops of the tails of each position
        self.position_of: dict[str, int] = {}  # by the names of those tails that yield all results at once
        self.ended = 0  # `end` waits for all positions before this one
        self.end = ""
        self.marked: set[str] = set()  # operations with a view of their output for which others wait
        self.takers: list[_Taker] = []
        self.node = -1  # of the position being written
        self.waits: list[str] = []  # the control inputs of its heads
        self.gates: dict[str, NodeDef] = {}  # tensor -> the view of it that waits, in that position

    def begin_position(self, position: int) -> Mapping[str, str]:
        self.node = self.order[position]
        self.num_begun[self.node] += 1
        self.gates = {}
        self.waits = self._find_waits(self.node, self.begins[position])
        return {}

    def tie_inputs(self, op: int, name: str, inputs: list[str]) -> list[str]:
        repeat = self.num_begun[self.node] - 1
        return self.guard.guard_inputs(
            op, name, inputs, repeat=repeat, is_backward=self.graph.nodes[self.node].is_backward
        )

    def hold(self, op: int, definition: NodeDef) -> None:
        is_head = op in self.ends[self.node].heads
        waits = self.waits if is_head else []
        gate = None
        if self.ops.ops[op].type in WHILE_TYPES:
            waits = list(dict.fromkeys([*waits, *self._list_reads(op, definition)]))
            definition.input.extend(waits)
        elif waits or self._shares_gradient(op) or self._is_apart(op):
            gate = self._gate_input(definition, op, self.gates)
            (definition if gate is None else gate).input.extend(waits)
        self.num_control_edges += len(waits)
        if is_head and self.graph.nodes[self.node].inplace:
            read = {self.copies.name_newest(tensor) for tensor in self.ops.inputs[op]}
            self.takers.append(_Taker(op, definition, gate, read))

    def end_position(self, position: int, fresh: Mapping[int, str]) -> None:
        tails = self.ends[self.node].tails
        self.tails.append(tuple((fresh[op], op) for op in tails))
        # A loop or a call yields each result as soon as it exists, and may still compute the others.
        whole = [op for op in tails if self.ops.ops[op].type not in FUNCTION_CALL_TYPES]
        self.position_of.update((fresh[op], position) for op in whole)

    def finish(self) -> None:
        """Makes operations that take over storage wait for the views of it for which others wait."""
        for taker in self.takers:
            waits = [f"^{name}/done" for name in sorted(taker.reads & self.marked)]
            if not waits:
                continue
            gate = taker.gate
            if gate is None:
                gate = self._gate_input(taker.definition, taker.op, {})
            waiting = (taker.definition if gate is None else gate).input
            waiting.extend(wait for wait in waits if wait not in waiting)

    def wait_for_all(self, position: int) -> list[str]:
        """Returns control inputs that wait for all positions before the given one."""
        return self._write_end(position)

    def add_tail(self, position: int, name: str) -> None:
        """Adds an operation to those that end a position. No operation may wait for that position yet."""
        self.transfers[position].append(name)

    def _list_reads(self, op: int, definition: NodeDef) -> list[str]:
        """Lists control inputs that make a loop wait for all its inputs.

        Without them, TensorFlow begins the first iteration as soon as some of them exist.
        """
        names = zip(self.ops.inputs[op], definition.input, strict=False)
        computed = [(source, name) for (source, _), name in names if source not in self.copies.singles]
        return [f"^{self._write_done(name.partition(':')[0], source)}" for source, name in computed]

    def _find_waits(self, node: int, begin: int) -> list[str]:
        """Returns the control inputs that make a node's heads wait for the positions before `begin`.

        A repeat gets them even if its data wait: grappler may simplify an operation in between, and drop the wait.
        """
        heads = self.ends[node].heads
        if not heads:
            self.needed.add_free()
            return []
        read = set.intersection(*({self.copies.name_newest(t) for t in self.ops.inputs[head]} for head in heads))
        ended = {self.position_of[name] for name in read if name in self.position_of}
        whole = [
            position
            for position in ended
            if read.issuperset(name for name, _ in self.tails[position]) and position not in self.transfers
        ]
        must_wait = self.needed.add(begin, whole)
        return self._write_end(begin) if must_wait or self.num_begun[node] > 1 else []

    def _write_end(self, end: int) -> list[str]:
        """Writes one operation that waits for all positions before `end`, and returns it as control inputs."""
        if end > self.ended:
            positions = range(self.ended, end)
            waits = [f"^{self._write_done(*tail)}" for position in positions for tail in self.tails[position]]
            waits += [f"^{name}" for position in positions for name in self.transfers.get(position, ())]
            if waits:
                before, self.end = self.end, f"{_SCOPE}/before_position_{end}"
                waits = [*([f"^{before}"] if before else []), *dict.fromkeys(waits)]
                self.copies.written.append(NodeDef(name=self.end, op="NoOp", input=waits))
                self.num_control_edges += len(waits)
            self.ended = end
        return [f"^{self.end}"] if self.end else []

    def _write_done(self, name: str, op: int) -> str:
        """Writes a view of an op's output, and returns its name to wait for. A wait for the op would break fusions."""
        outputs = self.ops.ops[op].outputs
        if not outputs or not outputs[0].dtype.is_floating:
            return name
        if name not in self.marked:
            self.marked.add(name)
            self.copies.write_identity(f"{name}/done", f"{name}:0", outputs[0].dtype, op, [])
        return f"{name}/done"

    def _gate_input(self, definition: NodeDef, op: int, gates: dict[str, NodeDef]) -> NodeDef | None:
        """Makes an op read one of its inputs through a view that can wait. Returns None if no input allows that.

        Grappler does not fuse an op that itself waits, and breaks some of them, such as cubes, when it rewrites them.
        Sums of several terms are not fused. They are written as sums of two, and all of these wait.

        Args:
            definition: of the op; the chosen input is replaced.
            gates: views that were made before, by the names of the viewed tensors.
        """
        position = self._choose_input(op)
        if position is None:
            return None
        source = definition.input[position]
        if source in self.copies.own_views:
            return self.copies.own_views[source]
        if source not in gates:
            gates[source] = self.copies.write_opaque_view(f"{definition.name}/wait", source, op, position, shared=True)
        definition.input[position] = f"{gates[source].name}:0"
        return gates[source]

    def _choose_input(self, op: int) -> int | None:
        """Returns the position of the input whose view waits instead of an op.

        It is the gradient that a bias and a filter share, and the input with whose op TensorFlow must not fuse an op.
        For other ops, it is a resident input, such as the weights of a product, because no fusion involves those;
        otherwise, the smallest input. Inputs that are known before a step runs, such as the exponent of a square's
        gradient, are left out: with a view of one, grappler would rewrite the op's other inputs.
        """
        kind, inputs = self.ops.ops[op].type, self.ops.inputs[op]
        if self._is_apart(op):
            return 0
        if kind == "AddN" and len(inputs) > 2:
            return None
        if kind in _GRADIENT_INPUT:
            return _GRADIENT_INPUT[kind]

        def is_data(tensor: TensorId) -> bool:
            return self.copies.dtype(tensor).is_floating and tensor[0] not in self.guard.known

        data = [position for position, tensor in enumerate(inputs) if is_data(tensor)]
        return min(
            data,
            key=lambda i: (inputs[i][0] not in self.copies.singles, self.copies.size_bytes(inputs[i]), -i),
            default=None,
        )

    def _is_apart(self, op: int) -> bool:
        """Returns whether an op reads another node's result of a kind with which TensorFlow fuses it.

        In the stock step, others read that result, too, such as a pad's that the gradient of a convolution's filter
        needs. A copy may have no other reader. oneDNN would then fuse the two, and operations between them would wait
        for themselves.
        """
        kinds = FUSED_BEHIND.get(self.ops.ops[op].type)
        if kinds is None:
            return False
        root = self.grouping.root(self.ops.inputs[op][0])
        return root is not None and self.ops.ops[root[0]].type in kinds and self.grouping.group_of[root[0]] != self.node

    def _shares_gradient(self, op: int) -> bool:
        """Returns whether a bias or a filter shares its gradient with those of another layer.

        oneDNN fuses the gradient of any bias with that of any filter if both read the same tensor. If their nodes run
        at different times, operations between them would then wait for themselves. Each node therefore reads a view of
        its own.
        """
        kind = self.ops.ops[op].type
        if kind not in _GRADIENT_INPUT:
            return False
        readers = self.readers[self.ops.inputs[op][_GRADIENT_INPUT[kind]]]
        return sum(self.ops.ops[reader].type in _GRADIENT_INPUT for reader in readers) > 2


@dataclass(frozen=True, slots=True)
class _Taker:
    """An op that may take over the storage of an input. `gate` is the view that waits instead of it, if any."""

    op: int
    definition: NodeDef
    gate: NodeDef | None
    reads: set[str]
