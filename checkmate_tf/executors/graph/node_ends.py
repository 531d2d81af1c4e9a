"""Finds the ends of each node: the large operations that must wait, and those for which others wait."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from checkmate_tf.tracing.extraction import TrainingGraph


@dataclass(frozen=True, slots=True)
class Ends:
    """The operations of a node that wait for others, and those for which others wait.

    Args:
        heads: large operations after no other large one of the node.
        tails: large operations before no other large one of the node. If an operation may be fused with later ones, the
            last of them is the tail.
    """

    heads: frozenset[int]
    tails: tuple[int, ...]


def find_ends(training_graph: TrainingGraph) -> tuple[Ends, ...]:
    """Returns the ends of every node of a training graph, [num_nodes]."""
    finder = _EndFinder(training_graph)
    return tuple(finder.find_group_ends(group.members) for group in training_graph.grouping.groups)


class _EndFinder:
    def __init__(self, training_graph: TrainingGraph):
        self.ops = training_graph.ops
        self.grouping = training_graph.grouping
        self.readers = defaultdict(list, self.ops.map_consumers())

    def find_group_ends(self, members: tuple[int, ...]) -> Ends:
        """Returns the ends of a group of operations."""
        large = [member for member in members if self._is_large(member)]
        inside = set(members)
        reach: dict[int, set[int]] = {}  # member -> large members that come before it
        followed: set[int] = set()
        heads = []
        for member in members:
            before: set[int] = set()
            for source in self._list_sources(member):
                if source in inside:
                    before |= {source} if source in large else reach[source]
            reach[member] = before
            if member in large:
                followed |= before
                if not before:
                    heads.append(member)
        tails = [self._find_last_alone(member, inside) for member in large if member not in followed]
        return Ends(frozenset(heads), tuple(dict.fromkeys(tails)))

    def _find_last_alone(self, member: int, inside: set[int]) -> int:
        """Returns the last op of a line in which each op is the only reader of the one before. It may be fused."""
        while True:
            readers = [reader for i in range(len(self.ops.sizes_bytes[member])) for reader in self.readers[member, i]]
            if len(readers) != 1 or readers[0] not in inside:
                return member
            member = readers[0]

    def _list_sources(self, member: int) -> Iterator[int]:
        for tensor in self.ops.inputs[member]:
            root = self.grouping.root(tensor)
            if root is not None:
                yield root[0]

    def _is_large(self, member: int) -> bool:
        touched = [(member, i) for i in range(len(self.ops.sizes_bytes[member]))]
        touched += [self.grouping.root(tensor) or tensor for tensor in self.ops.inputs[member]]
        sizes = [self.ops.sizes_bytes[op][position] for op, position in touched]
        return any(size is None or size > self.grouping.small_bytes for size in sizes)
