"""Adds the optional rows of the block relaxation: those of memory, and path cuts."""

from collections.abc import Sequence

import numpy as np

from checkmate_tf.graph import Graph, inplace_inputs
from checkmate_tf.solvers.relaxation.builder import BlockBuilder
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, Derived, Reach, Term, path_cut_row


def build_block_model(graph: Graph, budget_bytes: int, blocks: Blocks, reach: Reach) -> BlockModel:
    """Builds the relaxation of `blocks`. Memory is in bytes."""
    builder = BlockBuilder(graph, budget_bytes, blocks, reach)
    builder.build_base()
    events = _EventMemoryRows(builder)
    for stage, node in sorted(blocks.rows):
        events.add(stage, node)
    inner = _InnerMemoryRows(builder)
    for stage in sorted(blocks.inner):
        inner.add(stage)
    for cut in sorted(blocks.cuts):
        terms, at_least = path_cut_row(blocks, builder.recompute, builder.retain, graph, cut)
        builder.add_row(terms, at_least=at_least)
    return builder.model()


class _EventMemoryRows:
    """Event memory rows: the memory of computing a node again in a stage that is a block of its own.

    H, "value o is needed at or after event k of stage t", is 1 if node t reads o. Otherwise, let a be the first user of
    o with k <= a < t: H is 1 if a is recomputed or o is needed at or after a + 1. Without such a user, H is S in the
    next stage. One H serves all k with the same next user.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._producers = builder.graph.arrays.producer
        self._needed_of: dict[tuple[int, int, int], int] = {}

    def add(self, stage: int, event: int) -> None:
        builder, graph = self._builder, self._builder.graph
        block = builder.block_of[stage]
        node = graph.nodes[event]
        again = builder.recompute.get((block, event))
        if again is None:
            return
        reusable = inplace_inputs(graph, node)
        terms: list[Term] = [(again, node.workspace_bytes)]
        fixed = 0
        for value in node.outputs:
            terms += [(again, builder.size(value)), (builder.retain.get((block, value)), builder.size(value))]
        for value, column in builder.retained_into(block):
            if graph.producer[value] > event:
                terms.append((column, builder.size(value)))
        single = reusable[0] if len(reusable) == 1 else None
        for value in self._older(event, stage):
            needed, always = self._needed(block, stage, value, event + 1 if value == single else event)
            if always:
                fixed += builder.size(value)
            else:
                terms.append((needed, builder.size(value)))
        if len(reusable) > 1:
            self._shared_takeover(block, stage, event, reusable, terms)
        builder.add_memory_row(terms, fixed, stage, event)

    def _shared_takeover(self, block: int, stage: int, event: int, reusable: Sequence[int], terms: list[Term]) -> None:
        builder = self._builder
        after = [self._needed(block, stage, value, event + 1) for value in reusable]
        dropped = builder.new_column()
        held = [column for column, always in after if column is not None and not always]
        num_always = sum(always for _, always in after)
        builder.add_row([(dropped, 1), *((column, 1) for column in held)], at_most=len(reusable) - num_always)
        terms.append((dropped, -builder.size(reusable[0])))

    def _older(self, event: int, stage: int) -> list[int]:
        """Yields values of nodes before `event` that may be needed in or after `stage`."""
        wanted = (self._builder.reach.of_value >= stage) & (self._builder.graph.sizes_bytes > 0)
        return np.flatnonzero((self._producers < event) & wanted).tolist()

    def _needed(self, block: int, stage: int, value: int, event: int) -> tuple[int | None, bool]:
        """Returns H, whether `value` is needed at or after `event` in `stage`: a column, or the constant True."""
        builder = self._builder
        users = builder.graph.users[value]
        if stage in users or builder.is_kept(block, value):
            return None, True
        column = builder.retain.get((block + 1, value))
        for user in reversed(users):
            if user < event:
                break
            again = builder.recompute.get((block, user)) if user < stage else None
            if again is not None:
                column = self._needed_column(block, value, user, again, column)
        return column, False

    def _needed_column(self, block: int, value: int, user: int, again: int, after: int | None) -> int:
        key = (block, value, user)
        if after is None:
            return again
        if key not in self._needed_of:
            column = self._builder.new_column(Derived((again, after)))
            self._needed_of[key] = column
            self._builder.add_row(((column, 1), (again, -1)), at_least=0)
            self._builder.add_row(((column, 1), (after, -1)), at_least=0)
        return self._needed_of[key]


class _InnerMemoryRows:
    """Inner memory rows: the memory of computing node t in a longer block.

    A value that is not recomputed in the block is in memory from before t (it is computed earlier or held at the entry)
    to its last use. It therefore counts if a stage of the block after t reads it, or if it is held into the next block.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._carried: dict[tuple[int, int], int] = {}

    def add(self, stage: int) -> None:
        builder, graph = self._builder, self._builder.graph
        block = builder.block_of[stage]
        end = builder.ends[block]
        if stage == end - 1:
            return
        node = graph.nodes[stage]
        touched = {*node.inputs, *node.outputs}
        fixed = node.workspace_bytes + sum(map(builder.size, touched))
        reusable = inplace_inputs(graph, node)
        if reusable:
            fixed -= builder.size(reusable[0])
        terms: list[Term] = []
        read_later = set(builder.used_in(stage + 1, end))
        for value in sorted(read_later - touched):
            if graph.producer[value] < stage:
                fixed += builder.size(value)
                terms.append((self._again(block, graph.producer[value]), -builder.size(value)))
        for value, held in builder.retained_into(block + 1) if block + 1 < builder.num_blocks else ():
            if graph.producer[value] < stage and builder.size(value) and value not in touched | read_later:
                terms.append((self._carried_over(block, value, held), builder.size(value)))
        builder.add_memory_row(terms, fixed, stage)

    def _again(self, block: int, node: int) -> int | None:
        """Returns the column of R, in the node's own block, too."""
        builder = self._builder
        if not builder.graph.nodes[node].recomputable:
            return None
        if (block, node) not in builder.recompute and builder.block_of[node] == block:
            builder.recompute[block, node] = builder.new_column()
        return builder.recompute.get((block, node))

    def _carried_over(self, block: int, value: int, held: int) -> int:
        """Returns a column that is 1 if a value is held into the next block and not recomputed in this one."""
        again = self._again(block, self._builder.graph.producer[value])
        if again is None:
            return held
        if (block, value) not in self._carried:
            column = self._builder.new_column(Derived((held,), but_not=again))
            self._builder.add_row(((column, 1), (held, -1), (again, 1)), at_least=0)
            self._carried[block, value] = column
        return self._carried[block, value]
