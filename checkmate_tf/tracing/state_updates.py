"""Joins the operations of each state update to one node, and lets it run as early as possible.

An optimizer changes a weight by a dozen small operations, and Keras begins only when all gradients are there, so all of
them would be held at once. Nothing in a step waits for an update. Therefore, all operations of one update are one node
here, which comes in the order as soon as its gradient is there and nothing reads the old weight any more. Metrics and
the moving averages of BatchNormalization are updates, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from scipy.cluster.hierarchy import DisjointSet

from checkmate_tf.tracing.ops import OpList, TensorId, is_in_gradient


def find_update_ops(ops: OpList) -> frozenset[int]:
    """Returns the operations whose results only change variables. Gradients are not among them.

    An operation that reads a variable after it is changed counts on its own: it does not read a result of the update.
    """
    readers: list[list[int]] = [[] for _ in ops.ops]
    for index, tensors in enumerate(ops.inputs):
        for source, _ in tensors:
            readers[source].append(index)
    returned = {op for op, _ in ops.outputs}
    found: set[int] = set()
    for index in reversed(range(len(ops.ops))):
        if index not in returned and not is_in_gradient(ops.ops[index]) and found.issuperset(readers[index]):
            found.add(index)
    return frozenset(found)


def join_update_units(
    ops: OpList,
    group_of: Sequence[int],
    is_update: Sequence[bool],
    root: Callable[[TensorId], TensorId | None],
    is_small: Callable[[TensorId], bool],
) -> list[list[int]]:
    """Joins groups of updates that belong together to units. Each unit lists its groups, ascending.

    A group belongs with another that it must follow, and with the readers of its result, unless that is small and
    several units read it, such as the norm of all gradients. Updates that read nothing large are one unit, which need
    not come early.
    """
    units = DisjointSet([number for number, update in enumerate(is_update) if update])
    readers: dict[TensorId, set[int]] = {}
    reads_large = [False] * len(is_update)
    for index, tensors in enumerate(ops.inputs):
        number = group_of[index]
        for tensor in map(root, tensors):
            if number >= 0 and tensor is not None and group_of[tensor[0]] != number:
                readers.setdefault(tensor, set()).add(number)
                reads_large[number] |= not is_small(tensor)
    within = {tensor: numbers for tensor, numbers in readers.items() if is_update[group_of[tensor[0]]]}
    for tensor, numbers in within.items():
        if not is_small(tensor):
            for number in numbers:
                units.merge(group_of[tensor[0]], number)
    for index, controls in enumerate(ops.controls):
        for source in controls:
            pair = group_of[index], group_of[source]
            if min(pair) >= 0 and all(is_update[number] for number in pair):
                units.merge(*pair)
    while _merge_what_one_unit_reads(units, within, group_of):
        pass
    small = [min(unit) for unit in units.subsets() if not any(reads_large[number] for number in unit)]
    for number in small[1:]:
        units.merge(small[0], number)
    return [sorted(unit) for unit in units.subsets()]


def _merge_what_one_unit_reads(
    units: DisjointSet, readers: Mapping[TensorId, Collection[int]], group_of: Sequence[int]
) -> bool:
    merged = [
        units.merge(group_of[tensor[0]], min(numbers))
        for tensor, numbers in readers.items()
        if len({units[number] for number in numbers}) == 1
    ]
    return any(merged)


def order_updates_early(
    ops: OpList, group_of: Sequence[int], units: Sequence[Sequence[int]], reads: Sequence[Collection[int]]
) -> list[list[int]]:
    """Orders all groups anew, with those of a unit joined: updates as early as possible, the others in their old order.

    Args:
        group_of: the group of each operation, -1 for none, [num_ops].
        reads: the groups that each group reads or follows, [num_groups].

    A unit is split again if another group must run within it.
    """
    joined = _drop_circular_units(units, reads)
    old_values = find_readers_of_old_values(ops, group_of)
    place: dict[int, float] = {}  # of each placed group
    placed: list[tuple[float, int, list[int]]] = []
    for number in range(len(reads)):
        members = list(joined.get(number, [number]))
        if number != members[-1]:
            continue
        at = float(number)
        if number in joined:
            before = [place[source] for member in members for source in reads[member] if source not in members]
            old = {reader for member in members for reader in old_values.get(member, ())}
            before += [place[reader] for reader in old.difference(members) if reader < number and reader in place]
            at = max(before, default=0.0)
        place.update(dict.fromkeys(members, at))
        placed.append((at, number, members))
    return [members for _, _, members in sorted(placed)]


def _drop_circular_units(units: Sequence[Sequence[int]], reads: Sequence[Collection[int]]) -> dict[int, Sequence[int]]:
    """Maps each group to its unit, without units that both precede and follow a group outside of them."""
    joined = {number: unit for unit in units for number in unit}
    while True:
        apart = {
            source
            for number, sources in enumerate(reads)
            for source in sources
            if source in joined
            and joined.get(number) is not joined[source]
            and joined.get(number, [number])[-1] <= joined[source][-1]
        }
        if not apart:
            return joined
        taken_apart = {number for source in apart for number in joined[source]}
        joined = {number: unit for number, unit in joined.items() if number not in taken_apart}


def find_readers_of_old_values(ops: OpList, group_of: Sequence[int]) -> dict[int, set[int]]:
    """Maps each group that changes variables to the groups that read their old values.

    While one of these groups still runs, the new value would be written to new memory.

    Args:
        group_of: the group of each operation, -1 for none, [num_ops].
    """
    readers: dict[int, set[int]] = {}  # operation in no group -> groups that read it
    for index in reversed(range(len(ops.ops))):
        for source, _ in ops.inputs[index]:
            if group_of[source] < 0:
                found = {group_of[index]} if group_of[index] >= 0 else readers.get(index, set())
                readers.setdefault(source, set()).update(found)
    found_by: dict[int, set[int]] = {}
    for index, controls in enumerate(ops.controls):
        for source in controls:
            if group_of[index] >= 0 and ops.ops[source].type == "ReadVariableOp":
                found_by.setdefault(group_of[index], set()).update(readers.get(source, set()))
    return found_by
