"""The columns and rows with which Checkmate's MILP offloads: a value in host memory may be fetched instead of computed.

As in POET (Patil et al., ICML 2022), copies out and back are decided beside R and S; a fetch is for a reader (stage,
value, user), or early: with the stage's own node, for a later stage. OUT (value) says that it is copied out, once.

(e) FETCH[t,v,k] <= R[t,k], and FETCH <= OUT[v].
(f) S[t,v] + R[t,p] + sum of FETCH[t,v,k'] over k' <= k - sum of FREE[t,v,k'] over k' < k <= 1: one copy at a time.

POET minimizes energy; here it is time, as `time_schedule` has it. BEGIN[t], when stage t begins, counts the nodes that
ran and WAIT[t], for which its own node waits. BACK[t] is the time at which the lane back has made all copies up to
stage t, SENT[v] the time at which the lane out has copied v. In the simulator, every copy begins and ends at a
position; here, only the stages of its begin and of its reader are known. So the rows are a relaxation:

(g) BACK[t] >= BEGIN[t] + the fetches of stage t; BACK[t] >= BACK[t-1] + these; the step ends after all.
(h) SENT[v] >= the end of v's first computation + OUT[v]'s cost; SENT[v] >= SENT of the value before + this.
(i) A value fetched in stage t for stage t' is there before node t' begins, not sooner than BEGIN[t], BACK[t-1] and
    SENT[v] allow.
(j) Where the first copy of v is not retained into stage t, node t begins after SENT[v]. So does node t - 1 if it does
    not read v and nothing but node t can run in stage t. A copy that is held beside node t - 1, but not beside node t,
    may then be retained into stage t, where it takes no memory.
"""

from dataclasses import dataclass

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, from_stages
from checkmate_tf.solvers.checkmate.rows import Columns, Fetches, ReadArrays, Rows
from checkmate_tf.solvers.offloading.transfers import drop_unread_fetches

_LARGEST_TIME = 1e4  # in the units of the model's columns of time, of a node or a copy
_Entry = tuple[np.ndarray, float]
"""Columns, -1 for one that is 0, and the coefficient of each."""


@dataclass(frozen=True)
class FetchColumns:
    """The columns of FETCH, one an entry, int64 [num_fetches]: of the model, its stage, value and position's node.

    `reader` is the stage before whose own node the copy is there at the latest; the number of nodes for the end.
    """

    column: np.ndarray
    stage: np.ndarray
    value: np.ndarray
    node: np.ndarray
    reader: np.ndarray


def list_fetch_columns(arrays: ReadArrays, fetches: list[Fetches]) -> FetchColumns:
    """Lists the columns of FETCH of all stages."""
    users, num_nodes = arrays.graph.arrays.users, len(arrays.graph.nodes)
    parts = []
    for stage, each in enumerate(fetches):
        edge, early = np.flatnonzero(each.read >= 0), np.flatnonzero(each.early >= 0)
        column = np.append(each.read[edge], each.early[early])
        value = np.append(arrays.edges.value[edge], early)
        node = np.append(arrays.edges.user[edge], np.full(len(early), stage))
        readers = [users.index[users.start[one] : users.start[one + 1]] for one in early.tolist()]
        following = [min(those[those > stage].tolist(), default=num_nodes) for those in readers]
        reader = np.append(np.full(len(edge), stage), following)
        parts.append((column, np.full(len(column), stage), value, node, reader))
    return FetchColumns(*(np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True)))


def time_unit(graph: Graph) -> float:
    """Returns how many cost units are one unit of the columns of time."""
    copies = [max(int(value.offload_cost or 0), int(value.fetch_cost or 0)) for value in graph.values]
    return max(1.0, max(int(graph.costs.max()), *copies) / _LARGEST_TIME)


def time_rows(rows: Rows, columns: Columns, arrays: ReadArrays, out: np.ndarray, fetched: FetchColumns) -> np.ndarray:
    """Adds (g) to (j); returns the columns of WAIT, int64 [num_stages + 1], the last one of the step's end."""
    return _Lanes(rows, columns, arrays, out, fetched).add()


class _Lanes:
    """What the rows of time are made of; `begin[t]` is the column of BEGIN[t], of the step's end for the last."""

    def __init__(
        self, rows: Rows, columns: Columns, arrays: ReadArrays, out: np.ndarray, fetched: FetchColumns
    ) -> None:
        graph = arrays.graph
        unit, num_nodes = time_unit(graph), len(graph.nodes)
        self.rows, self.columns, self.arrays, self.out, self.fetched = rows, columns, arrays, out, fetched
        self.costs = graph.costs / unit
        self.out_cost = np.array([int(value.offload_cost or 0) for value in graph.values]) / unit
        self.back_cost = np.array([int(value.fetch_cost or 0) for value in graph.values]) / unit
        self.offloadable = [value for node in graph.nodes for value in node.outputs if out[value] >= 0]
        self.wait = columns.add(columns.CONTINUOUS, np.full(num_nodes + 1, np.inf))
        self.begin = np.append(-1, columns.add(columns.CONTINUOUS, np.full(num_nodes + 1, np.inf)))
        self.back = columns.add(columns.CONTINUOUS, np.full(num_nodes, np.inf))
        self.sent = np.full(len(graph.values), -1, dtype=np.int64)
        self.sent[self.offloadable] = columns.add(columns.CONTINUOUS, np.full(len(self.offloadable), np.inf))
        self.back_queue = np.array(
            [self.back_cost[fetched.value[fetched.stage <= stage]].sum() for stage in range(num_nodes)]
        )
        self.runs_alone = (columns.recompute >= 0).sum(axis=1) == 1
        # The lane out is never longer behind the end of a value's first computation.
        self.queue = dict(zip(self.offloadable, np.cumsum(self.out_cost[self.offloadable]).tolist(), strict=True))

    def add(self) -> np.ndarray:
        for stage in range(len(self.costs)):
            self._count_nodes(stage)
            self._copy_back(stage)
        end = len(self.costs) + 1
        self._at_least(0.0, (self.begin[end], 1.0), (self.begin[end - 1], -1.0), (self.wait[-1], -1.0), equal=True)
        self._at_least(0.0, (self.begin[end], 1.0), (self.back[-1], -1.0))
        before = -1
        for value in self.offloadable:
            self._copy_out(value, before)
            before = self.sent[value]
        for entry in range(len(self.fetched.column)):
            self._be_there(entry)
        return self.wait

    def _at_least(
        self, least: float, *entries: tuple[np.ndarray | int, np.ndarray | float], equal: bool = False
    ) -> None:
        column = np.concatenate([np.atleast_1d(part).astype(np.int64) for part, _ in entries])
        coefficient = np.concatenate(
            [np.broadcast_to(number, np.shape(np.atleast_1d(part))) for part, number in entries]
        )
        most = np.full(1, least if equal else np.inf)
        self.rows.add(np.full(1, least), most, (np.zeros(len(column), dtype=np.int64), column, coefficient))

    def _own_begins(self, stage: int) -> tuple[int, float]:
        """Returns a column and the constant to subtract from it for the time at which a stage's own node begins.

        For the stage after the last, that is the end of the step.
        """
        return int(self.begin[stage + 1]), self.costs[stage] if stage < len(self.costs) else 0.0

    def _count_nodes(self, stage: int) -> None:
        run = self.columns.recompute[stage]
        self._at_least(
            0.0, (self.begin[stage + 1], 1.0), (self.begin[stage], -1.0), (self.wait[stage], -1.0), (run, -self.costs),
            equal=True,
        )  # fmt: skip

    def _copy_back(self, stage: int) -> None:  # (g)
        those = self.fetched.stage == stage
        copies = self.fetched.column[those], -self.back_cost[self.fetched.value[those]]
        own, constant = self._own_begins(stage)
        read = those & (self.fetched.reader == stage)
        now = self.fetched.column[read], -self.back_cost[self.fetched.value[read]]
        self._at_least(0.0, (self.back[stage], 1.0), (self.begin[stage], -1.0), copies)
        self._at_least(constant, (own, 1.0), (self.begin[stage], -1.0), now)
        if stage:
            self._at_least(0.0, (self.back[stage], 1.0), (self.back[stage - 1], -1.0), copies)

    def _copy_out(self, value: int, before: int) -> None:  # (h), (j)
        producer = int(self.arrays.producer[value])
        computed, cost, queue = int(self.begin[producer + 1]), self.out_cost[value], self.queue[value]
        self._at_least(0.0, (self.sent[value], 1.0), (computed, -1.0), (self.out[value], -cost))
        self._at_least(0.0, (self.sent[value], 1.0), (before, -1.0), (self.out[value], -cost))
        self._at_least(0.0, (self.begin[-1], 1.0), (self.sent[value], -1.0))
        out, users = int(self.out[value]), self.arrays.graph.arrays.users
        readers = users.index[users.start[value] : users.start[value + 1]]
        for stage in range(producer + 1, len(self.costs)):
            earlier = self.runs_alone[stage] and stage - 1 > producer and stage - 1 not in readers
            own, constant = self._own_begins(stage - 1 if earlier else stage)
            retained = int(self.columns.retain[stage][value])
            self._at_least(constant, (own, 1.0), (computed, -1.0), (out, -cost), (retained, cost))
            self._at_least(constant - queue, (own, 1.0), (self.sent[value], -1.0), (out, -queue), (retained, queue))

    def _be_there(self, entry: int) -> None:  # (i)
        fetched = self.fetched
        column, stage, value = (int(part[entry]) for part in (fetched.column, fetched.stage, fetched.value))
        own, constant = self._own_begins(int(fetched.reader[entry]))
        computed = int(self.begin[int(self.arrays.producer[value]) + 1])
        back, out, queue = self.back_cost[value], self.out_cost[value], self.queue[value]
        self._at_least(constant, (own, 1.0), (self.begin[stage], -1.0), (column, -back))
        self._at_least(constant, (own, 1.0), (computed, -1.0), (column, -back - out))
        self._at_least(constant - queue, (own, 1.0), (self.sent[value], -1.0), (column, -back - queue))
        queue = self.back_queue[stage - 1]
        self._at_least(constant - queue, (own, 1.0), (self.back[stage - 1], -1.0), (column, -back - queue))


def decode(graph: Graph, recompute: np.ndarray, retain: np.ndarray, chosen: list[tuple[int, int, int]]) -> Schedule:
    """Returns the schedule of an R and an S, bool, and of fetches (stage, value, node at whose position).

    First copies of offloaded values are held as long as S retains them.
    """
    order = from_stages(graph, recompute).order
    stages, nodes = np.nonzero(recompute)
    position_of = np.full(recompute.shape, -1, dtype=np.int64)
    position_of[stages, nodes] = np.arange(len(order))
    fetches = sorted((int(position_of[stage, node]), value) for stage, value, node in chosen)
    read = drop_unread_fetches(graph, Schedule(order, tuple(fetches))).fetches
    touched = {value: [stage for stage, other, _ in chosen if other == value] for _, value in read}
    offloads = []
    for value, fetch_stages in touched.items():
        producer = int(graph.arrays.producer[value])
        again = np.flatnonzero(recompute[producer + 1 :, producer]) + producer + 1
        last = min([*fetch_stages, *again.tolist()])
        held = producer
        while held < last and retain[held + 1, value]:
            held += 1
        if held > producer:
            offloads.append((int(position_of[held - 1, held - 1]), value))
    return Schedule(order, read, tuple(sorted(offloads)))
