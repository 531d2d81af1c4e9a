"""Finds the memory of a group while it runs: temporaries, and whether its output takes over an input's buffer."""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.tf_private import get_loop_body
from checkmate_tf.tracing.grouping import Grouping, group_ops
from checkmate_tf.tracing.loops import WHILE_TYPES, is_passed_on
from checkmate_tf.tracing.ops import OpList, TensorId, list_ops
from checkmate_tf.tracing.semantics import find_inplace_inputs, find_inplace_output


@dataclass(frozen=True)
class _Peak:
    """The most bytes that a group allocates, the kept output that may be in an input's buffer, and that input."""

    num_bytes: int
    takes_over: TensorId | None
    taken: TensorId | None


@dataclass(frozen=True)
class GroupMemory:
    """The memory of a group besides its inputs and its kept outputs.

    Args:
        workspace_bytes: temporaries at the group's own peak, beyond its kept outputs. An output in an input's buffer
            does not count, because it makes no room for temporaries that come before it.
        takes_over: the kept output that may be written to the buffer of an equally large input, or None.
    """

    workspace_bytes: int
    takes_over: TensorId | None


def find_group_memory(
    ops: OpList,
    grouping: Grouping,
    members: tuple[int, ...],
    kept: frozenset[TensorId],
    dying: frozenset[TensorId] = frozenset(),
) -> GroupMemory:
    """Runs the members of a group in order and counts requested bytes, with TensorFlow's buffer forwarding.

    Args:
        kept: the outputs that something outside the group reads. Inputs from outside belong to the caller.
        dying: inputs from outside over which temporaries may be written.
    """
    apart = _find_peak(ops, grouping, members, kept, dying)
    kept_bytes = sum(ops.sizes_bytes[op][position] or 0 for op, position in kept)
    workspace_bytes = apart.num_bytes - kept_bytes
    if apart.taken is not None:
        op, position = apart.taken
        within = _find_peak(ops, grouping, members, kept, dying, taken=apart.taken)
        workspace_bytes = max(workspace_bytes, within.num_bytes - kept_bytes + (ops.sizes_bytes[op][position] or 0))
    return GroupMemory(max(0, workspace_bytes), apart.takes_over)


def _find_peak(
    ops: OpList,
    grouping: Grouping,
    members: tuple[int, ...],
    kept: frozenset[TensorId],
    dying: frozenset[TensorId],
    taken: TensorId | None = None,
) -> _Peak:
    """Returns the peak of one run for `find_group_memory`. Outputs may be in the buffer of `taken`."""
    inside = set(members)
    last_use: dict[TensorId, int] = {}
    for member in members:
        for tensor in ops.inputs[member]:
            root = grouping.root(tensor)
            if root is not None:
                last_use[root] = member
    held: dict[TensorId, int] = {}  # storages that the group has allocated and not freed
    storage: dict[TensorId, TensorId] = {}  # output -> the storage it is written to
    from_outside: dict[TensorId, TensorId] = {}  # output in an outside input's buffer -> that input
    peak = 0
    takes_over = None
    for member in members:
        roots = [grouping.root(tensor) for tensor in ops.inputs[member]]
        is_loop = ops.ops[member].type in WHILE_TYPES
        candidates = [roots[i] for i in find_inplace_inputs(ops.ops[member].type, len(roots))]
        reusable = sorted((root for root in candidates if root is not None), key=lambda root: root not in dying)
        for position, size in enumerate(ops.sizes_bytes[member]):
            output = (member, position)
            # A read of a variable uses the variable's storage, which is resident.
            size = 0 if ops.ops[member].type == "ReadVariableOp" else size or 0
            is_list = ops.ops[member].outputs[position].dtype == tf.variant
            is_inplace = not is_list and position == find_inplace_output(ops.ops[member].type)
            if is_loop and not is_list:
                # A loop passes its arguments on, and its iterations overwrite them.
                if output not in kept and output not in last_use and is_passed_on(ops.ops[member].outputs[position]):
                    size = 0
                is_inplace, reusable = True, [root for root in roots[position : position + 1] if root is not None]
            source = _find_forwarded(reusable, ops, last_use, member, size, kept) if is_inplace else None
            if source is None:
                storage[output] = output
                held[output] = size
            elif source[0] in inside:
                storage[output] = storage[source]
                if source in from_outside:
                    from_outside[output] = from_outside[source]
            else:
                storage[output] = output
                held[output] = 0 if source == taken or (source in dying and output not in kept) else size
                from_outside[output] = source
            if output in kept and output in from_outside and (takes_over is None or is_loop):
                takes_over = max(takes_over or output, output, key=lambda one: ops.sizes_bytes[one[0]][one[1]] or 0)
        peak = max(peak, sum(held.values()) + _count_iteration_bytes(ops.ops[member]))
        needed = {storage[t] for t in storage if t in kept or last_use.get(t, -1) > member}
        held = {tensor: size for tensor, size in held.items() if tensor in needed}
    return _Peak(peak, takes_over, None if takes_over is None else from_outside[takes_over])


def _count_iteration_bytes(op: tf.Operation) -> int:
    """Returns the peak of one iteration of a loop, less its arguments; 0 for an op that is not a loop."""
    if op.type not in WHILE_TYPES:
        return 0
    body = get_loop_body(op)
    ops = list_ops(body)
    grouping = group_ops(ops, body)
    members = tuple(index for index, group in enumerate(grouping.group_of) if group >= 0)
    kept = frozenset(root for root in map(grouping.root, ops.outputs) if root is not None)
    kept_bytes = sum(ops.sizes_bytes[index][position] or 0 for index, position in kept)
    return kept_bytes + find_group_memory(ops, grouping, members, kept).workspace_bytes


def _find_forwarded(
    reusable: list[TensorId],
    ops: OpList,
    last_use: dict[TensorId, int],
    member: int,
    size: int,
    kept: frozenset[TensorId],
) -> TensorId | None:
    for root in reusable:
        if last_use[root] == member and root not in kept and ops.sizes_bytes[root[0]][root[1]] == size:
            return root
    return None
