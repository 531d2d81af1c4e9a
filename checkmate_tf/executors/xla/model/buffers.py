"""Finds the bytes that XLA stores for the values of a training graph, and the bytes of each node while it runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import tensorflow as tf

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.model.caller import count_caller_bytes, count_passing_bytes, is_read_at_end
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.rules.rule import Rule
from checkmate_tf.tracing.loops import WHILE_TYPES, count_stacked_bytes


class BufferRule(Rule):
    """Makes XLA write results to buffers that it would otherwise compute within their readers.

    Attributes:
        stops_fusion: whether readers that compute such a node within themselves in the stock step read the buffer.
    """

    stops_fusion: ClassVar[bool] = True

    def find(self, facts: Facts) -> frozenset[int]:
        """Returns the nodes whose results are written to buffers."""
        return frozenset()

    def shares(self, op: tf.Operation) -> bool:
        """Returns whether the results of several such operations on one tensor are written at once."""
        return False


class MemoryRule(Rule):
    """Counts memory of XLA that the sizes of nodes do not show."""

    def find_transposed(self, facts: Facts) -> frozenset[tuple[int, int]]:
        """Returns pairs of a node and a value that it reads, which XLA transposes for it alone."""
        return frozenset()

    def find_forms(self, buffers: "Buffers", value: int) -> frozenset[int] | None:
        """Returns the kernels that write the forms of a value; None if the rule does not apply."""
        return None

    def count_constants_bytes(self, facts: Facts) -> int:
        """Returns the bytes of constants that are held throughout the step."""
        return 0


@dataclass(frozen=True)
class Buffers:
    """The results that XLA writes to buffers.

    Args:
        transposed: pairs of a node and a value that it reads, which XLA transposes for it alone.
        materialized: nodes whose results no reader computes within itself.
        awaited: nodes whose results are in buffers unless all readers compute them within themselves.
    """

    facts: Facts
    backend: Backend
    transposed: frozenset[tuple[int, int]]
    materialized: frozenset[int]
    awaited: frozenset[int]

    @cached_property
    def transposed_values(self) -> frozenset[int]:
        return frozenset(value for _, value in self.transposed)

    def count_stored_bytes(self, value: int) -> int:
        """Returns the bytes that XLA stores for a value.

        XLA may store a value in parts, which its readers combine. It stores the complement of the error function in
        GELU in two parts of the size of the whole (seen in TensorFlow 2.21). A result of the step counts only if the
        caller reads it at the end; otherwise, it is in the caller's buffers, or is read at once. A TensorList counts
        with its elements stacked, even if they are held anyway, such as a loop's weights.
        """
        graph, index = self.facts.graph, self.facts.index
        size_bytes, producer = int(graph.sizes_bytes[value]), graph.producer[value]
        if value in graph.outputs:
            return size_bytes if is_read_at_end(self.facts, value) else 0
        tensors = self.facts.training_graph.get_value_tensors(value)
        stacked_bytes = sum(count_stacked_bytes(tensor) or 0 for tensor in tensors)
        if stacked_bytes:
            return max(size_bytes, stacked_bytes)
        if producer in self.materialized:
            return size_bytes
        forms = [rule.find_forms(self, value) for rule in self.backend.list_rules(MemoryRule)]
        together = [each for each in forms if each is not None]
        if not together:
            together = [index.written[value].intersection(reader.reads) for reader in index.stock]
        parts_bytes = (sum(index.stock[k].size_bytes for k in parts) for parts in together if len(parts) > 1)
        return max(size_bytes, *parts_bytes, 0)

    def count_early_bytes(self, node: int) -> int:
        """Returns the bytes that a backward node with large constants holds from the forward pass on; otherwise 0.

        A loop holds none, because XLA writes its initial constants when it starts.
        """
        facts, index, lowered = self.facts, self.facts.index, self.facts.lowered
        if node in lowered.otherwise or node in lowered.late or self._is_loop(node):
            return 0
        early = index.kernels[node] & index.forward
        if not facts.graph.nodes[node].is_backward or not any(
            index.stock[k].is_constant and index.stock[k].size_bytes > facts.small_bytes for k in early
        ):
            return 0
        read_late = {read for k in index.kernels[node] - early for read in index.stock[k].reads}
        return sum(index.stock[k].size_bytes for k in early & read_late)

    def _is_loop(self, node: int) -> bool:
        training_graph = self.facts.training_graph
        members = training_graph.grouping.groups[node].members
        return any(training_graph.ops.ops[member].type in WHILE_TYPES for member in members)

    def find_taken_over(self, node: int, reads: Iterable[int]) -> bool | None:
        """Returns whether a node's result is written over one of its inputs; None if the stock step cannot show it.

        It cannot if other kernels read the operands later, or if the result is written over a value of the node itself.
        """
        index = self.facts.index
        if node in self.facts.lowered.written_over:
            return True
        read = {k for value in reads for k in index.written[value]}
        yielded = {k for value in self.facts.graph.nodes[node].outputs for k in index.written[value]}
        is_last = []
        for kernel in (index.stock[k] for k in yielded):
            shared = {k for k in kernel.reads if index.stock[k].buffer == kernel.buffer}
            if shared & read:
                return True
            operands = read.intersection(kernel.reads)
            equal = [k for k in operands if index.stock[k].size_bytes == kernel.size_bytes]
            is_last += [not shared and len(index.readers[k]) == 1 for k in equal]
        return False if any(is_last) else None

    def count_workspace_bytes(self, node: int, fused: frozenset[int], *, is_early: bool, is_taken_over: bool) -> int:
        """Returns the most bytes that a node's kernels hold at a time, without the node's inputs and results."""
        facts = self.facts
        described = facts.graph.nodes[node]
        beside_bytes = sum(count_passing_bytes(facts, value) for value in described.inputs)
        if is_product(described.op_type):  # A product makes its own transposed copy of such an input.
            transposed = self.transposed_values.intersection(described.inputs)
            kept = [value for value in transposed if facts.graph.producer[value] in self.materialized]
            beside_bytes += self._sum_bytes(kept)
        if node in facts.lowered.otherwise:
            own_bytes = self._count_lowered_bytes(node, fused, beside_bytes)
        else:
            own_bytes = self._count_kernel_bytes(node, is_early=is_early, is_taken_over=is_taken_over) + beside_bytes
        return own_bytes + sum(count_caller_bytes(facts, value) for value in described.outputs)

    def _count_lowered_bytes(self, node: int, fused: frozenset[int], beside_bytes: int) -> int:
        """Returns the workspace of a node that is lowered in another form than in the stock step.

        It contains the inputs that come from fused nodes, if the node is a product, because a product computes no other
        node within itself.
        """
        graph, lowered = self.facts.graph, self.facts.lowered
        described = graph.nodes[node]
        products = lowered.products.get(node) or ((node,) if is_product(described.op_type) else ())
        operands = {value for product in products for value in graph.nodes[product].inputs}
        read_bytes = self._sum_bytes(value for value in operands if graph.producer[value] in fused)
        if node in lowered.written_over:
            beside_bytes = max(beside_bytes - self._sum_bytes(described.outputs), 0)
        passing_bytes = sum(count_passing_bytes(self.facts, value) for value in described.outputs)
        return read_bytes + beside_bytes + passing_bytes

    def _count_kernel_bytes(self, node: int, *, is_early: bool, is_taken_over: bool) -> int:
        """Returns the most bytes that the kernels of a node hold, less the stored bytes of its results."""
        index, outputs = self.facts.index, self.facts.graph.nodes[node].outputs
        mine = self._list_kernels(node, is_early=is_early)
        own = self._list_result_kernels(node, mine)
        kept = {number for number in own if not index.readers[number] <= mine}
        if is_taken_over:
            mine, own = mine - kept, frozenset()
        held: dict[int, int] = {}
        most = 0
        last_read = {read: k for k in sorted(mine | kept) for read in index.stock[k].reads}
        for number in sorted(mine):
            held[number] = index.stock[number].size_bytes
            most = max(most, sum(held.values()) + index.stock[number].scratch_bytes)
            held = {k: size for k, size in held.items() if k in kept or last_read.get(k, -1) > number}
        own_bytes = sum(index.stock[number].size_bytes for number in own)
        return max(most - min(own_bytes, sum(map(self.count_stored_bytes, outputs))), 0)

    def _list_kernels(self, node: int, *, is_early: bool) -> frozenset[int]:
        """Returns the kernels of a node, or of its early part, that the rewritten node still has.

        A loop writes its results over the constants that it begins with.
        """
        index = self.facts.index
        mine = index.kernels[node] - self.facts.for_sums
        if node in self.facts.lowered.late or self._is_loop(node):
            return frozenset(number for number in mine if not index.stock[number].is_constant)
        if is_early:
            return mine & index.forward
        return mine - index.forward if self.count_early_bytes(node) else mine

    def _list_result_kernels(self, node: int, mine: frozenset[int]) -> frozenset[int]:
        """Returns those of a node's kernels that write its results."""
        index, outputs = self.facts.index, self.facts.graph.nodes[node].outputs
        yielded = {t.op.name for value in outputs for t in self.facts.training_graph.get_value_tensors(value)}
        own = {number for number in mine if index.stock[number].names & yielded}
        own |= {number for value in outputs for number in index.written[value] & mine}
        if node in self.materialized and len(own) > len(outputs):
            return frozenset()  # Its parts are combined in a buffer.
        return frozenset(own)

    def _sum_bytes(self, values: Iterable[int]) -> int:
        return sum(int(self.facts.graph.sizes_bytes[value]) for value in values)


def place_buffers(facts: Facts, backend: Backend) -> Buffers:
    """Returns the results in buffers under all rules of a backend."""
    transposed = frozenset[tuple[int, int]]().union(
        *(rule.find_transposed(facts) for rule in backend.list_rules(MemoryRule))
    )
    values = {value for _, value in transposed}
    materialized = {node for node in facts.large if not values.isdisjoint(facts.graph.nodes[node].outputs)}
    awaited: set[int] = set()
    for rule in backend.list_rules(BufferRule):
        (materialized if rule.stops_fusion else awaited).update(rule.find(facts))
    return Buffers(facts, backend, transposed, frozenset(materialized), frozenset(awaited))
