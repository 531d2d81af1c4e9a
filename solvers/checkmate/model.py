"""Builds Checkmate's MILP (9), and its form (1), as sparse matrices with numpy. No back end is named here.

The columns are R (stage, node), S (boundary, value), FREE (stage, value, user) and U (stage, node). There is a column
of S for each value, not for each node, so that the outputs of a node are retained separately. Costs are those of
repeats only, and bytes are in units of `memory_unit_bytes`.

The paper's form has the rows (1b), (1c), (2) and (3), and the rows (7b) and (7c) for every FREE off the diagonal (4.8).
Nodes of several values do not occur in the paper; they have (7b) and (7c) on the diagonal, too.

The tight form is the default. It has the same integer points, except that nothing is retained without need. In stage t,
for value v of node p, with its users k:

(a) sum of FREE[t,v,k'] over users k' < k, + R[t,k] <= S[t,v] + R[t,p]: k finds v, which is computed or retained and not
yet freed.
(b) sum of FREE[t,v,k'] + S[t+1,v] <= S[t,v] + R[t,p]: a value retained into the next stage is there and has not been
freed.
(c) FREE[t,v,k] <= R[t,k].
(d) S[t,v] + R[t,p] <= 1: a value that is computed again in the stage need not be retained into it.

(a), (b) and (c) imply (1b), (1c) and (7c); (7b) only forbids holding values that could be freed. U follows (2) and (3)
over the nodes that can run in the stage. There is a budget row only where the budget can bind according to the stage
space. Nodes of several values keep their FREE on the diagonal, because one of the values may have no use. An in-place
node may take over the storage of an equally large input that is freed right after it.

If values can be offloaded, rows (a) and (b) also count fetched copies, and costs include the time for which nodes wait
for copies (transfers.py). Only the tight form has these columns.
"""

import math
import time
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from scipy import sparse
from scipy.sparse import linalg as sparse_linalg

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, from_stages, to_stages
from checkmate_tf.solvers.checkmate.rows import (
    Columns,
    Formulation,
    ReadArrays,
    Rows,
    Table,
    Units,
    budget_rows,
    fetch_columns,
    fetch_rows,
    free_columns,
    paper_rows,
    tight_rows,
)
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkmate.stage_space import StageSpace
from checkmate_tf.solvers.checkmate.transfers import FetchColumns, decode, list_fetch_columns, time_rows, time_unit
from checkmate_tf.solvers.search import check_memory

# The budget in the model's units of memory: far above the back ends' tolerances, and far below the digits they lose.
_BUDGET_UNITS = 1e5
_ROUNDING = 1e-7  # largest rounding error of a row of constants, in the units of the row


@dataclass(frozen=True)
class StageModel:
    """A program: minimize `fixed_cost + cost @ x`, where `row_lower <= matrix @ x <= row_upper`, `lower <= x <= upper`.

    Only columns with a choice are in it. The last `num_usage` columns are U, in the order of events, and the last
    `num_usage` rows define them.

    Args:
        cost: in the graph's cost units, float [num_columns].
        integer: whether a column has to be whole, bool [num_columns].
        recompute_column: the column of R[t, i], -1 if it has no choice, int32 [num_stages, num_nodes].
        retain_column: likewise of S, int32 [num_stages + 1, num_values].
        most_usage: upper limit of every U, in units of memory.
        solvable: False if the entries without a choice already break a row.
        fetched: the columns of FETCH; empty if no value can be offloaded.
        cost_step: the costs of two schedules differ by a multiple of it.
        most_time: the longest that a copy can wait for other copies, in cost units; 0 if no value can be offloaded.
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
    fetched: FetchColumns
    cost_step: int
    most_time: int

    def recompute(self, x: np.ndarray) -> np.ndarray:
        """Returns R of a point, float [num_stages, num_nodes]."""
        chosen = x[self.recompute_column] if len(x) else 0.0
        return np.where(self.recompute_column >= 0, chosen, self.space.recompute_lower)

    def retain(self, x: np.ndarray) -> np.ndarray:
        """Returns S of a point, float [num_stages + 1, num_values]."""
        chosen = x[self.retain_column] if len(x) else 0.0
        return np.where(self.retain_column >= 0, chosen, self.space.retain_lower)

    def schedule(self, graph: Graph, x: np.ndarray) -> Schedule:
        """Returns the schedule of a point."""
        recompute = self.recompute(x) > 0.5
        if not len(self.fetched.column):
            return from_stages(graph, recompute)
        taken = x[self.fetched.column] > 0.5
        parts = (part[taken].tolist() for part in (self.fetched.stage, self.fetched.value, self.fetched.node))
        return decode(graph, recompute, self.retain(x) > 0.5, list(zip(*parts, strict=True)))

    def point(self, graph: Graph, schedule: Schedule) -> np.ndarray | None:
        """Returns the columns of R and S for a schedule, nan for the others; None if the stage space excludes it."""
        try:
            stages = to_stages(graph, schedule)
        except ScheduleError:
            return None
        recompute = stages.recompute.copy()
        # Where everything fits in a run of stages, recomputations move to its start, and held values stay to its end.
        for stage in np.flatnonzero(self.space.merged)[::-1]:
            recompute[stage - 1, :stage] |= recompute[stage, :stage]
            recompute[stage, :stage] = False
            recompute[stage - 1, stage - 1] = True
        if (recompute & ~self.space.recompute_upper).any():
            return None
        retain = np.zeros(self.space.retain_lower.shape, dtype=bool)
        retain[:-1] = to_stages(graph, from_stages(graph, recompute)).retain
        retain |= self.space.retain_lower
        producer = graph.arrays.producer
        for stage in np.flatnonzero(self.space.merged):
            retain[stage] = (retain[stage - 1] | recompute[stage - 1, producer]) & self.space.retain_upper[stage]
        x = np.full(len(self.cost), np.nan)
        for columns, entries in ((self.recompute_column, recompute), (self.retain_column, retain)):
            there = columns >= 0
            x[columns[there]] = entries[there]
        return x

    def without_usage(self) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
        """Returns (matrix, row_lower, row_upper) over the columns other than U, with U replaced by its definition."""
        if not self.num_usage:
            return self.matrix, self.row_lower, self.row_upper
        others = len(self.cost) - self.num_usage
        kept = self.matrix.shape[0] - self.num_usage
        # The matrix is lower triangular: U is a running sum of `change` over the events of a stage.
        triangle = sparse.csc_array(self.matrix[kept:, others:])
        change = sparse.csc_array(self.matrix[kept:, :others])
        start = np.atleast_1d(sparse_linalg.spsolve(triangle, self.row_lower[kept:]))
        running = -sparse.csr_array(sparse.csc_array(sparse_linalg.spsolve(triangle, change)).reshape(change.shape))
        uses = self.matrix[:kept, others:]
        limited = np.isfinite(self.upper[others:])
        matrix = sparse.vstack([self.matrix[:kept, :others] + uses @ running, running[limited]])
        shift = uses @ start
        lower = np.concatenate([self.row_lower[:kept] - shift, np.full(int(limited.sum()), -np.inf)])
        upper = np.concatenate([self.row_upper[:kept] - shift, (self.upper[others:] - start)[limited]])
        return sparse.csr_array(matrix), lower, upper


def build_model(
    graph: Graph,
    budget_bytes: int,
    space: StageSpace,
    *,
    form: Formulation | None = None,
    deadline_s: float = math.inf,
    memory_limit_bytes: float = math.inf,
) -> StageModel:
    """Builds the MILP over a stage space.

    Raises TimeoutError if that takes until after `deadline_s`, and MemoryError if it would take more memory than the
    limit.
    """
    form = form or Formulation()
    columns, rows, usage = Columns.of(space), Rows(), Rows()
    units = Units(budget_bytes, max(1.0, budget_bytes / _BUDGET_UNITS))
    arrays = ReadArrays.of(graph, form)
    num_stages = space.recompute_upper.shape[0]
    out = np.full(len(graph.values), -1, dtype=np.int64)
    out[arrays.offloadable] = columns.add(columns.CONTINUOUS, np.ones(int(arrays.offloadable.sum())))
    fetches = []
    for stage in range(num_stages):
        _check_time(deadline_s, num_stages, stage)
        check_memory(SETTINGS.entry_bytes * (rows.num_entries + usage.num_entries), memory_limit_bytes)
        freed = free_columns(arrays, space, columns, stage, form)
        fetches.append(fetch_columns(arrays, space, columns, stage))
        if form.tight:
            tight_rows(rows, arrays, space, columns, stage, freed, fetches[-1])
        else:
            paper_rows(rows, arrays, space, columns, stage, freed)
        fetch_rows(rows, arrays, columns, stage, freed, fetches[-1], out)
        budget_rows(usage, rows, arrays, space, columns, stage, freed, fetches[-1], units, form)
    if not space.frontier_advancing:  # (1e)
        terminal = columns.recompute[:, -1]
        rows.add(np.ones(1), np.full(1, np.inf), (np.zeros(len(terminal), dtype=np.int64), terminal, 1.0))
    fetched = list_fetch_columns(arrays, fetches)
    waits = np.zeros(0, dtype=np.int64)
    if len(fetched.column):
        waits = time_rows(rows, columns, arrays, out, fetched)
    return _without_fixed(graph, space, columns, rows, usage, fetched, waits, units.unit_bytes, deadline_s)


def _check_time(deadline_s: float, num_stages: int, built: int) -> None:
    if time.perf_counter() > deadline_s:
        raise TimeoutError(
            f"only {built} of {num_stages} stages were built early enough for a library to solve the program"
        )


def _without_fixed(
    graph: Graph,
    space: StageSpace,
    columns: Columns,
    rows: Rows,
    usage: Rows,
    fetched: FetchColumns,
    waits: np.ndarray,
    unit_bytes: float,
    deadline_s: float,
) -> StageModel:
    """Returns the model without columns that have no choice and without rows that cannot be broken.

    Raises TimeoutError as `build_model` does.
    """
    num_stages = space.recompute_upper.shape[0]
    lower, upper, kind = (np.concatenate(part) for part in (columns.lower, columns.upper, columns.kind))
    cost = np.zeros(columns.count)
    stages, nodes = np.nonzero(space.recompute_upper)
    cost[columns.recompute[stages, nodes]] = graph.costs[nodes]
    cost[waits] = time_unit(graph)
    is_usage = kind == columns.USAGE
    fixed = (lower == upper) & ~is_usage
    left = np.concatenate([np.flatnonzero(~fixed & ~is_usage), np.flatnonzero(is_usage)])
    constant = np.where(fixed, lower, 0.0)
    plain, definitions = rows.table(columns.count), usage.table(columns.count)
    table = Table(
        sparse.csr_array(sparse.vstack([plain.matrix, definitions.matrix])),
        np.concatenate([plain.lower, definitions.lower]),
        np.concatenate([plain.upper, definitions.upper]),
    )
    _check_time(deadline_s, num_stages, num_stages)
    shift = table.matrix @ constant
    matrix, row_lower, row_upper = table.matrix[:, left], table.lower - shift, table.upper - shift
    most = matrix.maximum(0) @ upper[left] + matrix.minimum(0) @ lower[left]
    least = matrix.maximum(0) @ lower[left] + matrix.minimum(0) @ upper[left]
    breakable = (most > row_upper) | (least < row_lower)
    breakable[rows.count :] = True
    _check_time(deadline_s, num_stages, num_stages)
    renumber = np.full(columns.count + 1, -1, dtype=np.int32)
    renumber[left] = np.arange(len(left), dtype=np.int32)
    steps = np.unique(cost[left]) if not len(waits) else graph.costs
    copies = [(int(value.offload_cost or 0), int(value.fetch_cost or 0)) for value in graph.values if len(waits)]
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
        # A value counts at most twice: as retained into a stage and as computed in it.
        most_usage=(graph.resident_bytes + 2 * int(graph.sizes_bytes.sum())) / unit_bytes,
        fetched=replace(fetched, column=renumber[fetched.column]),
        cost_step=max(1, math.gcd(*(int(step) for step in steps), *chain.from_iterable(copies))),
        most_time=sum(out for out, _ in copies) + sum(copies[value][1] for value in fetched.value.tolist()),
        solvable=bool((least <= row_upper + _ROUNDING).all() and (most >= row_lower - _ROUNDING).all()),
    )
