"""The block relaxation: stages are cut into blocks, and memory rows exist only where they were added.

Checkmate's stage t recomputes some nodes i < t, each at most once and in the input order, and then computes node t. The
stages are cut into consecutive blocks, and b(i) is the block of stage i. For blocks b > b(i), R[b, i] is 1 if node i is
recomputed at least once in block b, and S[b, o] is 1 if value o of node i is held at the entry of block b. An undefined
variable is 0. The program minimizes the sum of cost[i] R[b, i], subject to

1. S[b, o] <= S[b-1, o] + R[b-1, i] for b >= b(i) + 2;
2. R[b, i] + S[b, o] >= 1 if a stage of block b, or the step's end in it, reads o;
3. R[b, j] <= R[b, i] + S[b, o] for every value o that node j reads;
4. boundary memory rows: the memory of the last computation of each block, with the values held into the next;
5. R[b, i] + S[b, o] <= 1 in blocks of one stage;
6. event memory rows: in blocks of one stage t, for chosen events k < t, the memory of computing k in stage t;
7. inner memory rows: in longer blocks, for chosen stages t, the memory of computing node t. A value that is not
   recomputed in the block is in memory if the block reads it later, or if it is held into the next. For these rows,
   R[b(i), i] is defined, too: node i is recomputed in its own block;
8. path cuts (`cuts.py`): a stage in several consecutive blocks, from block f on, reads o1, whose node reads o2,
   and so on to o: node i of o is recomputed in one of these blocks, or one of o1 to o is held at the entry of block f.

Every schedule in stage space maps to a point that costs no more, so the optimum is a lower bound for any boundaries and
any subset of the rows from 6 on. With all event memory rows and one stage in each block, it is Checkmate's MILP
(section 4.7) with values held separately. Rows 1 to 4 hold for any schedule whose first computations are in the input
order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.stages import Event

Term = tuple[int | None, int]
"""A term (column, coefficient). A column that does not exist is 0."""


@dataclass(frozen=True, order=True)
class PathCut:
    """A path cut for the blocks of the stages first_stage to end_stage - 1, at whose ends blocks are cut.

    Args:
        carried: whether not a stage there but a later block needs the first value, so that it is held at the end.
        path: values of nodes before `first_stage`, each read by the node of the one before.
    """

    first_stage: int
    end_stage: int
    carried: bool
    path: tuple[int, ...]


@dataclass(frozen=True)
class Blocks:
    """The blocks and rows of a model.

    Args:
        starts: the first stage of each block, in order; the first is 0.
        rows: the events (stage, node) of blocks of one stage whose memory is limited.
        inner: the stages inside longer blocks whose memory is limited. The last stage of a block always has its
            boundary row.
        cuts: path cuts.
    """

    starts: tuple[int, ...]
    rows: frozenset[Event] = frozenset()
    inner: frozenset[int] = frozenset()
    cuts: frozenset[PathCut] = frozenset()

    def of_stage(self, stage: int) -> int:
        return int(np.searchsorted(self.starts, stage, side="right")) - 1

    def is_single(self, stage: int, num_stages: int) -> bool:
        """Returns whether `stage` is a block of its own."""
        block = self.of_stage(stage)
        end = self.starts[block + 1] if block + 1 < len(self.starts) else num_stages
        return end - self.starts[block] == 1

    def without(self, starts: Collection[int]) -> "Blocks":
        """Returns blocks in which each block with one of these starts is joined to the one before."""
        rows = frozenset((stage, node) for stage, node in self.rows if not {stage, stage + 1} & set(starts))
        cuts = frozenset(cut for cut in self.cuts if cut.first_stage not in starts and cut.end_stage not in starts)
        kept = tuple(start for start in self.starts if start not in starts)
        return replace(self, starts=kept, rows=rows, cuts=cuts)

    def with_starts(self, starts: Iterable[int]) -> "Blocks":
        """Returns blocks that are also cut at these stages."""
        return replace(self, starts=tuple(sorted({*self.starts, *starts})))


@dataclass(frozen=True)
class LinearRows:
    """Rows lower <= A x <= upper in compressed row form. Every number is whole or infinite.

    Args:
        scale: divisor of each row's coefficients that suits floating point.
    """

    start: np.ndarray
    column: np.ndarray
    coefficient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class Derived:
    """The value of a column that follows from others: 1 if one of `any_of` is 1 and `but_not` is not."""

    any_of: tuple[int, ...]
    but_not: int | None = None


@dataclass(frozen=True)
class BlockModel:
    """The mixed-integer program. Its columns are R and S (integer), and those that follow from them, all from 0 to 1.

    Args:
        recompute: column of R[block, node].
        retain: column of S[block, value].
        derived: column -> the columns from which it follows, in an order in which they can be computed.
        memory_row: stage -> its boundary or inner memory row.
        event_row: (stage, node) -> its event memory row.
        costs: of each column, int64, in units of `cost_unit`, rounded down.
        infeasible: a row without variables is violated.
        fixed: column -> its value in every point of interest.
    """

    blocks: Blocks
    num_stages: int
    recompute: dict[tuple[int, int], int]
    retain: dict[tuple[int, int], int]
    derived: dict[int, Derived]
    memory_row: dict[int, int]
    event_row: dict[Event, int]
    costs: np.ndarray
    cost_unit: int
    rows: LinearRows
    infeasible: bool
    fixed: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_columns(self) -> int:
        return len(self.costs)

    @cached_property
    def integers(self) -> np.ndarray:
        """Columns of R and S, int64."""
        return np.array([*self.recompute.values(), *self.retain.values()], dtype=np.int64)


@dataclass(frozen=True)
class Reach:
    """The last stage that can need each value and each node, int64; -1 if nothing does."""

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


def path_cut_row(
    blocks: Blocks,
    recompute: Mapping[tuple[int, int], int],
    retain: Mapping[tuple[int, int], int],
    graph: Graph,
    cut: PathCut,
) -> tuple[list[Term], int]:
    """Returns the row of a path cut: its terms, and their least sum."""
    first, last = blocks.of_stage(cut.first_stage), blocks.of_stage(cut.end_stage - 1)
    node = graph.producer[cut.path[-1]]
    terms: list[Term] = [(recompute.get((block, node)), 1) for block in range(first, last + 1)]
    terms += [(retain.get((first, value)), 1) for value in cut.path]
    if cut.carried:
        terms.append((retain.get((last + 1, cut.path[0])), -1))
    return terms, 0 if cut.carried else 1


def point_of(model: BlockModel, events: Iterable[Event], held: Sequence[set[int]]) -> np.ndarray:
    """Returns the model's columns for a set of recomputations. `held` are the values at the entry of each block."""
    point = np.zeros(model.num_columns)
    for stage, node in events:
        column = model.recompute.get((model.blocks.of_stage(stage), node))
        if column is not None:
            point[column] = 1
    for (block, value), column in model.retain.items():
        point[column] = value in held[block]
    for column, source in model.derived.items():
        present = max(point[other] for other in source.any_of)
        point[column] = present and not (source.but_not is not None and point[source.but_not])
    return point


def expand(model: BlockModel, graph: Graph, point: np.ndarray, memory_bytes: np.ndarray) -> set[Event]:
    """Returns the recomputations of a solution.

    A node is recomputed where its block first needs it. If it is also in memory at the start of the block, or computed
    in the block, it is recomputed after the gap between two uses in which `memory_bytes`, of each stage, is highest. A
    node that is only carried out is recomputed in the last stage.
    """
    starts = (*model.blocks.starts, model.num_stages)
    chosen: list[list[int]] = [[] for _ in model.blocks.starts]
    for (block, node), column in model.recompute.items():
        if point[column] > 0.5:
            chosen[block].append(node)
    events: set[Event] = set()
    for block, nodes in enumerate(chosen):
        first, last = starts[block], starts[block + 1] - 1
        place: dict[int, int] = {}
        for node in sorted(nodes, reverse=True):
            needed, apart = [], []
            for value in graph.nodes[node].outputs:
                uses = [user if user >= first else place.get(user, last + 1) for user in graph.users[value]]
                uses = sorted({use for use in uses if node < use <= last})
                if _is_held(model, point, block + 1, value):
                    uses.append(last)
                if node >= first or _is_held(model, point, block, value):
                    apart.append([max(node, first), *uses])
                else:
                    needed += uses
            gaps = [gap for uses in apart for gap in pairwise(uses)] if not needed else []
            worst = max(gaps, key=lambda gap: memory_bytes[gap[0] : gap[1] + 1].max(), default=None)
            place[node] = min([*needed, last]) if worst is None else worst[1]
        events.update((stage, node) for node, stage in place.items() if node < stage)
    return events


def _is_held(model: BlockModel, point: np.ndarray, block: int, value: int) -> bool:
    column = model.retain.get((block, value))
    return column is not None and point[column] > 0.5
