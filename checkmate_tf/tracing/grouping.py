"""Groups operations into the units that a schedule computes, retains and repeats.

An operation has one of three roles:

- single: it runs exactly once, in the stock place: arguments, constants, variable reads, assignments, and small
  computations on these. Its outputs are not scheduled.
- alias: its output is a view of its input's buffer. It is repeated with the operation whose output it views.
- member of a group: a group is one node of the training graph. Operations are in one group if TensorFlow fuses them
  (convolution, bias, activation), if the outputs are too small to matter, or if keeping them apart could never save
  memory (a temporary with one reader that needs nothing else).
"""

from dataclasses import dataclass, field

import tensorflow as tf

from checkmate_tf.tracing.loops import WHILE_TYPES
from checkmate_tf.tracing.ops import OpList, TensorId
from checkmate_tf.tracing.semantics import (
    ALIAS_TYPES,
    SOURCE_TYPES,
    has_static_shape_value,
    is_handle,
    is_stateful,
)
from checkmate_tf.tracing.state_updates import find_update_ops, join_update_units, order_updates_early

# An output of up to this share of the largest one, and of the sum of all, is small, and joins the group that it reads.
_SMALL_SHARE_OF_LARGEST = 1 / 64
_SMALL_SHARE_OF_TOTAL = 1 / 20_000
_SCALAR_BYTES = 8

_SUMS = frozenset({"Add", "AddN", "AddV2"})
# TensorFlow fuses an operation with the one that computes its first input, if nothing else reads that.
FUSED_BEHIND = {
    "BiasAdd": frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"}),
    "Conv2D": frozenset({"Pad", "PadV2"}),
}
_FILTER_GRADIENTS = frozenset(
    {
        "Conv2DBackpropFilter",
        "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNativeBackpropFilter",
    }
)


@dataclass(frozen=True)
class Group:
    """One unit of computation: its ops, ascending, the groups that it must follow, and whether it may repeat."""

    members: tuple[int, ...]
    after: tuple[int, ...]
    is_backward: bool
    recomputable: bool


@dataclass(frozen=True)
class Grouping:
    """The role of every op.

    Args:
        groups: in topological order.
        group_of: the group of each op, -1 for single and alias ops, [num_ops].
        singles: ops that run exactly once, ascending.
        constants: those of `singles` that read only shapes, all of which are known.
        roots: for every output of an alias op, the tensor that it views; None if that is the output of a single op.
        small_bytes: values up to this size count as small.
    """

    groups: tuple[Group, ...]
    group_of: tuple[int, ...]
    singles: tuple[int, ...]
    constants: frozenset[int]
    roots: dict[TensorId, TensorId | None]
    small_bytes: int

    def root(self, tensor: TensorId) -> TensorId | None:
        """Returns the tensor whose storage `tensor` shares: a group's output, or None."""
        if self.group_of[tensor[0]] >= 0:
            return tensor
        return self.roots.get(tensor)


@dataclass
class _OpenGroup:
    """A group that may still get more members."""

    is_backward: bool
    recomputable: bool
    members: list[int] = field(default_factory=list)
    after: set[int] = field(default_factory=set)


def group_ops(ops: OpList, graph: tf.Graph) -> Grouping:
    """Groups the operations of a step; `graph` is its FuncGraph, which knows the functions that ops call."""
    return _Grouper(ops, graph).run()


class _Grouper:
    """Makes one pass over the ops, and holds its results so far."""

    def __init__(self, ops: OpList, graph: tf.Graph):
        self.ops = ops
        self.graph = graph
        self.consumers = ops.map_consumers()
        self.small_bytes = _choose_small_bytes(ops)
        self.groups: list[_OpenGroup] = []
        self.group_of = [-1] * len(ops.ops)
        self.roots: dict[TensorId, TensorId | None] = {}
        self.waits: list[frozenset[int]] = [frozenset()] * len(ops.ops)  # groups that a single or alias op follows
        self.singles: list[int] = []
        self.constants: set[int] = set()
        self.returned = set(ops.outputs)
        self.updates = find_update_ops(ops)

    def run(self) -> Grouping:
        """Places every op, then joins groups if that costs no memory."""
        leaders = _find_fused_leaders(self.ops, self.consumers)
        behind = _pair_filter_gradients(self.ops, self.consumers)
        elsewhere = {leader for fused in leaders.values() for leader in fused} | set(behind.values())
        for index in range(len(self.ops.ops)):
            if index not in elsewhere:
                self.place_behind(index, leaders)
            if index in behind:
                self.place(behind[index], join=index)
        groups, group_of = self.join_updates(*self.contract())
        return Grouping(
            groups, group_of, tuple(sorted(self.singles)), frozenset(self.constants), self.roots, self.small_bytes
        )

    def root(self, tensor: TensorId) -> TensorId | None:
        return tensor if self.group_of[tensor[0]] >= 0 else self.roots.get(tensor)

    def is_small(self, tensor: TensorId) -> bool:
        """Returns whether a tensor is known to be small."""
        size = self.ops.sizes_bytes[tensor[0]][tensor[1]]
        return size is not None and size <= self.small_bytes

    def place_behind(self, index: int, leaders: dict[int, list[int]]) -> None:
        """Places an op right behind those with which it may be fused, in the same group if possible."""
        fused = leaders.get(index, ())
        for leader in fused:
            self.place_behind(leader, leaders)
        self.place(index, join=fused[0] if fused else None)

    def place(self, index: int, join: int | None = None) -> None:
        """Assigns an op its role: single, alias, or member of a group, that of `join` where possible."""
        op = self.ops.ops[index]
        if has_static_shape_value(op):
            self.constants.add(index)
            self.singles.append(index)
            return
        data = [self.root(tensor) for tensor in self.ops.inputs[index]]
        waits_data = {self.group_of[root[0]] for root in data if root is not None}
        for source, _ in self.ops.inputs[index]:
            waits_data |= self.waits[source] if self.group_of[source] < 0 else frozenset()
        waits_control: set[int] = set()
        for source in self.ops.controls[index]:
            waits_control |= {self.group_of[source]} if self.group_of[source] >= 0 else self.waits[source]
        waits = waits_data | waits_control
        outputs = [(index, position) for position in range(len(op.outputs))]
        if op.type in ALIAS_TYPES and self.place_alias(index, data, waits_control, outputs):
            return
        small_outputs = all(self.is_small(tensor) for tensor in outputs)
        if op.type == "Placeholder" or (not waits and (op.type in SOURCE_TYPES or small_outputs)):
            self.singles.append(index)
            return
        small_inputs = all(root is None or self.is_small(root) for root in data)
        if (
            waits
            and small_inputs
            and not any(tensor in self.consumers or tensor in self.returned for tensor in outputs)
        ):
            self.singles.append(index)
            self.waits[index] = frozenset(waits)
            return
        recomputable = op.type != "ReadVariableOp" and not is_stateful(op, self.graph) and not self.makes_handles(index)
        if join is not None and max(waits, default=0) <= self.group_of[join]:
            target = self.group_of[join]
        elif waits and small_inputs and small_outputs and self.may_fold(max(waits), index, recomputable):
            target = max(waits)
        else:
            target = len(self.groups)
            self.groups.append(_OpenGroup(self.ops.is_backward[index], recomputable))
        self.groups[target].members.append(index)
        self.groups[target].after |= waits - {target}
        self.group_of[index] = target

    def makes_handles(self, index: int) -> bool:
        """Returns whether an output is a new handle, which must not be made twice, other than a list."""
        op, sizes = self.ops.ops[index], self.ops.sizes_bytes[index]
        handles = [t for t, size in zip(op.outputs, sizes, strict=True) if is_handle(t) and size is None]
        return any(t.dtype != tf.resource or op.type not in WHILE_TYPES for t in handles)

    def place_alias(
        self, index: int, data: list[TensorId | None], waits_control: set[int], outputs: list[TensorId]
    ) -> bool:
        """Makes the op an alias, unless its readers must wait for something other than the viewed tensor."""
        paired = self.ops.ops[index].type == "IdentityN"
        if waits_control or (not paired and any(root is not None for root in data[1:])):
            return False
        if all(root is None for root in data):
            self.singles.append(index)
            return True
        sources = [source for source, _ in self.ops.inputs[index]]
        if any(self.waits[s] and self.group_of[s] < 0 and (s, 0) not in self.roots for s in sources):
            return False
        for position, tensor in enumerate(outputs):
            self.roots[tensor] = data[position if paired else 0]
        self.waits[index] = frozenset(self.group_of[root[0]] for root in data if root is not None)
        return True

    def may_fold(self, target: int, index: int, recomputable: bool) -> bool:
        """Returns whether a small op may join a group that was begun before."""
        group = self.groups[target]
        is_update = index in self.updates
        alike = all((member in self.updates) == is_update for member in group.members)
        return alike and group.recomputable and recomputable and group.is_backward == self.ops.is_backward[index]

    def contract(self) -> tuple[tuple[Group, ...], tuple[int, ...]]:
        """Joins groups: sums of sums first, then every group with the next if that costs no memory."""
        readers = self.find_reading_groups()
        units = self.join_sums(readers)
        merged: list[list[int]] = []
        reads: set[TensorId] = set()
        for unit in units:
            large = self.find_large_reads(unit)
            if merged and self.may_contract(merged[-1], unit, readers, reads, large):
                produced = {member for number in merged[-1] for member in self.groups[number].members}
                merged[-1].extend(unit)
                reads |= {root for root in large if root[0] not in produced}
            else:
                merged.append(list(unit))
                reads = set(large)
        new = {number: position for position, numbers in enumerate(merged) for number in numbers}
        groups = []
        for position, numbers in enumerate(merged):
            parts = [self.groups[number] for number in numbers]
            groups.append(
                Group(
                    members=tuple(sorted(member for part in parts for member in part.members)),
                    after=tuple(sorted({new[number] for part in parts for number in part.after} - {position})),
                    is_backward=parts[0].is_backward,
                    recomputable=all(part.recomputable for part in parts),
                )
            )
        return tuple(groups), tuple(new[number] if number >= 0 else -1 for number in self.group_of)

    def join_updates(
        self, groups: tuple[Group, ...], group_of: tuple[int, ...]
    ) -> tuple[tuple[Group, ...], tuple[int, ...]]:
        """Joins the operations of each state update to one group, which comes as early as possible."""

        def root(tensor: TensorId) -> TensorId | None:
            return tensor if group_of[tensor[0]] >= 0 else self.roots.get(tensor)

        is_update = [self.updates.issuperset(group.members) for group in groups]
        reads = []
        for number, group in enumerate(groups):
            roots = {root(tensor) for member in group.members for tensor in self.ops.inputs[member]}
            reads.append({group_of[found[0]] for found in roots if found is not None} - {number} | set(group.after))
        units = join_update_units(self.ops, group_of, is_update, root, self.is_small)
        order = order_updates_early(self.ops, group_of, units, reads)
        new = {number: position for position, numbers in enumerate(order) for number in numbers}
        return tuple(
            Group(
                members=tuple(sorted(member for number in numbers for member in groups[number].members)),
                after=tuple(sorted({new[a] for number in numbers for a in groups[number].after} - {position})),
                is_backward=any(groups[number].is_backward for number in numbers),
                recomputable=all(groups[number].recomputable for number in numbers),
            )
            for position, numbers in enumerate(order)
        ), tuple(new[number] if number >= 0 else -1 for number in group_of)

    def find_large_reads(self, unit: list[int]) -> set[TensorId]:
        """Returns the large tensors that a unit reads from outside it."""
        roots = (
            self.root(t) for number in unit for member in self.groups[number].members for t in self.ops.inputs[member]
        )
        return {root for root in roots if root and not self.is_small(root) and self.group_of[root[0]] not in unit}

    def join_sums(self, readers: dict[TensorId, set[int]]) -> list[list[int]]:
        """Joins each group with the groups that end in a sum which only its own sum reads.

        Grappler rewrites a tree of sums as a whole. If control edges prevent that, the results are rounded differently.
        """
        units: list[list[int]] = [[number] for number in range(len(self.groups))]
        for number, group in enumerate(self.groups):
            first = group.members[0]
            if self.ops.ops[first].type not in _SUMS or not group.recomputable:
                continue
            for root in dict.fromkeys(map(self.root, self.ops.inputs[first])):
                if root is None or readers[root] != {number} or self.is_small(root):
                    continue
                source = self.groups[self.group_of[root[0]]]
                outputs = [(m, i) for m in source.members for i in range(len(self.ops.ops[m].outputs))]
                alone = all(readers.get(t, {number}) <= {number, self.group_of[root[0]]} for t in outputs)
                alike = source.recomputable and source.is_backward == group.is_backward
                if alone and alike and self.ops.ops[root[0]].type in _SUMS and self.may_run_later(root):
                    units[number] = units[self.group_of[root[0]]] + units[number]
                    units[self.group_of[root[0]]] = []
        return [unit for unit in units if unit]

    def may_run_later(self, root: TensorId) -> bool:
        """Returns whether a group's large inputs take no more memory than its output, so that it can run later."""
        inputs = self.find_large_reads([self.group_of[root[0]]])
        size = self.ops.sizes_bytes[root[0]][root[1]]
        return size is not None and sum(self.ops.sizes_bytes[op][i] or size + 1 for op, i in inputs) <= size

    def may_contract(
        self,
        first: list[int],
        second: list[int],
        readers: dict[TensorId, set[int]],
        reads: set[TensorId],
        large: set[TensorId],
    ) -> bool:
        """Returns whether joining two consecutive units costs no memory in any schedule.

        That is so if only the second reads the outputs of the first, and the second reads no other large value that the
        first does not read.
        """
        parts = [self.groups[number] for number in (*first, *second)]
        if len({part.is_backward for part in parts}) > 1 or not all(part.recomputable for part in parts):
            return False
        if len({member in self.updates for part in parts for member in part.members}) > 1:
            return False
        members = [member for number in first for member in self.groups[number].members]
        outputs = [(m, i) for m in members for i in range(len(self.ops.ops[m].outputs))]
        used = [readers.get(tensor, set()) - set(first) for tensor in outputs]
        if not any(used) or any(users - set(second) for users in used):
            return False
        produced = set(members)
        return all(root[0] in produced or root in reads for root in large)

    def find_reading_groups(self) -> dict[TensorId, set[int]]:
        """Returns the groups that read each group output, through aliases; -1 represents the step's caller."""
        readers: dict[TensorId, set[int]] = {}
        for index, tensors in enumerate(self.ops.inputs):
            if self.group_of[index] < 0:
                continue
            for tensor in tensors:
                root = self.root(tensor)
                if root is not None:
                    readers.setdefault(root, set()).add(self.group_of[index])
        for tensor in self.ops.outputs:
            root = self.root(tensor)
            if root is not None:
                readers.setdefault(root, set()).add(-1)
        return readers


def _choose_small_bytes(ops: OpList) -> int:
    sizes = [
        size
        for op, op_sizes in zip(ops.ops, ops.sizes_bytes, strict=True)
        if op.type not in ALIAS_TYPES and op.type not in SOURCE_TYPES
        for size in op_sizes
        if size is not None
    ]
    share = min(max(sizes, default=0) * _SMALL_SHARE_OF_LARGEST, sum(sizes) * _SMALL_SHARE_OF_TOTAL)
    return max(_SCALAR_BYTES, int(share))


def _find_fused_leaders(ops: OpList, consumers: dict[TensorId, list[int]]) -> dict[int, list[int]]:
    """Returns, for each op, the earlier ops that run right before it because TensorFlow may fuse them.

    Examples are a product before its only reader, a BiasAdd, and a Pad before a convolution. Operations between them,
    such as the cast of a bias, must not wait for the leader.
    """
    leaders: dict[int, list[int]] = {}
    for index, op in enumerate(ops.ops):
        if op.type in FUSED_BEHIND:
            source = ops.inputs[index][0]
            is_fused = ops.ops[source[0]].type in FUSED_BEHIND[op.type] and consumers[source] == [index]
            if is_fused and source not in ops.outputs:
                leaders[index] = [source[0]]
    return leaders


def _pair_filter_gradients(ops: OpList, consumers: dict[TensorId, list[int]]) -> dict[int, int]:
    """Returns, for each BiasAddGrad, the later filter gradient of the same gradient, which oneDNN computes with it.

    In 16 bits, the results depend on this, because BiasAddGrad alone adds up in 16 bits.
    """
    found: dict[int, int] = {}
    for index, op in enumerate(ops.ops):
        if op.type != "BiasAddGrad":
            continue
        for user in consumers[ops.inputs[index][0]]:
            if ops.ops[user].type not in _FILTER_GRADIENTS or user < index or user in found.values():
                continue
            late = {source for source, _ in ops.inputs[user] if source > index} | set(ops.controls[user])
            if all(ops.ops[s].type == "Const" or has_static_shape_value(ops.ops[s]) for s in late):
                found[index] = user
                break
    return found
