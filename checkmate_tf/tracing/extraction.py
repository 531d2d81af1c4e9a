"""Extracts a TrainingGraph from a traced training step: the graph to schedule, and the operations behind its nodes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.tf_private import get_creation_number
from checkmate_tf.tracing.analytic_costs import COST_UNIT, estimate_op_cost_ns
from checkmate_tf.tracing.group_memory import find_group_memory
from checkmate_tf.tracing.grouping import Group, Grouping, group_ops
from checkmate_tf.tracing.observed import Observed
from checkmate_tf.tracing.ops import OpList, TensorId, list_ops
from checkmate_tf.tracing.semantics import count_static_bytes


@dataclass(frozen=True)
class TrainingGraph:
    """A graph of nodes and values, with the TensorFlow operations behind them.

    Args:
        graph: the nodes and values to schedule; node i is `grouping.groups[i]`.
        function: the traced step.
        ops: the step's operations that its results need.
        grouping: the operations of each node, and those that run exactly once.
        tensors: the output tensors that each value represents, as indices into `ops`, [num_values].
        observed: sizes observed in a run, for shapes that are open; `ops` includes them.
        traced: the step as Python traced it, if `function` was rewritten from it; otherwise None.
    """

    graph: Graph
    function: tf.types.experimental.ConcreteFunction
    ops: OpList
    grouping: Grouping
    tensors: tuple[tuple[TensorId, ...], ...]
    observed: Observed = field(default_factory=Observed)
    traced: tf.types.experimental.ConcreteFunction | None = None

    def get_node_ops(self, node: int) -> tuple[tf.Operation, ...]:
        """Returns the TensorFlow operations of a node, in the order in which they may run."""
        return tuple(self.ops.ops[member] for member in self.grouping.groups[node].members)

    def get_value_tensors(self, value: int) -> tuple[tf.Tensor, ...]:
        """Returns the tensors of the step that a value represents: one, or several small ones of a node."""
        return tuple(self.ops.ops[op].outputs[position] for op, position in self.tensors[value])


def extract(
    function: tf.types.experimental.ConcreteFunction,
    *,
    name: str = "",
    resident_bytes: int | None = None,
    like: TrainingGraph | None = None,
    observe: Callable[[OpList], Observed] | None = None,
) -> TrainingGraph:
    """Extracts the training graph of a traced step, with analytic costs.

    The step computes the loss with its regularizers, and gradients by a `tf.GradientTape`. Trace it with static shapes.
    Extraction is deterministic: the same step always leads to the same graph, node for node.

    Args:
        resident_bytes: memory that is always held; by default, the step's arguments and its captured tensors
            (variables, constants).
        like: the graph of the same step at another batch size. Both graphs get the same nodes and values, at any size.
        observe: returns the sizes that shapes leave open; without it, they count as 0 bytes.

    Raises UnsupportedModelError if nothing is computed, for TensorFlow 1 loops, and if the step has other operations
    than that of `like`.
    """
    ops = list_ops(function.graph)
    observed = Observed() if observe is None else observe(ops)
    ops = replace(ops, sizes_bytes=observed.fill_sizes(ops))
    decisions = ops if like is None else _copy_sizes(ops, like)
    grouping = group_ops(decisions, function.graph)
    if not grouping.groups:
        raise UnsupportedModelError(
            f"step {function.name} computes nothing from its arguments: there is no node to schedule; "
            "trace the step that computes the loss and its gradients"
        )
    if resident_bytes is None:
        resident_bytes = sum(list_captured_sizes(function)) + sum(list_argument_sizes(function))
    built = _Builder(ops, decisions, grouping).build(function, name or function.graph.name, resident_bytes)
    return replace(built, observed=observed)


def _copy_sizes(ops: OpList, like: TrainingGraph) -> OpList:
    """Copies the sizes of operations from another trace. Raises UnsupportedModelError if the two differ."""
    for number, (op, other) in enumerate(zip(ops.ops, like.ops.ops, strict=False)):
        if op.type != other.type or ops.inputs[number] != like.ops.inputs[number]:
            raise UnsupportedModelError(
                f"operation {op.name} ({op.type}) of the step stands where another batch size has {other.name} "
                f"({other.type}): the training graph changes with the batch"
            )
    if len(ops.ops) != len(like.ops.ops):
        raise UnsupportedModelError(
            f"the step has {len(ops.ops)} operations, and {len(like.ops.ops)} at another batch size: "
            "the training graph changes with the batch"
        )
    return replace(ops, sizes_bytes=like.ops.sizes_bytes)


class _Builder:
    """Turns groups into nodes and their outputs into values.

    Sizes are those of `ops`. Decisions that depend on a size, such as which values are small, are those of `decisions`.
    """

    def __init__(self, ops: OpList, decisions: OpList, grouping: Grouping):
        self.ops = ops
        self.decisions = decisions
        self.grouping = grouping
        self.kept = self.find_tensors_read_outside()
        self.value_of: dict[TensorId, int] = {}
        self.token_of: dict[int, int] = {}
        self.values: list[Value] = []
        self.tensors: list[tuple[TensorId, ...]] = []
        self.nodes: list[Node] = []

    def build(self, function: tf.types.experimental.ConcreteFunction, name: str, resident_bytes: int) -> TrainingGraph:
        """Builds the training graph, node by node in the order of the groups."""
        token_needed = self.find_waits_without_data()
        for number, group in enumerate(self.grouping.groups):
            self.add_node(number, group, number in token_needed)
        roots = (self.grouping.root(tensor) for tensor in self.ops.outputs)
        outputs = sorted({self.value_of[root] for root in roots if root is not None})
        graph = Graph(
            tuple(self.nodes), tuple(self.values), tuple(outputs), resident_bytes, COST_UNIT, name, "tensorflow"
        )
        return TrainingGraph(graph, function, self.ops, self.grouping, tuple(self.tensors))

    def find_tensors_read_outside(self) -> list[set[TensorId]]:
        """Returns the outputs of each group that another group or the caller reads."""
        kept: list[set[TensorId]] = [set() for _ in self.grouping.groups]
        group_of = self.grouping.group_of
        for index, tensors in enumerate(self.ops.inputs):
            if group_of[index] < 0:
                continue
            for tensor in tensors:
                root = self.grouping.root(tensor)
                if root is not None and group_of[root[0]] != group_of[index]:
                    kept[group_of[root[0]]].add(root)
        for tensor in self.ops.outputs:
            root = self.grouping.root(tensor)
            if root is not None:
                kept[group_of[root[0]]].add(root)
        return kept

    def find_reads(self, number: int, group: Group) -> set[TensorId]:
        """Returns the tensors of other groups that a group reads."""
        roots = {self.grouping.root(tensor) for member in group.members for tensor in self.ops.inputs[member]}
        return {root for root in roots if root is not None and self.grouping.group_of[root[0]] != number}

    def find_waits_without_data(self) -> set[int]:
        """Returns the groups that another must follow without reading any of their outputs."""
        needed: set[int] = set()
        for number, group in enumerate(self.grouping.groups):
            read = {self.grouping.group_of[root[0]] for root in self.find_reads(number, group)}
            needed |= set(group.after) - read
        return needed

    def add_node(self, number: int, group: Group, token_needed: bool) -> None:
        """Adds a group's node and its values: one for each large output, one for small ones, one only for waits."""
        read = self.find_reads(number, group)
        sources = {self.grouping.group_of[root[0]] for root in read}
        inputs = {self.value_of[root] for root in read} | {self.token_of[a] for a in group.after if a not in sources}
        kept = self.kept[number]
        memory = find_group_memory(self.ops, self.grouping, group.members, frozenset(kept))
        decided = memory
        if self.decisions is not self.ops:
            decided = find_group_memory(self.decisions, self.grouping, group.members, frozenset(kept))
        takes_over = decided.takes_over
        large = [t for t in sorted(kept) if (self.is_large(t) or t == takes_over)]
        if takes_over is not None:
            large.sort(key=lambda tensor: tensor != takes_over)
        small = [tensor for tensor in sorted(kept) if tensor not in large]
        outputs = [self.add_value((tensor,)) for tensor in large]
        if small:
            outputs.append(self.add_value(tuple(small)))
        if token_needed:
            self.token_of[number] = len(self.values)
            outputs.append(len(self.values))
            self.values.append(Value(f"^{self.ops.ops[group.members[-1]].name}", 0))
            self.tensors.append(())
        main = self.find_main_op(group)
        self.nodes.append(
            Node(
                name=main.name,
                op_type="+".join(self.ops.ops[m].type for m in group.members if self.is_notable(m)) or main.type,
                inputs=tuple(sorted(inputs)),
                outputs=tuple(outputs),
                cost=sum(estimate_op_cost_ns(self.ops.ops[member]) for member in group.members),
                workspace_bytes=memory.workspace_bytes,
                is_backward=group.is_backward,
                recomputable=group.recomputable,
                inplace=takes_over is not None,
            )
        )

    def add_value(self, tensors: tuple[TensorId, ...]) -> int:
        """Adds a value that represents tensors of one node, and returns its index."""
        first = self.ops.ops[tensors[0][0]].outputs[tensors[0][1]]
        for tensor in tensors:
            self.value_of[tensor] = len(self.values)
        self.values.append(Value(first.name, sum(map(self.count_bytes, tensors))))
        self.tensors.append(tensors)
        return len(self.values) - 1

    def count_bytes(self, tensor: TensorId) -> int:
        """Returns a tensor's own bytes. A read of a variable has none, because the variable's storage is resident."""
        if self.ops.ops[tensor[0]].type == "ReadVariableOp":
            return 0
        return self.ops.sizes_bytes[tensor[0]][tensor[1]] or 0

    def is_notable(self, member: int) -> bool:
        """Returns whether an op reads or yields a large tensor, so that the node's type includes the op."""
        touched = [(member, i) for i in range(len(self.ops.sizes_bytes[member]))] + list(self.ops.inputs[member])
        return any(map(self.is_large, touched))

    def is_large(self, tensor: TensorId) -> bool:
        """Returns whether a tensor is too large to count as small."""
        return (self.decisions.sizes_bytes[tensor[0]][tensor[1]] or 0) > self.grouping.small_bytes

    def find_main_op(self, group: Group) -> tf.Operation:
        """Returns the op that names the node: the first of those that cost most."""
        return self.ops.ops[max(group.members, key=lambda member: estimate_op_cost_ns(self.ops.ops[member]))]


def list_captured_sizes(function: tf.types.experimental.ConcreteFunction) -> list[int]:
    """Lists the bytes of each variable and constant that a step captures, in the order of creation."""
    captured = {get_creation_number(tensor): tensor for tensor in function.captured_inputs}
    return [_count_resident_bytes(captured[number]) for number in sorted(captured)]


def list_argument_sizes(function: tf.types.experimental.ConcreteFunction) -> list[int]:
    """Lists the bytes of each argument of a step."""
    return [_count_resident_bytes(t) for t in function.inputs[: len(function.inputs) - len(function.captured_inputs)]]


def _count_resident_bytes(tensor: tf.Tensor) -> int:
    """Returns the bytes of an argument or captured constant, or of the variable behind a captured handle."""
    if tensor.dtype != tf.resource:
        return count_static_bytes(tensor) or 0
    handle_data = getattr(tensor, "_handle_data", None)
    if handle_data is None or not handle_data.is_set:
        return 0
    return sum(_count_variable_bytes(entry) for entry in handle_data.shape_and_type)


def _count_variable_bytes(entry: Any) -> int:
    shape = tf.TensorShape(entry.shape)
    dtype = tf.as_dtype(entry.dtype)
    return shape.num_elements() * dtype.size if shape.is_fully_defined() else 0
