"""Builds the rows of the block relaxation that every choice of blocks has: rows 1 to 5 of `model.py`."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from checkmate_tf.graph import Graph, inplace_inputs
from checkmate_tf.solvers.cost_units import cost_unit
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, Derived, LinearRows, Reach, Term
from checkmate_tf.solvers.stages import Event


class BlockBuilder:
    """Collects columns and rows. The functions of `rows.py` add the optional rows."""

    def __init__(self, graph: Graph, budget_bytes: int, blocks: Blocks, reach: Reach) -> None:
        self.graph = graph
        self.blocks = blocks
        self.reach = reach
        self.num_blocks = len(blocks.starts)
        self.ends = (*blocks.starts[1:], len(graph.nodes))
        self.room_bytes = budget_bytes - graph.resident_bytes
        self.outputs = frozenset(graph.outputs)
        self.block_of = np.repeat(np.arange(self.num_blocks), np.diff((*blocks.starts, len(graph.nodes)))).tolist()
        self.recompute: dict[tuple[int, int], int] = {}
        self.retain: dict[tuple[int, int], int] = {}
        self.derived: dict[int, Derived] = {}
        self.memory_row: dict[int, int] = {}
        self.event_row: dict[Event, int] = {}
        self.num_columns = 0
        self._columns: list[int] = []
        self._coefficients: list[int] = []
        self._starts = [0]
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._scale: list[float] = []
        self._infeasible = False

    def build_base(self) -> None:
        """Adds the columns R and S, and rows 1 to 5."""
        self._add_columns()
        self._add_reuse_rows()
        for block in range(self.num_blocks):
            self._add_use_rows(block)
            self._add_boundary_row(block)

    def model(self) -> BlockModel:
        unit = cost_unit(self.graph, len(self.recompute))
        costs = np.zeros(self.num_columns, dtype=np.int64)
        for (_, node), column in self.recompute.items():
            costs[column] = self.graph.nodes[node].cost // unit
        rows = LinearRows(
            np.array(self._starts, dtype=np.int32),
            np.array(self._columns, dtype=np.int32),
            np.array(self._coefficients, dtype=np.int64),
            np.array(self._lower),
            np.array(self._upper),
            np.array(self._scale),
        )
        return BlockModel(
            self.blocks, len(self.graph.nodes), self.recompute, self.retain, self.derived, self.memory_row,
            self.event_row, costs, unit, rows, self._infeasible,
        )  # fmt: skip

    def size(self, value: int) -> int:
        return self.graph.values[value].size_bytes

    def new_column(self, derived: Derived | None = None) -> int:
        self.num_columns += 1
        if derived is not None:
            self.derived[self.num_columns - 1] = derived
        return self.num_columns - 1

    def add_row(
        self, terms: Iterable[Term], *, at_least: float = -np.inf, at_most: float = np.inf, scale: float = 1.0
    ) -> None:
        before = len(self._columns)
        for column, coefficient in terms:
            if column is not None and coefficient:
                self._columns.append(column)
                self._coefficients.append(coefficient)
        if len(self._columns) == before:
            self._infeasible = self._infeasible or at_least > 0 or at_most < 0
            return
        self._starts.append(len(self._columns))
        self._lower.append(at_least)
        self._upper.append(at_most)
        self._scale.append(scale)

    def add_memory_row(self, terms: Iterable[Term], fixed_bytes: int, stage: int, event: int | None = None) -> None:
        """Limits the bytes of `terms` and `fixed_bytes` to the budget less the resident bytes.

        They are the memory of the computation of a stage's own node, or of the node `event` in the stage.
        """
        total: dict[int, int] = {}
        for column, size in terms:
            if column is not None and size:
                total[column] = total.get(column, 0) + size
        at_most = self.room_bytes - fixed_bytes
        if sum(size for size in total.values() if size > 0) > at_most:
            if total and event is None:
                self.memory_row[stage] = len(self._lower)
            elif total and event is not None:
                self.event_row[stage, event] = len(self._lower)
            self.add_row(total.items(), at_most=at_most, scale=float(max(self.room_bytes, 1)))

    def retained_into(self, block: int) -> list[tuple[int, int]]:
        """Returns (value, column) of every S at the entry of a block."""
        return self._retained_by_block[block]

    def takeover_bytes(self, reusable: Sequence[int], after: Sequence[int | None], terms: list[Term]) -> int:
        """Returns the bytes saved at an in-place node.

        If they depend on values being held `after` it, it adds to `terms` what has to be taken back.
        """
        if not reusable:
            return 0
        size = self.size(reusable[0])
        if any(column is None for column in after):
            return size
        if len(after) == 1:
            terms.append((after[0], size))
            return size
        dropped = self.new_column()
        self.add_row([(dropped, 1), *((column, 1) for column in after)], at_most=len(after))
        terms.append((dropped, -size))
        return 0

    def is_kept(self, block: int, value: int) -> bool:
        """Returns whether the step's end reads the value and the block is the last."""
        return block == self.num_blocks - 1 and value in self.outputs

    def _add_columns(self) -> None:
        for index, node in enumerate(self.graph.nodes):
            own = self.block_of[index]
            if node.recomputable and self.reach.of_node[index] >= 0:
                for block in range(own + 1, self.block_of[self.reach.of_node[index]] + 1):
                    self.recompute[block, index] = self.new_column()
            for value in node.outputs:
                if self.reach.of_value[value] >= 0:
                    for block in range(own + 1, self.block_of[self.reach.of_value[value]] + 1):
                        self.retain[block, value] = self.new_column()

    def _add_reuse_rows(self) -> None:
        """Adds rows 1, 3 and 5."""
        for (block, value), column in self.retain.items():
            node = self.graph.producer[value]
            if self.block_of[node] + 2 <= block:
                before, again = self.retain.get((block - 1, value)), self.recompute.get((block - 1, node))
                self.add_row(((column, 1), (before, -1), (again, -1)), at_most=0)
            if self.ends[block] - self.blocks.starts[block] == 1 and (block, node) in self.recompute:
                self.add_row(((column, 1), (self.recompute[block, node], 1)), at_most=1)
        for (block, node), column in self.recompute.items():
            for value in self.graph.nodes[node].inputs:
                again = self.recompute.get((block, self.graph.producer[value]))
                self.add_row(((column, 1), (again, -1), (self.retain.get((block, value)), -1)), at_most=0)

    def used_in(self, first_stage: int, end_stage: int) -> list[int]:
        """Returns the values that these stages read, including the step's end if they reach it."""
        used = {value for stage in range(first_stage, end_stage) for value in self.graph.nodes[stage].inputs}
        if end_stage == len(self.graph.nodes):
            used |= self.outputs
        return sorted(used)

    def _add_use_rows(self, block: int) -> None:
        """Adds rows 2."""
        for value in self.used_in(self.blocks.starts[block], self.ends[block]):
            node = self.graph.producer[value]
            if self.block_of[node] < block:
                again = self.recompute.get((block, node))
                self.add_row(((again, 1), (self.retain.get((block, value)), 1)), at_least=1)

    def _add_boundary_row(self, block: int) -> None:
        """Adds row 4: the memory of computing the block's last stage."""
        node = self.graph.nodes[self.ends[block] - 1]
        reusable = [value for value in inplace_inputs(self.graph, node) if not self.is_kept(block, value)]
        touched = {*node.inputs, *node.outputs}
        fixed = node.workspace_bytes + sum(map(self.size, touched))
        terms: list[Term] = []
        if block == self.num_blocks - 1:
            fixed += sum(map(self.size, self.outputs - touched))
        else:
            terms = [(column, self.size(value)) for value, column in self.retained_into(block + 1)
                     if value not in touched]  # fmt: skip
        fixed -= self.takeover_bytes(reusable, [self.retain.get((block + 1, value)) for value in reusable], terms)
        self.add_memory_row(terms, fixed, self.ends[block] - 1)

    @cached_property
    def _retained_by_block(self) -> list[list[tuple[int, int]]]:
        by_block: list[list[tuple[int, int]]] = [[] for _ in range(self.num_blocks)]
        for (block, value), column in self.retain.items():
            by_block[block].append((value, column))
        return by_block
