"""Defines schedules: the sequence of computed nodes, its retention intervals, and its R and S matrices."""

import bisect
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from checkmate_tf.errors import ScheduleError, quote
from checkmate_tf.graph import Graph
from checkmate_tf.graph_arrays import Rows

Order = Literal["fixed", "free"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The node computed at each position. A repeat is a rematerialization.

    Frees are not stored: a value is retained from the position that computes it to its last use before it is next
    computed, and graph outputs from their last computation to the end.

    Args:
        order: the node at each position.
        fetches: pairs (position, value), in ascending order. At the position, a copy of the value comes back from host
            memory or a file, to which the value was copied once, when it was first computed (FastSA, appendix B.3). The
            copy takes memory from that position on, and its first reader, there or later, waits for it. An earlier
            fetch hides the copying, but takes memory for longer. A fetch begins a copy just as a computation does.
        offloads: pairs (position, value), in ascending order, of fetched values. The first copy is held up to that
            position, so that copying it out need not end sooner. By default, it has to end with the last reader of the
            first copy.

    Example:

    >>> len(Schedule((0, 1, 2, 0, 3)))  # node 0 is computed twice
    5
    """

    order: tuple[int, ...]
    fetches: tuple[tuple[int, int], ...] = ()
    offloads: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(order: Iterable[int]) -> "Schedule":
        """Returns a schedule of any integers, including NumPy's."""
        return Schedule(tuple(int(node) for node in order))

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class Retention:
    """The retention intervals of a schedule, one for each copy of a value, all int64 [num_copies].

    `start` is the position that computes the copy. `end` is the last position that needs it (inclusive): `start` itself
    if nothing reads the copy, and the last position for graph outputs. `fetched`, bool, marks copies from host memory.
    Sorted by value, then by start.
    """

    value: np.ndarray
    start: np.ndarray
    end: np.ndarray
    fetched: np.ndarray


@dataclass(frozen=True)
class StageMatrices:
    """Checkmate's R and S (section 4.2) of a schedule whose first computations are in the input order.

    Stage t ends with the first computation of node t. `recompute` is R, bool [num_nodes, num_nodes]: node i is computed
    in stage t. `retain` is S, bool [num_nodes, num_values]: value i is retained from stage t - 1 into stage t. S has a
    column for each value, not for each node, because the outputs of a node are retained separately.
    """

    recompute: np.ndarray
    retain: np.ndarray


def check_positions(graph: Graph, schedule: Schedule) -> np.ndarray:
    """Returns the nodes of a schedule, int64 [num_positions].

    Raises ScheduleError if it names nodes or values that are not in the graph. It does not check whether the schedule
    computes the graph; `check_schedule` does.
    """
    _check_parts(schedule)
    try:
        order = np.asarray(schedule.order, dtype=np.int64).reshape(len(schedule.order))
        pairs = [*schedule.fetches, *schedule.offloads]
        transfers = np.asarray(pairs, dtype=np.int64).reshape(len(pairs), 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScheduleError(f"order, fetches and offloads of a schedule must be of whole numbers: {error}") from error
    limits = (order, len(graph.nodes)), (transfers[:, 0], len(order)), (transfers[:, 1], len(graph.values))
    if not len(order) or any(((indices < 0) | (indices >= limit)).any() for indices, limit in limits):
        raise ScheduleError(
            f"the schedule has a position or a fetch outside of the graph's {len(graph.nodes)} nodes and "
            f"{len(graph.values)} values, or no position at all"
        )
    return order


def check_schedule(graph: Graph, schedule: Schedule, *, order: Order = "free") -> None:
    """Raises ScheduleError, naming position and node, unless `schedule` computes `graph`.

    Every node has to be computed at least once, non-recomputable nodes exactly once, and every input before it is read.
    With order="fixed", first computations have to be in the input order. Only values that can be offloaded are fetched,
    after they are computed, and for a position that reads them before their next copy.
    """
    num_nodes = len(graph.nodes)
    _check_parts(schedule)
    _check_pairs(graph, schedule)
    computed = [False] * num_nodes
    latest = -1
    for position, node in enumerate(schedule.order):
        if not 0 <= node < num_nodes:
            raise ScheduleError(f"position {position} computes node {node}; the graph has nodes 0 to {num_nodes - 1}")
        place = f"position {position} (node {node}, {graph.nodes[node].name})"
        if computed[node]:
            if not graph.nodes[node].recomputable:
                raise ScheduleError(f"{place} computes a node that is not recomputable a second time")
            continue
        for before in graph.predecessors[node]:
            if not computed[before]:
                raise ScheduleError(f"{place} reads node {before} ({graph.nodes[before].name}) before it is computed")
        if order == "fixed" and node < latest:
            raise ScheduleError(f"{place} is first computed after node {latest}, against the fixed input order")
        computed[node] = True
        latest = node
    if not all(computed):
        node = computed.index(False)
        raise ScheduleError(f"node {node} ({graph.nodes[node].name}) is never computed")
    _check_transfers(graph, schedule)


def _check_parts(schedule: Schedule) -> None:
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule is {quote(schedule)}; it must be a Schedule, such as load_schedule returns")
    if not all(isinstance(part, (tuple, list)) for part in (schedule.order, schedule.fetches, schedule.offloads)):
        raise ScheduleError("order, fetches and offloads of a schedule must be tuples")


def _check_pairs(graph: Graph, schedule: Schedule) -> None:
    for pairs, name in ((schedule.fetches, "fetches"), (schedule.offloads, "offloads")):
        if list(pairs) != sorted(set(pairs)):
            raise ScheduleError(f"{name} are not in ascending order, each once: sort them")
    for position, value in (*schedule.fetches, *schedule.offloads):
        if not 0 <= position < len(schedule) or not 0 <= value < len(graph.values):
            raise ScheduleError(
                f"position {position} fetches or offloads value {value}: there is no such position or value"
            )
        if graph.values[value].fetch_cost is None:
            raise ScheduleError(
                f"position {position} fetches value {value} ({graph.values[value].name}), which cannot be offloaded: "
                "it has no fetch_cost and offload_cost"
            )


def _check_transfers(graph: Graph, schedule: Schedule) -> None:
    """Raises ScheduleError if a copy is fetched before there is one, or for no reader."""
    if not schedule.fetches and not schedule.offloads:
        return
    touched: dict[int, list[tuple[int, bool]]] = {value: [] for _, value in (*schedule.fetches, *schedule.offloads)}
    for position, number in enumerate(schedule.order):
        node = graph.nodes[number]
        for value in {*node.outputs, *node.inputs} & touched.keys():
            touched[value].append((position, value in node.outputs))
    is_output = set(graph.outputs)
    for position, value in schedule.fetches:
        if not any(at < position and computed for at, computed in touched[value]):
            raise ScheduleError(f"position {position} fetches value {value}, which is not computed before it")
        later = [(at, computed) for at, computed in touched[value] if at >= position]
        following = min(
            (at for at, other in schedule.fetches if other == value and at > position), default=len(schedule)
        )
        is_last = following == len(schedule) and not any(computed for _, computed in later)
        is_read = bool(later) and not later[0][1] and later[0][0] < following
        if not is_read and not (is_last and value in is_output):
            raise ScheduleError(
                f"position {position} fetches value {value}, which no position reads before its next copy"
            )
    fetched = {value: position for position, value in reversed(schedule.fetches)}
    if len({value for _, value in schedule.offloads}) < len(schedule.offloads):
        raise ScheduleError("a value is copied out once: offloads name one twice")
    for position, value in schedule.offloads:
        computed = [at for at, is_computed in touched[value] if is_computed]
        following = min([fetched.get(value, -1), *computed[1:2]])
        if not computed[0] <= position < following:
            raise ScheduleError(
                f"position {position} offloads value {value}: that must end between its first computation and its next "
                "copy"
            )


def find_retention(graph: Graph, schedule: Schedule) -> Retention:
    """Returns the retention intervals of a schedule that passes `check_schedule`."""
    order = np.asarray(schedule.order, dtype=np.int64)
    length = len(order)
    start_position, start_value = list_events(graph.arrays.outputs, order)
    use_position, use_value = list_events(graph.arrays.inputs, order)
    computed = start_value * length + start_position
    from_host = np.array([value * length + position for position, value in schedule.fetches], dtype=np.int64)
    copies = np.sort(np.concatenate((computed, from_host)))
    value, start = copies // length, copies % length
    end = start.copy()
    held = np.array(schedule.offloads, dtype=np.int64).reshape(-1, 2)
    use_position, use_value = np.append(use_position, held[:, 0]), np.append(use_value, held[:, 1])
    copy_read = np.searchsorted(copies, use_value * length + use_position, side="right") - 1
    np.maximum.at(end, copy_read, use_position)
    if graph.outputs:
        outputs = np.asarray(graph.outputs, dtype=np.int64)
        end[np.searchsorted(value, outputs, side="right") - 1] = length - 1
    return Retention(value, start, end, np.isin(copies, from_host))


def drop_unread(graph: Graph, schedule: Schedule) -> Schedule:
    """Returns a schedule without computations whose outputs nothing reads before they are computed again.

    In the fixed order, every node has to be computed in its place for the first time, even if its outputs are then
    freed at once. TensorFlow leaves such computations out. The result may have another order of first computations.

    Args:
        schedule: a schedule that passes `check_schedule`.

    Returns the schedule itself if all computations are read.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (), (1,), cost=1)
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), (Value("a", 1), Value("b", 1), Value("c", 1)), (2,))
    >>> drop_unread(graph, Schedule((0, 1, 0, 2)))
    Schedule(order=(1, 0, 2), fetches=(), offloads=())
    """
    left = np.bincount(np.asarray(schedule.order, dtype=np.int64), minlength=len(graph.nodes)).tolist()
    offloaded = {value for _, value in schedule.fetches}
    fetched_at: dict[int, list[int]] = {}
    for position, value in schedule.fetches:
        fetched_at.setdefault(position, []).append(value)
    read = set(graph.outputs)
    kept: list[int] = []
    for position in range(len(schedule) - 1, -1, -1):
        number = schedule.order[position]
        node = graph.nodes[number]
        if left[number] > 1 and read.isdisjoint(node.outputs) and offloaded.isdisjoint(node.outputs):
            left[number] -= 1
        else:
            kept.append(position)
            read.difference_update(node.outputs)
            read.update(node.inputs)
        read.difference_update(fetched_at.get(position, ()))
    return schedule if len(kept) == len(schedule) else select_positions(graph, schedule, kept[::-1])


def select_positions(graph: Graph, schedule: Schedule, positions: Sequence[int]) -> Schedule:
    """Returns a schedule of some positions of another, in the given order, each with its fetches and offloads.

    A transfer of a position that is left out moves to the next one that is kept. If the order is another one, or
    nothing reads a copy any more, values are fetched for their readers instead, and held up to their last readers.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (), (1,), cost=1)
    >>> values = (Value("a", 1), Value("b", 1, 1, 1), Value("c", 1))
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), values, (2,))
    >>> select_positions(graph, Schedule((0, 1, 0, 2), fetches=((3, 1),)), [1, 2, 3])
    Schedule(order=(1, 0, 2), fetches=((2, 1),), offloads=())
    """
    order = tuple(schedule.order[position] for position in positions)
    if not schedule.fetches:
        return Schedule(order)
    if list(positions) == sorted(positions):

        def move(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
            moved = {(bisect.bisect_left(positions, position), value) for position, value in pairs}
            return tuple(sorted(pair for pair in moved if pair[0] < len(positions)))

        shorter = Schedule(order, move(schedule.fetches), move(schedule.offloads))
        with contextlib.suppress(ScheduleError):
            _check_transfers(graph, shorter)
            return shorter
    place = {old: new for new, old in enumerate(positions)}
    readers = set()
    for position, value in schedule.fetches:
        later = range(position, len(schedule))
        reader = next((at for at in later if value in graph.nodes[schedule.order[at]].inputs), -1)
        if reader in place:
            readers.add((place[reader], value))
    return Schedule(order, tuple(sorted(readers)))


def to_stages(graph: Graph, schedule: Schedule) -> StageMatrices:
    """Converts a schedule in stages to R and S.

    Raises ScheduleError unless first computations are in the input order, each stage computes nodes in the input order,
    each at most once, and ends with the stage's own node, and nothing is fetched.
    """
    check_schedule(graph, schedule, order="fixed")
    if schedule.fetches:
        raise ScheduleError("R and S cannot express fetches from host memory: solve without offloading")
    num_nodes = len(graph.nodes)
    recompute = np.zeros((num_nodes, num_nodes), dtype=bool)
    stage_of_position = np.empty(len(schedule), dtype=np.int64)
    stage, previous = 0, -1
    for position, node in enumerate(schedule.order):
        if stage == num_nodes or node <= previous:
            raise ScheduleError(
                f"position {position} (node {node}) does not fit Checkmate's stages: not in order within a stage"
            )
        recompute[stage, node] = True
        stage_of_position[position] = stage
        previous = node
        if node == stage:
            stage, previous = stage + 1, -1
    return StageMatrices(recompute, _find_retained(graph, schedule, stage_of_position))


def from_stages(graph: Graph, recompute: np.ndarray) -> Schedule:
    """Converts an R matrix, bool [num_nodes, num_nodes], to its schedule, by a row-major scan (Algorithm 1).

    S is not needed, because it follows from R. Raises ScheduleError if the shape is wrong or the schedule does not
    compute the graph.
    """
    num_nodes = len(graph.nodes)
    if recompute.shape != (num_nodes, num_nodes):
        raise ScheduleError(f"R has shape {recompute.shape}; the graph needs {(num_nodes, num_nodes)}")
    schedule = Schedule.of(np.nonzero(recompute)[1])
    check_schedule(graph, schedule, order="fixed")
    return schedule


def list_events(values: Rows, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists (position, value), each int64, for every value that the node of a position reads or yields."""
    per_position = values.lengths[order]
    position = np.repeat(np.arange(len(order)), per_position)
    within = np.arange(len(position)) - np.repeat(np.cumsum(per_position) - per_position, per_position)
    return position, values.index[np.repeat(values.start[order], per_position) + within]


def _find_retained(graph: Graph, schedule: Schedule, stage_of_position: np.ndarray) -> np.ndarray:
    intervals = find_retention(graph, schedule)
    retain = np.zeros((len(graph.nodes), len(graph.values)), dtype=bool)
    for value, start, end in zip(intervals.value, intervals.start, intervals.end, strict=True):
        retain[stage_of_position[start] + 1 : stage_of_position[end] + 1, value] = True
    return retain
