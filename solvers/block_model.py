"""The block relaxation: stages cut into blocks, memory rows only where they were asked for.

Checkmate's stage t recomputes some nodes i < t, each at most once and in the input order, then computes node t. The
stages are cut into consecutive blocks; b(i) is the block of stage i. For blocks b > b(i): R[b, i] is 1 when node i is
recomputed at least once in block b, S[b, o] when value o of node i is held at the entry of block b. An undefined
variable is 0. The least sum of cost[i] R[b, i] is subject to

1. S[b, o] <= S[b-1, o] + R[b-1, i] for b >= b(i) + 2;
2. R[b, i] + S[b, o] >= 1 where a stage of block b reads o, or the step's end wants it;
3. R[b, j] <= R[b, i] + S[b, o] for every value o that node j reads;
4. the memory of the last computation of each block, with the values held into the next;
5. R[b, i] + S[b, o] <= 1 in blocks of one stage;
6. in blocks of one stage t, for the events k < t asked for, the memory of computing k in stage t.

Every schedule in stage space maps to a point that costs no more, so the optimum is a lower bound for any boundaries and
any subset of rows 6; with all of them it is Checkmate's MILP (section 4.7) with values held apart. Rows 1 to 4 hold
for any schedule whose first computations are in the input order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from checkmate_tf.graph import Graph, Node

Event = tuple[int, int]
"""(stage, node recomputed there)."""


@dataclass(frozen=True)
class Blocks:
    """Where the stages are cut: `starts` holds the first stage of each block, the first is 0; `rows` the events
    (stage, node) of blocks of one stage whose memory is limited."""

    starts: tuple[int, ...]
    rows: frozenset[Event] = frozenset()

    def of_stage(self, stage: int) -> int:
        return int(np.searchsorted(self.starts, stage, side="right")) - 1

    def is_single(self, stage: int, num_stages: int) -> bool:
        """Stage `stage` is a block of its own."""
        block = self.of_stage(stage)
        end = self.starts[block + 1] if block + 1 < len(self.starts) else num_stages
        return end - self.starts[block] == 1


@dataclass(frozen=True)
class LinearRows:
    """Rows lower <= A x <= upper in compressed row form."""

    start: np.ndarray
    column: np.ndarray
    coefficient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclass(frozen=True)
class BlockModel:
    """The mixed-integer program. Columns: R and S (integer), H and D (continuous), all from 0 to 1.

    Args:
        recompute: column of R[block, node].
        retain: column of S[block, value].
        needed: column of H -> (column of R of the next user there, column of the H or S after it), in that order.
        costs: of each column, in units of `cost_unit`.
        infeasible: a row without variables is violated.
    """

    blocks: Blocks
    num_stages: int
    recompute: dict[tuple[int, int], int]
    retain: dict[tuple[int, int], int]
    needed: dict[int, tuple[int, int]]
    costs: np.ndarray
    cost_unit: float
    rows: LinearRows
    infeasible: bool

    @property
    def num_columns(self) -> int:
        return len(self.costs)

    @cached_property
    def integers(self) -> np.ndarray:
        """Columns of R and S, int64."""
        return np.array([*self.recompute.values(), *self.retain.values()], dtype=np.int64)


@dataclass(frozen=True)
class Reach:
    """The last stage that can want each value and each node, int64; -1 where nothing does."""

    of_value: np.ndarray
    of_node: np.ndarray

    @staticmethod
    def of(graph: Graph) -> "Reach":
        of_value = np.full(len(graph.values), -1, dtype=np.int64)
        of_node = np.full(len(graph.nodes), -1, dtype=np.int64)
        of_value[list(graph.outputs)] = len(graph.nodes) - 1
        for index in reversed(range(len(graph.nodes))):
            node = graph.nodes[index]
            of_node[index] = max((of_value[value] for value in node.outputs), default=-1)
            for value in node.inputs:
                of_value[value] = max(of_value[value], index, of_node[index])
        return Reach(of_value, of_node)


def build_model(graph: Graph, budget_bytes: int, blocks: Blocks, reach: Reach) -> BlockModel:
    """The relaxation of `blocks`; memory is in units of the budget less what is resident."""
    return _Builder(graph, budget_bytes, blocks, reach).build()


def cost_step(graph: Graph) -> int:
    """Every schedule's extra cost is a multiple of it."""
    return gcd(*(node.cost for node in graph.nodes if node.recomputable)) or 1


def inplace_inputs(graph: Graph, node: Node) -> tuple[int, ...]:
    """The inputs whose storage the node's first output can take over."""
    if not node.inplace or not node.outputs:
        return ()
    size_bytes = graph.values[node.outputs[0]].size_bytes
    return tuple(value for value in node.inputs if size_bytes and graph.values[value].size_bytes == size_bytes)


def point_of(model: BlockModel, events: Iterable[Event], held: Sequence[set[int]]) -> np.ndarray:
    """The model's columns for a set of recomputations; `held` are the values at the entry of each block."""
    point = np.zeros(model.num_columns)
    for stage, node in events:
        column = model.recompute.get((model.blocks.of_stage(stage), node))
        if column is not None:
            point[column] = 1
    for (block, value), column in model.retain.items():
        point[column] = value in held[block]
    for column, (user, after) in model.needed.items():
        point[column] = max(point[user], point[after])
    return point


def expand(model: BlockModel, graph: Graph, point: np.ndarray) -> set[Event]:
    """Recomputations of a solution: each node where its block first needs it, else at the block's last stage."""
    starts = (*model.blocks.starts, model.num_stages)
    chosen: list[list[int]] = [[] for _ in model.blocks.starts]
    for (block, node), column in model.recompute.items():
        if point[column] > 0.5:
            chosen[block].append(node)
    events: set[Event] = set()
    for block, nodes in enumerate(chosen):
        place: dict[int, int] = {}
        for node in sorted(nodes, reverse=True):
            uses = [
                user if starts[block] <= user else place.get(user, model.num_stages)
                for value in graph.nodes[node].outputs
                if not _is_held(model, point, block, value)
                for user in graph.users[value]
                if user < starts[block + 1]
            ]
            place[node] = min([*uses, starts[block + 1] - 1])
        events.update((stage, node) for node, stage in place.items())
    return events


def _is_held(model: BlockModel, point: np.ndarray, block: int, value: int) -> bool:
    column = model.retain.get((block, value))
    return column is not None and point[column] > 0.5


class _Builder:
    """Collects columns and rows."""

    def __init__(self, graph: Graph, budget_bytes: int, blocks: Blocks, reach: Reach) -> None:
        self.graph = graph
        self.blocks = blocks
        self.reach = reach
        self.num_blocks = len(blocks.starts)
        self.ends = (*blocks.starts[1:], len(graph.nodes))
        self.room_bytes = budget_bytes - graph.resident_bytes
        self.wanted = frozenset(graph.outputs)
        self.block_of = np.repeat(np.arange(self.num_blocks), np.diff((*blocks.starts, len(graph.nodes)))).tolist()
        self.recompute: dict[tuple[int, int], int] = {}
        self.retain: dict[tuple[int, int], int] = {}
        self.needed: dict[int, tuple[int, int]] = {}
        self.needed_of: dict[tuple[int, int, int], int] = {}
        self.num_columns = 0
        self.columns: list[int] = []
        self.coefficients: list[float] = []
        self.starts = [0]
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.infeasible = False

    def build(self) -> BlockModel:
        self._add_columns()
        self._add_reuse_rows()
        for block in range(self.num_blocks):
            self._add_use_rows(block)
            self._add_boundary_row(block)
        for stage, node in sorted(self.blocks.rows):
            self._add_event_row(stage, node)
        costs = np.zeros(self.num_columns)
        for (_, node), column in self.recompute.items():
            costs[column] = self.graph.nodes[node].cost
        unit = max(float(costs.max(initial=0.0)) / 1e3, 1e-9)
        step = cost_step(self.graph)
        unit = max(unit // step, 1) * step
        rows = LinearRows(
            np.array(self.starts, dtype=np.int32),
            np.array(self.columns, dtype=np.int32),
            np.array(self.coefficients),
            np.array(self.lower),
            np.array(self.upper),
        )
        return BlockModel(
            self.blocks, len(self.graph.nodes), self.recompute, self.retain, self.needed, costs / unit, unit, rows,
            self.infeasible,
        )  # fmt: skip

    def _column(self) -> int:
        self.num_columns += 1
        return self.num_columns - 1

    def _row(self, terms: Iterable[tuple[int | None, float]], *, at_least: float = -np.inf, at_most: float = np.inf):
        before = len(self.columns)
        for column, coefficient in terms:
            if column is not None and coefficient:
                self.columns.append(column)
                self.coefficients.append(coefficient)
        if len(self.columns) == before:
            self.infeasible = self.infeasible or at_least > 1e-9 or at_most < -1e-9
            return
        self.starts.append(len(self.columns))
        self.lower.append(at_least)
        self.upper.append(at_most)

    def _add_columns(self) -> None:
        for index, node in enumerate(self.graph.nodes):
            own = self.block_of[index]
            if node.recomputable and self.reach.of_node[index] >= 0:
                for block in range(own + 1, self.block_of[self.reach.of_node[index]] + 1):
                    self.recompute[block, index] = self._column()
            for value in node.outputs:
                if self.reach.of_value[value] >= 0:
                    for block in range(own + 1, self.block_of[self.reach.of_value[value]] + 1):
                        self.retain[block, value] = self._column()

    def _add_reuse_rows(self) -> None:
        """Rows 1, 3 and 5."""
        for (block, value), column in self.retain.items():
            node = self.graph.producer[value]
            if self.block_of[node] + 2 <= block:
                before, again = self.retain.get((block - 1, value)), self.recompute.get((block - 1, node))
                self._row(((column, 1.0), (before, -1.0), (again, -1.0)), at_most=0.0)
            if self.ends[block] - self.blocks.starts[block] == 1 and (block, node) in self.recompute:
                self._row(((column, 1.0), (self.recompute[block, node], 1.0)), at_most=1.0)
        for (block, node), column in self.recompute.items():
            for value in self.graph.nodes[node].inputs:
                again = self.recompute.get((block, self.graph.producer[value]))
                self._row(((column, 1.0), (again, -1.0), (self.retain.get((block, value)), -1.0)), at_most=0.0)

    def _add_use_rows(self, block: int) -> None:
        """Rows 2."""
        used = {value for stage in range(self.blocks.starts[block], self.ends[block])
                for value in self.graph.nodes[stage].inputs}  # fmt: skip
        if block == self.num_blocks - 1:
            used |= self.wanted
        for value in sorted(used):
            node = self.graph.producer[value]
            if self.block_of[node] < block:
                again = self.recompute.get((block, node))
                self._row(((again, 1.0), (self.retain.get((block, value)), 1.0)), at_least=1.0)

    def _add_boundary_row(self, block: int) -> None:
        """Row 4: the memory of computing the block's last stage."""
        stage = self.ends[block] - 1
        node = self.graph.nodes[stage]
        reusable = [value for value in inplace_inputs(self.graph, node) if not self._kept(block, value)]
        touched = {*node.inputs, *node.outputs}
        fixed = node.workspace_bytes + sum(self._size(value) for value in touched)
        terms: list[tuple[int | None, float]] = []
        if block == self.num_blocks - 1:
            fixed += sum(self._size(value) for value in self.wanted - touched)
        else:
            terms = [
                (column, self._size(value))
                for value, column in self._held_into(block + 1)
                if value not in touched and self._size(value)
            ]
        fixed -= self._takeover(reusable, [(self.retain.get((block + 1, value)), 1) for value in reusable], terms)
        self._memory_row(terms, fixed)

    def _kept(self, block: int, value: int) -> bool:
        return block == self.num_blocks - 1 and value in self.wanted

    def _takeover(self, reusable: Sequence[int], after: Sequence[tuple[int | None, int]], terms: list) -> int:
        """Bytes saved at an in-place node, of which `terms` takes back what depends on a value being held `after`."""
        if not reusable:
            return 0
        size = self._size(reusable[0])
        columns = [column for column, _ in after]
        if any(column is None for column in columns):
            return size
        if len(columns) == 1:
            terms.append((columns[0], size))
            return size
        dropped = self._column()
        self._row([(dropped, 1.0), *((column, 1.0) for column in columns)], at_most=float(len(columns)))
        terms.append((dropped, -size))
        return 0

    def _held_into(self, block: int) -> list[tuple[int, int]]:
        return self._retained_by_block[block]

    @cached_property
    def _retained_by_block(self) -> list[list[tuple[int, int]]]:
        by_block: list[list[tuple[int, int]]] = [[] for _ in range(self.num_blocks)]
        for (block, value), column in self.retain.items():
            by_block[block].append((value, column))
        return by_block

    def _add_event_row(self, stage: int, event: int) -> None:
        """Row 6: the memory of computing node `event` in `stage`, a block of its own."""
        block = self.block_of[stage]
        node = self.graph.nodes[event]
        again = self.recompute.get((block, event))
        if again is None:
            return
        reusable = inplace_inputs(self.graph, node)
        terms: list[tuple[int | None, float]] = [(again, float(node.workspace_bytes))]
        fixed = 0
        for value in node.outputs:
            terms += [(again, self._size(value)), (self.retain.get((block, value)), self._size(value))]
        for value, column in self._held_into(block):
            if self.graph.producer[value] > event:
                terms.append((column, self._size(value)))
        single = reusable[0] if len(reusable) == 1 else None
        for value in self._older(event, stage):
            needed, constant = self._needed(block, stage, value, event + 1 if value == single else event)
            if constant:
                fixed += self._size(value)
            elif needed is not None:
                terms.append((needed, self._size(value)))
        if len(reusable) > 1:
            self._shared_takeover(block, stage, event, reusable, terms)
        self._memory_row(_merged(terms), fixed)

    def _shared_takeover(self, block: int, stage: int, event: int, reusable: Sequence[int], terms: list) -> None:
        after = [self._needed(block, stage, value, event + 1) for value in reusable]
        dropped = self._column()
        held = [column for column, constant in after if column is not None and not constant]
        always = sum(constant for _, constant in after)
        self._row([(dropped, 1.0), *((column, 1.0) for column in held)], at_most=float(len(reusable) - always))
        terms.append((dropped, -self._size(reusable[0])))

    def _older(self, event: int, stage: int) -> list[int]:
        """Values of nodes before `event` that may be wanted in or after `stage`."""
        return np.flatnonzero(
            (self._producers < event) & (self.reach.of_value >= stage) & (self.graph.sizes_bytes > 0)
        ).tolist()

    @cached_property
    def _producers(self) -> np.ndarray:
        return np.array(self.graph.producer, dtype=np.int64)

    def _needed(self, block: int, stage: int, value: int, event: int) -> tuple[int | None, bool]:
        """H: whether `value` is needed at or after `event` in `stage`: a column, or the constant True."""
        users = self.graph.users[value]
        if stage in users:
            return None, True
        last = block == self.num_blocks - 1
        column = None if last else self.retain.get((block + 1, value))
        wanted = last and value in self.wanted
        if wanted:
            return None, True
        for user in reversed(users):
            if user < event:
                break
            again = self.recompute.get((block, user)) if user < stage else None
            if again is not None:
                column = self._needed_column(block, value, user, again, column)
        return column, False

    def _needed_column(self, block: int, value: int, user: int, again: int, after: int | None) -> int:
        key = (block, value, user)
        if after is None:
            return again
        if key not in self.needed_of:
            column = self._column()
            self.needed_of[key] = column
            self.needed[column] = (again, after)
            self._row(((column, 1.0), (again, -1.0)), at_least=0.0)
            self._row(((column, 1.0), (after, -1.0)), at_least=0.0)
        return self.needed_of[key]

    def _memory_row(self, terms: list[tuple[int | None, float]], fixed: int) -> None:
        scale = 1.0 / max(self.room_bytes, 1)
        at_most = (self.room_bytes - fixed) * scale
        self._row([(column, size * scale) for column, size in terms], at_most=at_most)

    def _size(self, value: int) -> int:
        return self.graph.values[value].size_bytes


def _merged(terms: Iterable[tuple[int | None, float]]) -> list[tuple[int | None, float]]:
    """Terms with one entry a column."""
    total: dict[int, float] = {}
    for column, coefficient in terms:
        if column is not None and coefficient:
            total[column] = total.get(column, 0.0) + coefficient
    return list(total.items())
