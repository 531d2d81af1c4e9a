"""Checkmate's MILP (9), and form (1), as sparse matrices built with numpy; no back end is named here.

Columns: R (stage, node), S (boundary, value), FREE (stage, value, user), U (stage, node). A column a value, not a node,
so that the outputs of a node are retained apart. Costs are of repeats only, bytes in units of `memory_unit_bytes`.

Paper form: (1b), (1c), (2), (3), and (7b), (7c) for every FREE off the diagonal (4.8).

Tight form, the default; the same integer points once what nothing needs is not retained. In stage t, for value v of
node p, with its users k:

(a) sum of FREE[t,v,k'] over users k' < k, + R[t,k] <= S[t,v] + R[t,p]: k finds v, computed or retained and not freed.
(b) sum of FREE[t,v,k'] + S[t+1,v] <= S[t,v] + R[t,p]: what is retained next was there and was not freed.
(c) FREE[t,v,k] <= R[t,k].
(d) S[t,v] + R[t,p] <= 1: a value that is computed again later in the stage need not be retained into it.

(a), (b) and (c) imply (1b), (1c) and (7c); (7b) only forbids keeping what could be freed. U follows (2), (3) over the
nodes that can run in the stage; a budget row stands only where the stage space says it can bind. Nodes of several
values keep their diagonal FREE: one of the values may be of no use. An in-place node may have its first output's size
back when an input as large is freed right after it.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import sparse

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, from_stages, to_stages
from checkmate_tf.solvers.stage_space import Edges, StageSpace, edges_of

_BUDGET_UNITS = 1e5
_ROUNDING = 1e-7


@dataclass(frozen=True)
class Formulation:
    """Which rows stand for (9).

    Args:
        tight: rows (a) to (d); otherwise the paper's (1b), (1c), (7b), (7c).
        diagonal_free: keep FREE[t,k,k] for every node, where 4.8 eliminates it.
    """

    tight: bool = True
    diagonal_free: bool = False


@dataclass(frozen=True)
class StageModel:
    """Minimize `fixed_cost + cost @ x`, `row_lower <= matrix @ x <= row_upper`, `lower <= x <= upper`.

    Only columns with a choice are left. The last `num_usage` columns are U, in the order of events, and the last
    `num_usage` rows define them.

    Args:
        cost: in the graph's cost units, float [num_columns].
        integer: bool [num_columns].
        recompute_column: the column of R[t, i], -1 where there is no choice, int64 [num_stages, num_nodes].
        retain_column: likewise of S, int64 [num_stages + 1, num_values].
        most_usage: no U is ever larger, in units of memory.
        solvable: False when the entries without a choice already break a row.
    """

    fixed_cost: float
    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    matrix: sparse.csr_array
    row_lower: np.ndarray
    row_upper: np.ndarray
    recompute_column: np.ndarray
    retain_column: np.ndarray
    num_usage: int
    space: StageSpace
    memory_unit_bytes: float
    most_usage: float
    solvable: bool

    def recompute(self, x: np.ndarray) -> np.ndarray:
        """R of a point, float [num_stages, num_nodes]."""
        chosen = x[self.recompute_column] if len(x) else 0.0
        return np.where(self.recompute_column >= 0, chosen, self.space.recompute_lower)

    def retain(self, x: np.ndarray) -> np.ndarray:
        """S of a point, float [num_stages + 1, num_values]."""
        chosen = x[self.retain_column] if len(x) else 0.0
        return np.where(self.retain_column >= 0, chosen, self.space.retain_lower)

    def point(self, graph: Graph, schedule: Schedule) -> np.ndarray | None:
        """The columns of R and S for a schedule, nan for the others; None where it does not fit the stage space."""
        try:
            stages = to_stages(graph, schedule)
        except ScheduleError:
            return None
        recompute = stages.recompute.copy()
        # In a run of stages in which everything fits, recomputing comes first and what is held stays.
        for stage in np.flatnonzero(self.space.merged)[::-1]:
            recompute[stage - 1, :stage] |= recompute[stage, :stage]
            recompute[stage, :stage] = False
            recompute[stage - 1, stage - 1] = True
        if (recompute & ~self.space.recompute_upper).any():
            return None
        retain = np.zeros(self.space.retain_lower.shape, dtype=bool)
        retain[:-1] = to_stages(graph, from_stages(graph, recompute)).retain
        retain |= self.space.retain_lower
        producer = np.array(graph.producer, dtype=np.int64)
        for stage in np.flatnonzero(self.space.merged):
            retain[stage] = (retain[stage - 1] | recompute[stage - 1, producer]) & self.space.retain_upper[stage]
        x = np.full(len(self.cost), np.nan)
        for columns, entries in ((self.recompute_column, recompute), (self.retain_column, retain)):
            there = columns >= 0
            x[columns[there]] = entries[there]
        return x


def build_model(graph: Graph, budget_bytes: int, space: StageSpace, *, form: Formulation | None = None) -> StageModel:
    """The MILP over a stage space."""
    form = form or Formulation()
    columns = _Columns.of(space)
    rows = _Rows()
    usage = _Rows()
    unit_bytes = max(1.0, budget_bytes / _BUDGET_UNITS)
    shape = _Shape.of(graph, form)
    for stage in range(space.recompute_upper.shape[0]):
        freed = _free_columns(shape, space, columns, stage, form)
        if form.tight:
            _tight_rows(rows, shape, space, columns, stage, freed)
        else:
            _paper_rows(rows, shape, space, columns, stage, freed)
        _usage_rows(usage, rows, shape, space, columns, stage, freed, budget_bytes, unit_bytes)
    if not space.frontier_advancing:
        terminal = columns.recompute[:, -1]
        rows.add(np.ones(1), np.full(1, np.inf), (np.zeros(len(terminal), dtype=np.int64), terminal, 1.0))
    return _without_fixed(graph, space, columns, rows, usage, unit_bytes)


@dataclass
class _Rows:
    """Rows being collected: `lower <= sum of coefficient * column <= upper`."""

    lower: list[np.ndarray] = field(default_factory=list)
    upper: list[np.ndarray] = field(default_factory=list)
    triplets: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    count: int = 0

    def add(
        self, lower: np.ndarray, upper: np.ndarray, *entries: tuple[np.ndarray, np.ndarray, np.ndarray | float]
    ) -> None:
        """Appends rows; each of `entries` is (row among the new ones, column or -1, coefficient)."""
        for row, column, coefficient in entries:
            there = column >= 0
            coefficients = np.broadcast_to(np.asarray(coefficient, dtype=float), column.shape)
            self.triplets.append((row[there] + self.count, column[there], coefficients[there]))
        self.lower.append(lower)
        self.upper.append(upper)
        self.count += len(lower)

    def table(self, num_columns: int) -> "_Table":
        nothing = np.zeros(0)
        row, column, coefficient = (
            np.concatenate([nothing, *(triplet[part] for triplet in self.triplets)]) for part in range(3)
        )
        places = (row.astype(np.int64), column.astype(np.int64))
        matrix = sparse.csr_array((coefficient, places), shape=(self.count, num_columns))
        matrix.eliminate_zeros()
        return _Table(matrix, np.concatenate([nothing, *self.lower]), np.concatenate([nothing, *self.upper]))


@dataclass(frozen=True)
class _Table:
    """Finished rows: `lower <= matrix @ x <= upper`."""

    matrix: sparse.csr_array
    lower: np.ndarray
    upper: np.ndarray


@dataclass
class _Columns:
    """Columns being collected; R and S first."""

    recompute: np.ndarray
    retain: np.ndarray
    lower: list[np.ndarray]
    upper: list[np.ndarray]
    kind: list[np.ndarray]
    count: int

    INTEGER = 0
    CONTINUOUS = 1
    USAGE = 2

    @staticmethod
    def of(space: StageSpace) -> "_Columns":
        num_recompute = int(space.recompute_upper.sum())
        num_retain = int(space.retain_upper.sum())
        recompute = np.full(space.recompute_upper.shape, -1, dtype=np.int64)
        recompute[space.recompute_upper] = np.arange(num_recompute)
        retain = np.full(space.retain_upper.shape, -1, dtype=np.int64)
        retain[space.retain_upper] = np.arange(num_retain) + num_recompute
        lower = [space.recompute_lower[space.recompute_upper], space.retain_lower[space.retain_upper]]
        total = num_recompute + num_retain
        return _Columns(
            recompute, retain, [part.astype(float) for part in lower], [np.ones(total)], [np.zeros(total)], total
        )

    def add(self, kind: int, upper: np.ndarray) -> np.ndarray:
        """Appends columns of at least 0; returns their numbers."""
        added = np.arange(len(upper)) + self.count
        self.lower.append(np.zeros(len(upper)))
        self.upper.append(upper)
        self.kind.append(np.full(len(upper), kind))
        self.count += len(upper)
        return added


@dataclass(frozen=True)
class _Shape:
    """The graph as arrays.

    `edges` holds, before the users of a value, its producer where FREE is kept on the diagonal (`diagonal`).
    `before` and `after` are the pairs of edges of one value, `before` the earlier. `takeover`: the user is in-place and
    its first output as large as the value.
    """

    graph: Graph
    edges: Edges
    diagonal: np.ndarray
    takeover: np.ndarray
    before: np.ndarray
    after: np.ndarray
    producer: np.ndarray
    workspace: np.ndarray

    @staticmethod
    def of(graph: Graph, form: Formulation) -> "_Shape":
        several = [
            v
            for node in graph.nodes
            if form.diagonal_free or (form.tight and len(node.outputs) > 1)
            for v in node.outputs
        ]
        edges = edges_of(graph, diagonal=several)
        producer = np.array(graph.producer, dtype=np.int64)
        diagonal = edges.user == producer[edges.value]
        first = np.array([graph.sizes_bytes[n.outputs[0]] if n.inplace and n.outputs else -1 for n in graph.nodes])
        takeover = ~diagonal & (first[edges.user] == graph.sizes_bytes[edges.value])
        start = np.searchsorted(edges.value, np.arange(len(graph.values) + 1))
        pairs = [(e, f) for a, b in pairwise(start) for f in range(a, b) for e in range(a, f)]
        before, after = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        workspace = np.array([node.workspace_bytes for node in graph.nodes], dtype=np.int64)
        return _Shape(graph, edges, diagonal, takeover, before, after, producer, workspace)


def _free_columns(shape: _Shape, space: StageSpace, columns: _Columns, stage: int, form: Formulation) -> np.ndarray:
    """The column of FREE for each edge in a stage, -1 where there is none, int64 [num_edges]."""
    value, user = shape.edges.value, shape.edges.user
    runs = space.recompute_upper[stage][user]
    if form.tight:
        there = (columns.retain[stage][value] >= 0) | (columns.recompute[stage][shape.producer[value]] >= 0)
        surely = space.recompute_lower[stage][user] & ~shape.diagonal
        last_sure = np.full(len(shape.graph.values), -1, dtype=np.int64)
        np.maximum.at(last_sure, value[surely], user[surely])
        matters = _last_event(space, stage) + shape.takeover > user
        runs &= there & matters & ~space.retain_lower[stage + 1][value] & (user >= last_sure[value])
    freed = np.full(len(user), -1, dtype=np.int64)
    kind = columns.CONTINUOUS if form.tight else columns.INTEGER
    freed[runs] = columns.add(kind, np.ones(int(runs.sum())))
    return freed


def _last_event(space: StageSpace, stage: int) -> int:
    return int(np.flatnonzero(space.binding[stage]).max(initial=-1))


def _tight_rows(
    rows: _Rows, shape: _Shape, space: StageSpace, columns: _Columns, stage: int, freed: np.ndarray
) -> None:
    value, user = shape.edges.value, shape.edges.user
    recompute, retain, following = columns.recompute[stage], columns.retain[stage], columns.retain[stage + 1]
    reads = space.recompute_upper[stage][user] & ~shape.diagonal
    row = np.cumsum(reads) - 1
    pair = reads[shape.after]
    rows.add(  # (a)
        np.full(int(reads.sum()), -np.inf),
        np.zeros(int(reads.sum())),
        (row[reads], recompute[user[reads]], 1.0),
        (row[reads], retain[value[reads]], -1.0),
        (row[reads], recompute[shape.producer[value[reads]]], -1.0),
        (row[shape.after[pair]], freed[shape.before[pair]], 1.0),
    )
    kept = following >= 0
    row = np.cumsum(kept) - 1
    index = np.flatnonzero(kept)
    edge = kept[value]
    holds = stage + 1 < len(space.merged) and space.merged[stage + 1]
    rows.add(  # (b)
        np.full(len(index), 0.0 if holds else -np.inf),
        np.zeros(len(index)),
        (row[index], following[index], 1.0),
        (row[index], retain[index], -1.0),
        (row[index], recompute[shape.producer[index]], -1.0),
        (row[value[edge]], freed[edge], 1.0),
    )
    index = np.flatnonzero(freed >= 0)
    row = np.arange(len(index))
    rows.add(  # (c)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, freed[index], 1.0),
        (row, recompute[user[index]], -1.0),
    )
    index = np.flatnonzero((retain >= 0) & (recompute[shape.producer] >= 0))
    row = np.arange(len(index))
    rows.add(  # (d)
        np.full(len(index), -np.inf),
        np.ones(len(index)),
        (row, retain[index], 1.0),
        (row, recompute[shape.producer[index]], 1.0),
    )


def _paper_rows(
    rows: _Rows, shape: _Shape, space: StageSpace, columns: _Columns, stage: int, freed: np.ndarray
) -> None:
    value, user = shape.edges.value, shape.edges.user
    recompute, retain, following = columns.recompute[stage], columns.retain[stage], columns.retain[stage + 1]
    index = np.flatnonzero(space.recompute_upper[stage][user] & ~shape.diagonal)
    row = np.arange(len(index))
    rows.add(  # (1b)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, recompute[user[index]], 1.0),
        (row, retain[value[index]], -1.0),
        (row, recompute[shape.producer[value[index]]], -1.0),
    )
    index = np.flatnonzero(following >= 0)
    row = np.arange(len(index))
    rows.add(  # (1c)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, following[index], 1.0),
        (row, retain[index], -1.0),
        (row, recompute[shape.producer[index]], -1.0),
    )
    index = np.flatnonzero(freed >= 0)
    row = np.cumsum(freed >= 0) - 1
    later = (freed[shape.before] >= 0) & (recompute[user[shape.after]] >= 0)
    hazards = (
        (row[index], recompute[user[index]], -1.0),
        (row[index], following[value[index]], 1.0),
        (row[shape.before[later]], recompute[user[shape.after[later]]], 1.0),
    )
    most = 2.0 + np.bincount(row[shape.before[later]], minlength=len(index))
    rows.add(np.zeros(len(index)), np.full(len(index), np.inf), (row[index], freed[index], 1.0), *hazards)  # (7b)
    rows.add(np.full(len(index), -np.inf), most - 1, (row[index], freed[index], most), *hazards)  # (7c)


def _usage_rows(
    usage: _Rows,
    rows: _Rows,
    shape: _Shape,
    space: StageSpace,
    columns: _Columns,
    stage: int,
    freed: np.ndarray,
    budget_bytes: int,
    unit_bytes: float,
) -> None:
    """U over the nodes that can run up to the last event at which the budget can bind, and the budget itself."""
    nodes = np.flatnonzero(space.recompute_upper[stage])
    nodes = nodes[nodes <= _last_event(space, stage)]
    if not len(nodes):
        return
    size = shape.graph.sizes_bytes / unit_bytes
    position = np.full(len(shape.graph.nodes), -1, dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    limit = budget_bytes / unit_bytes
    takes = np.bincount(shape.edges.user[shape.takeover & (freed >= 0)], minlength=len(shape.graph.nodes)) > 0
    plain = ~takes[nodes] & (shape.workspace[nodes] == 0)
    bound = np.where(space.binding[stage][nodes] & plain, limit, np.inf)
    column = columns.add(columns.USAGE, bound)
    row = np.arange(len(nodes))
    made = np.flatnonzero(position[shape.producer] >= 0)
    retained = np.flatnonzero(columns.retain[stage] >= 0)
    frees = np.flatnonzero(
        (freed >= 0) & (position[shape.edges.user] >= 0) & (position[shape.edges.user] + 1 < len(nodes))
    )
    start = np.zeros(len(nodes))
    start[0] = shape.graph.resident_bytes / unit_bytes
    usage.add(  # (2), (3)
        start,
        start,
        (row, column, 1.0),
        (row[1:], column[:-1], -1.0),
        (position[shape.producer[made]], columns.recompute[stage][shape.producer[made]], -size[made]),
        (np.zeros(len(retained), dtype=np.int64), columns.retain[stage][retained], -size[retained]),
        (position[shape.edges.user[frees]] + 1, freed[frees], size[shape.edges.value[frees]]),
    )
    for node in nodes[space.binding[stage][nodes] & ~plain]:
        _budget_row(rows, shape, columns, stage, int(node), column[position[node]], freed, limit, unit_bytes)


def _budget_row(
    rows: _Rows,
    shape: _Shape,
    columns: _Columns,
    stage: int,
    node: int,
    usage_column: int,
    freed: np.ndarray,
    limit: float,
    unit_bytes: float,
) -> None:
    """U + workspace - what the first output takes over <= budget, for a node with a workspace or in place."""
    entries = [(usage_column, 1.0), (columns.recompute[stage, node], shape.workspace[node] / unit_bytes)]
    sources = freed[shape.takeover & (shape.edges.user == node) & (freed >= 0)]
    if len(sources):
        (taken,) = columns.add(columns.CONTINUOUS, np.ones(1))
        entries.append((taken, -shape.graph.sizes_bytes[shape.graph.nodes[node].outputs[0]] / unit_bytes))
        origin = np.zeros(len(sources) + 1, dtype=np.int64)
        signs = np.append(-np.ones(len(sources)), 1.0)
        rows.add(np.full(1, -np.inf), np.zeros(1), (origin, np.append(sources, taken), signs))
    column, coefficient = (np.array(part) for part in zip(*entries, strict=True))
    rows.add(np.full(1, -np.inf), np.full(1, limit), (np.zeros(len(entries), dtype=np.int64), column, coefficient))


def _without_fixed(
    graph: Graph, space: StageSpace, columns: _Columns, rows: _Rows, usage: _Rows, unit_bytes: float
) -> StageModel:
    """The model without the columns that have no choice and the rows that cannot be broken."""
    lower, upper, kind = (np.concatenate(part) for part in (columns.lower, columns.upper, columns.kind))
    cost = np.zeros(columns.count)
    stages, nodes = np.nonzero(space.recompute_upper)
    cost[columns.recompute[stages, nodes]] = graph.costs[nodes]
    is_usage = kind == columns.USAGE
    fixed = (lower == upper) & ~is_usage
    left = np.concatenate([np.flatnonzero(~fixed & ~is_usage), np.flatnonzero(is_usage)])
    constant = np.where(fixed, lower, 0.0)
    plain, definitions = rows.table(columns.count), usage.table(columns.count)
    table = _Table(
        sparse.csr_array(sparse.vstack([plain.matrix, definitions.matrix])),
        np.concatenate([plain.lower, definitions.lower]),
        np.concatenate([plain.upper, definitions.upper]),
    )
    shift = table.matrix @ constant
    matrix, row_lower, row_upper = table.matrix[:, left], table.lower - shift, table.upper - shift
    most = matrix.maximum(0) @ upper[left] + matrix.minimum(0) @ lower[left]
    least = matrix.maximum(0) @ lower[left] + matrix.minimum(0) @ upper[left]
    breakable = (most > row_upper) | (least < row_lower)
    breakable[rows.count :] = True
    renumber = np.full(columns.count + 1, -1, dtype=np.int64)
    renumber[left] = np.arange(len(left))
    return StageModel(
        fixed_cost=float(cost @ constant),
        cost=cost[left],
        lower=lower[left],
        upper=upper[left],
        integer=kind[left] == columns.INTEGER,
        matrix=matrix[breakable],
        row_lower=row_lower[breakable],
        row_upper=row_upper[breakable],
        recompute_column=renumber[columns.recompute],
        retain_column=renumber[columns.retain],
        num_usage=usage.count,
        space=space,
        memory_unit_bytes=unit_bytes,
        # A value counts at most twice: retained into a stage and computed in it.
        most_usage=(graph.resident_bytes + 2 * int(graph.sizes_bytes.sum())) / unit_bytes,
        solvable=bool((least <= row_upper + _ROUNDING).all() and (most >= row_lower - _ROUNDING).all()),
    )
