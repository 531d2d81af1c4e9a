"""Makes the columns and rows of Checkmate's MILP, stage by stage. The docstring of model.py defines them."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import sparse

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.checkmate.stage_space import Edges, StageSpace, edges_of, find_offloadable


@dataclass(frozen=True)
class Formulation:
    """The rows that represent (9).

    Args:
        tight: rows (a) to (d) of model.py; otherwise the paper's (1b), (1c), (7b) and (7c).
        diagonal_free: keep FREE[t,k,k] for every node; section 4.8 eliminates it.
    """

    tight: bool = True
    diagonal_free: bool = False


@dataclass
class Rows:
    """Collects rows `lower <= sum of coefficient * column <= upper`."""

    lower: list[np.ndarray] = field(default_factory=list)
    upper: list[np.ndarray] = field(default_factory=list)
    triplets: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    count: int = 0
    num_entries: int = 0

    def add(
        self, lower: np.ndarray, upper: np.ndarray, *entries: tuple[np.ndarray, np.ndarray, np.ndarray | float]
    ) -> None:
        """Appends rows. Each of `entries` is (row among the new ones, column or -1, coefficient)."""
        for row, column, coefficient in entries:
            there = column >= 0
            coefficients = np.broadcast_to(np.asarray(coefficient, dtype=float), column.shape)
            self.triplets.append((row[there] + self.count, column[there], coefficients[there]))
            self.num_entries += len(coefficients)
        self.lower.append(lower)
        self.upper.append(upper)
        self.count += len(lower)

    def table(self, num_columns: int) -> "Table":
        nothing = np.zeros(0)
        row, column, coefficient = (
            np.concatenate([nothing, *(triplet[part] for triplet in self.triplets)]) for part in range(3)
        )
        places = (row.astype(np.int64), column.astype(np.int64))
        matrix = sparse.csr_array((coefficient, places), shape=(self.count, num_columns))
        matrix.eliminate_zeros()
        return Table(matrix, np.concatenate([nothing, *self.lower]), np.concatenate([nothing, *self.upper]))


@dataclass(frozen=True)
class Table:
    """Finished rows: `lower <= matrix @ x <= upper`."""

    matrix: sparse.csr_array
    lower: np.ndarray
    upper: np.ndarray


@dataclass
class Columns:
    """Collects columns, R and S first."""

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
    def of(space: StageSpace) -> "Columns":
        num_recompute = int(space.recompute_upper.sum())
        num_retain = int(space.retain_upper.sum())
        recompute = np.full(space.recompute_upper.shape, -1, dtype=np.int32)
        recompute[space.recompute_upper] = np.arange(num_recompute, dtype=np.int32)
        retain = np.full(space.retain_upper.shape, -1, dtype=np.int32)
        retain[space.retain_upper] = np.arange(num_recompute, num_recompute + num_retain, dtype=np.int32)
        lower = [space.recompute_lower[space.recompute_upper], space.retain_lower[space.retain_upper]]
        total = num_recompute + num_retain
        return Columns(
            recompute, retain, [part.astype(float) for part in lower], [np.ones(total)], [np.zeros(total)], total
        )

    def add(self, kind: int, upper: np.ndarray) -> np.ndarray:
        """Appends columns with the lower bound 0, and returns their numbers."""
        added = np.arange(len(upper)) + self.count
        self.lower.append(np.zeros(len(upper)))
        self.upper.append(upper)
        self.kind.append(np.full(len(upper), kind))
        self.count += len(upper)
        return added


@dataclass(frozen=True)
class Units:
    """The budget, and the bytes in one unit of memory of the model."""

    budget_bytes: int
    unit_bytes: float

    @property
    def limit(self) -> float:
        return self.budget_bytes / self.unit_bytes


@dataclass(frozen=True)
class ReadArrays:
    """The reads of a graph as arrays.

    `edges` lists the users of each value, and before them its producer if FREE is kept on the diagonal (`diagonal`).
    `before` and `after` are the pairs of edges of one value, the earlier edge in `before`. `takeover` marks edges whose
    user is in-place and has a first output as large as the value. `offloadable` marks the values that may be
    offloaded, bool [num_values].
    """

    graph: Graph
    edges: Edges
    diagonal: np.ndarray
    takeover: np.ndarray
    before: np.ndarray
    after: np.ndarray
    producer: np.ndarray
    workspace: np.ndarray
    offloadable: np.ndarray

    @staticmethod
    def of(graph: Graph, form: Formulation) -> "ReadArrays":
        several = [v for node in graph.nodes if form.diagonal_free or len(node.outputs) > 1 for v in node.outputs]
        edges = edges_of(graph, diagonal=several)
        producer = graph.arrays.producer
        diagonal = edges.user == producer[edges.value]
        takeover = ~diagonal & (graph.arrays.takes_over_bytes[edges.user] == graph.sizes_bytes[edges.value])
        start = np.searchsorted(edges.value, np.arange(len(graph.values) + 1))
        pairs = [(e, f) for a, b in pairwise(start) for f in range(a, b) for e in range(a, f)]
        before, after = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return ReadArrays(
            graph, edges, diagonal, takeover, before, after, producer, graph.arrays.workspace_bytes,
            find_offloadable(graph),
        )  # fmt: skip


@dataclass(frozen=True)
class Fetches:
    """The columns of FETCH in a stage, -1 where there is none.

    Args:
        read: for each edge, of a copy that comes back for the edge's user, int64 [num_edges].
        early: for each value, of a copy that comes back with the stage's own node, for a later stage or the end,
            int64 [num_values].
    """

    read: np.ndarray
    early: np.ndarray


def fetch_columns(arrays: ReadArrays, space: StageSpace, columns: Columns, stage: int) -> Fetches:
    """Adds the columns of FETCH in a stage."""
    value, user = arrays.edges.value, arrays.edges.user
    runs = space.recompute_upper[stage][user] & ~arrays.diagonal & arrays.offloadable[value]
    waits = arrays.offloadable & (arrays.producer < stage) & (columns.retain[stage + 1] >= 0)
    waits[value[user == stage]] = False
    read, early = np.full(len(value), -1, dtype=np.int64), np.full(len(waits), -1, dtype=np.int64)
    read[runs] = columns.add(columns.INTEGER, np.ones(int(runs.sum())))
    early[waits] = columns.add(columns.INTEGER, np.ones(int(waits.sum())))
    return Fetches(read, early)


def free_columns(arrays: ReadArrays, space: StageSpace, columns: Columns, stage: int, form: Formulation) -> np.ndarray:
    """Returns the column of FREE for each edge in a stage, -1 where there is none, int64 [num_edges]."""
    value, user = arrays.edges.value, arrays.edges.user
    runs = space.recompute_upper[stage][user]
    if form.tight:
        there = (columns.retain[stage][value] >= 0) | (columns.recompute[stage][arrays.producer[value]] >= 0)
        surely = space.recompute_lower[stage][user] & ~arrays.diagonal
        last_sure = np.full(len(arrays.graph.values), -1, dtype=np.int64)
        np.maximum.at(last_sure, value[surely], user[surely])
        matters = (user < _last_chained(space, stage, form)) | (arrays.takeover & space.binding[stage][user])
        needed = matters & ~space.retain_lower[stage + 1][value] & (user >= last_sure[value])
        # A value that is freed may be fetched for a later reader of the stage.
        runs &= there & (needed | arrays.offloadable[value])
    freed = np.full(len(user), -1, dtype=np.int64)
    kind = columns.CONTINUOUS if form.tight else columns.INTEGER
    freed[runs] = columns.add(kind, np.ones(int(runs.sum())))
    return freed


def _last_chained(space: StageSpace, stage: int, form: Formulation) -> int:
    """Returns the last event of a stage whose budget row needs U; -1 without one.

    The stage's own node, which always runs last, has a row without U.
    """
    events = np.flatnonzero(space.binding[stage])
    if form.tight and space.frontier_advancing:
        events = events[events != stage]
    return int(events.max(initial=-1))


def tight_rows(
    rows: Rows,
    arrays: ReadArrays,
    space: StageSpace,
    columns: Columns,
    stage: int,
    freed: np.ndarray,
    fetches: Fetches,
) -> None:
    value, user = arrays.edges.value, arrays.edges.user
    recompute, retain, following = columns.recompute[stage], columns.retain[stage], columns.retain[stage + 1]
    reads = space.recompute_upper[stage][user] & ~arrays.diagonal
    row = np.cumsum(reads) - 1
    pair = reads[arrays.after]
    rows.add(  # (a)
        np.full(int(reads.sum()), -np.inf),
        np.zeros(int(reads.sum())),
        (row[reads], recompute[user[reads]], 1.0),
        (row[reads], retain[value[reads]], -1.0),
        (row[reads], recompute[arrays.producer[value[reads]]], -1.0),
        (row[reads], fetches.read[reads], -1.0),
        (row[arrays.after[pair]], freed[arrays.before[pair]], 1.0),
        (row[arrays.after[pair]], fetches.read[arrays.before[pair]], -1.0),
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
        (row[index], recompute[arrays.producer[index]], -1.0),
        (row[value[edge]], freed[edge], 1.0),
        (row[value[edge]], fetches.read[edge], -1.0),
        (row[index], fetches.early[index], -1.0),
    )
    index = np.flatnonzero(freed >= 0)
    row = np.arange(len(index))
    rows.add(  # (c)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, freed[index], 1.0),
        (row, recompute[user[index]], -1.0),
    )
    index = np.flatnonzero((retain >= 0) & (recompute[arrays.producer] >= 0))
    row = np.arange(len(index))
    rows.add(  # (d)
        np.full(len(index), -np.inf),
        np.ones(len(index)),
        (row, retain[index], 1.0),
        (row, recompute[arrays.producer[index]], 1.0),
    )


def fetch_rows(
    rows: Rows,
    arrays: ReadArrays,
    columns: Columns,
    stage: int,
    freed: np.ndarray,
    fetches: Fetches,
    out: np.ndarray,
) -> None:
    """Rows (e) and (f) of transfers.py; `out` has the columns of OUT, [num_values]."""
    value, user = arrays.edges.value, arrays.edges.user
    recompute, retain = columns.recompute[stage], columns.retain[stage]
    edge, early = np.flatnonzero(fetches.read >= 0), np.flatnonzero(fetches.early >= 0)
    fetched = np.append(fetches.read[edge], fetches.early[early])
    subject = np.append(value[edge], early)
    row = np.arange(len(fetched))
    none = np.zeros(len(fetched))
    runs = np.append(recompute[user[edge]], np.full(len(early), recompute[stage]))
    for limit in (runs, out[subject]):  # (e)
        rows.add(np.full(len(fetched), -np.inf), none, (row, fetched, 1.0), (row, limit, -1.0))
    place = np.full(len(value), -1, dtype=np.int64)
    place[edge] = np.arange(len(edge))
    pair = place[arrays.after] >= 0
    place_early = np.full(len(arrays.producer), -1, dtype=np.int64)
    place_early[early] = np.arange(len(early)) + len(edge)
    other = np.flatnonzero(place_early[value] >= 0)
    rows.add(  # (f)
        np.full(len(fetched), -np.inf),
        np.ones(len(fetched)),
        (row, fetched, 1.0),
        (row, retain[subject], 1.0),
        (row, recompute[arrays.producer[subject]], 1.0),
        (place[arrays.after[pair]], fetches.read[arrays.before[pair]], 1.0),
        (place[arrays.after[pair]], freed[arrays.before[pair]], -1.0),
        (place_early[value[other]], fetches.read[other], 1.0),
        (place_early[value[other]], freed[other], -1.0),
    )


def paper_rows(
    rows: Rows, arrays: ReadArrays, space: StageSpace, columns: Columns, stage: int, freed: np.ndarray
) -> None:
    value, user = arrays.edges.value, arrays.edges.user
    recompute, retain, following = columns.recompute[stage], columns.retain[stage], columns.retain[stage + 1]
    index = np.flatnonzero(space.recompute_upper[stage][user] & ~arrays.diagonal)
    row = np.arange(len(index))
    rows.add(  # (1b)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, recompute[user[index]], 1.0),
        (row, retain[value[index]], -1.0),
        (row, recompute[arrays.producer[value[index]]], -1.0),
    )
    index = np.flatnonzero(following >= 0)
    row = np.arange(len(index))
    rows.add(  # (1c)
        np.full(len(index), -np.inf),
        np.zeros(len(index)),
        (row, following[index], 1.0),
        (row, retain[index], -1.0),
        (row, recompute[arrays.producer[index]], -1.0),
    )
    index = np.flatnonzero(freed >= 0)
    row = np.cumsum(freed >= 0) - 1
    later = (freed[arrays.before] >= 0) & (recompute[user[arrays.after]] >= 0)
    hazards = (
        (row[index], recompute[user[index]], -1.0),
        (row[index], following[value[index]], 1.0),
        (row[arrays.before[later]], recompute[user[arrays.after[later]]], 1.0),
    )
    most = 2.0 + np.bincount(row[arrays.before[later]], minlength=len(index))
    rows.add(np.zeros(len(index)), np.full(len(index), np.inf), (row[index], freed[index], 1.0), *hazards)  # (7b)
    rows.add(np.full(len(index), -np.inf), most - 1, (row[index], freed[index], most), *hazards)  # (7c)


def budget_rows(
    usage: Rows,
    rows: Rows,
    arrays: ReadArrays,
    space: StageSpace,
    columns: Columns,
    stage: int,
    freed: np.ndarray,
    fetches: Fetches,
    units: Units,
    form: Formulation,
) -> None:
    """Adds the budget rows of the events that are `binding`, and defines U up to the last event that needs it."""
    last = _last_chained(space, stage, form)
    if last < stage and space.binding[stage, stage]:
        _last_node_row(rows, arrays, columns, stage, freed, units)
    nodes = np.flatnonzero(space.recompute_upper[stage])
    nodes = nodes[nodes <= last]
    if not len(nodes):
        return
    size = arrays.graph.sizes_bytes / units.unit_bytes
    position = np.full(len(arrays.graph.nodes), -1, dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    takes = np.bincount(arrays.edges.user[arrays.takeover & (freed >= 0)], minlength=len(arrays.graph.nodes)) > 0
    plain = ~takes[nodes] & (arrays.workspace[nodes] == 0)
    column = columns.add(columns.USAGE, np.where(space.binding[stage][nodes] & plain, units.limit, np.inf))
    row = np.arange(len(nodes))
    made = np.flatnonzero(position[arrays.producer] >= 0)
    retained = np.flatnonzero(columns.retain[stage] >= 0)
    after = np.where(position[arrays.edges.user] >= 0, position[arrays.edges.user] + 1, 0)
    frees = np.flatnonzero((freed >= 0) & (after > 0) & (after < len(nodes)))
    there = np.flatnonzero((fetches.read >= 0) & (position[arrays.edges.user] >= 0))
    start = np.zeros(len(nodes))
    start[0] = arrays.graph.resident_bytes / units.unit_bytes
    usage.add(  # (2), (3)
        start,
        start,
        (row, column, 1.0),
        (row[1:], column[:-1], -1.0),
        (position[arrays.producer[made]], columns.recompute[stage][arrays.producer[made]], -size[made]),
        (np.zeros(len(retained), dtype=np.int64), columns.retain[stage][retained], -size[retained]),
        (after[frees], freed[frees], size[arrays.edges.value[frees]]),
        (position[arrays.edges.user[there]], fetches.read[there], -size[arrays.edges.value[there]]),
    )
    for node in nodes[space.binding[stage][nodes] & ~plain]:
        workspace = arrays.workspace[node] / units.unit_bytes
        entries = [(column[position[node]], 1.0), (columns.recompute[stage, node], workspace)]
        _limited(rows, arrays, columns, int(node), entries, units.limit, freed, units)


def _last_node_row(
    rows: Rows, arrays: ReadArrays, columns: Columns, stage: int, freed: np.ndarray, units: Units
) -> None:
    """Adds the budget row of the stage's own node, which runs last.

    Its values and all values that are retained into the next stage are then in memory.
    """
    node = arrays.graph.nodes[stage]
    own = [*node.inputs, *node.outputs]
    held_bytes = arrays.graph.resident_bytes + node.workspace_bytes + int(arrays.graph.sizes_bytes[own].sum())
    there = columns.retain[stage + 1] >= 0
    there[own] = False
    others = np.flatnonzero(there)
    sizes = arrays.graph.sizes_bytes[others] / units.unit_bytes
    entries = list(zip(columns.retain[stage + 1][others], sizes, strict=True))
    _limited(rows, arrays, columns, stage, entries, units.limit - held_bytes / units.unit_bytes, freed, units)


def _limited(
    rows: Rows,
    arrays: ReadArrays,
    columns: Columns,
    node: int,
    entries: list[tuple[int, float]],
    limit: float,
    freed: np.ndarray,
    units: Units,
) -> None:
    """Adds a row that limits the sum of coefficient * column, less the input storage that is taken over."""
    sources = freed[arrays.takeover & (arrays.edges.user == node) & (freed >= 0)]
    if len(sources):
        (taken,) = columns.add(columns.CONTINUOUS, np.ones(1))
        first_bytes = arrays.graph.sizes_bytes[arrays.graph.nodes[node].outputs[0]]
        entries = [*entries, (taken, -first_bytes / units.unit_bytes)]
        signs = np.append(-np.ones(len(sources)), 1.0)
        row = np.zeros(len(sources) + 1, dtype=np.int64)
        rows.add(np.full(1, -np.inf), np.zeros(1), (row, np.append(sources, taken), signs))
    column = np.array([column for column, _ in entries], dtype=np.int64)
    coefficient = np.array([coefficient for _, coefficient in entries])
    rows.add(np.full(1, -np.inf), np.full(1, limit), (np.zeros(len(entries), dtype=np.int64), column, coefficient))
