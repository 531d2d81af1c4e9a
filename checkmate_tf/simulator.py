"""Simulates schedules. Nothing else in the package computes the cost or the memory of a schedule."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.graph_arrays import Rows, mark
from checkmate_tf.schedule import Retention, Schedule, check_positions, find_retention, list_events


@dataclass(frozen=True)
class Simulation:
    """The memory and the cost of one schedule.

    Args:
        memory_bytes: memory in use at each position, int64 [num_positions]: resident bytes, every value that is
            retained across the position or that its node uses, the node's outputs and its workspace.
        cost: total cost, in the graph's `cost_unit`.
        baseline_cost: cost of computing every node once.

    Example:

    >>> simulation = Simulation(np.array([10, 30, 20]), cost=4, baseline_cost=3)
    >>> simulation.peak_bytes, simulation.peak_position, round(simulation.overhead, 2)
    (30, 1, 0.33)
    """

    memory_bytes: np.ndarray
    cost: int
    baseline_cost: int

    @property
    def peak_bytes(self) -> int:
        """Returns the most memory in use at any position, in bytes."""
        return int(self.memory_bytes.max())

    @property
    def peak_position(self) -> int:
        """Returns the first position at the peak."""
        return int(self.memory_bytes.argmax())

    @property
    def overhead(self) -> float:
        """Returns the cost divided by the cost of computing every node once, minus 1."""
        return self.cost / self.baseline_cost - 1 if self.baseline_cost else 0.0


@dataclass(frozen=True, slots=True)
class PeakBound:
    """A lower bound on the peak of every schedule: the memory that the node with the largest need has to have."""

    node: int
    peak_bytes: int


def simulate(graph: Graph, schedule: Schedule) -> Simulation:
    """Simulates a schedule: its memory at each position, in bytes, and its total cost.

    The memory model is that of MOCCASIN, appendix A.3, with resident bytes, workspace, separate values of a node and
    in-place outputs added. A fetched copy takes memory from its position on. If values are fetched, the cost is the
    time at which the last position ends, while values are copied out and back beside the nodes (see `time_schedule`).
    Where copies do not hide (`Graph.copies_hide`), it is the time of all nodes and all copies together.

    Args:
        graph: the graph.
        schedule: a schedule that passes `check_schedule`.

    Returns:
        The simulation.

    Raises:
        GraphError: if `graph` is not a graph.
        ScheduleError: if `schedule` is not a schedule, or names nodes that are not in the graph.

    Example:

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=1)
    >>> values = (Value("a", 10), Value("b", 20), Value("c", 30))
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), values, outputs=(2,))
    >>> simulation = simulate(graph, Schedule((0, 1, 0, 2)))
    >>> simulation.memory_bytes.tolist(), simulation.peak_bytes, round(simulation.overhead, 2)
    ([10, 30, 30, 60], 60, 0.33)
    """
    check_graph(graph)
    order = check_positions(graph, schedule)
    intervals = find_retention(graph, schedule)
    size = graph.sizes_bytes[intervals.value]
    change = np.zeros(len(order) + 1, dtype=np.int64)
    np.add.at(change, intervals.start, size)
    np.subtract.at(change, intervals.end + 1, size)
    memory = graph.resident_bytes + np.cumsum(change[:-1]) + graph.arrays.workspace_bytes[order]
    memory -= _count_taken_over_bytes(graph, order, intervals, schedule)
    if schedule.fetches:
        timing = time_schedule(graph, schedule)
        hidden = 0 if graph.copies_hide else timing.copying - timing.waiting
        return Simulation(memory, timing.end[-1] + hidden, graph.baseline_cost)
    cost = sum(graph.costs[order].tolist())  # the sum for a long schedule may exceed 64 bits
    return Simulation(memory, cost, graph.baseline_cost)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a value out of the device's memory or, with `is_fetch`, back. Times are in the cost unit."""

    value: int
    is_fetch: bool
    begin: int
    end: int


@dataclass(frozen=True)
class Timing:
    """The beginning and the end of each position of a schedule, [num_positions], and of each transfer."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    transfers: tuple[Transfer, ...]

    @property
    def waiting(self) -> int:
        """Returns the time during which no node runs because one waits for a transfer."""
        return self.end[-1] - sum(end - begin for begin, end in zip(self.begin, self.end, strict=True))

    @property
    def copying(self) -> int:
        """Returns the time of all transfers together."""
        return sum(one.end - one.begin for one in self.transfers)

    @property
    def hidden_share(self) -> float:
        """Returns the share of the copying during which nodes run; 1 if nothing is copied."""
        return 1 - min(self.waiting / self.copying, 1) if self.copying else 1.0


def time_schedule(graph: Graph, schedule: Schedule) -> Timing:
    """Returns the times of the positions and transfers of a schedule that passes `check_schedule`.

    Nodes run one after the other. Beside them, there is one lane out and one lane back. Each lane copies one value at a
    time, in the order of the requests:

    - A fetched value is copied out once, from the end of its first computation on. Several values of a node are copied
      out in the order of its outputs. At the end of the first copy's interval (see `Schedule.offloads`), the next
      position waits until the value is out, and so does a position that writes over the copy.
    - A fetch begins when its position could begin and the value has been copied out. The first position that reads the
      fetched copy waits for it.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=9)
    >>> values = (Value("a", 10, offload_cost=4, fetch_cost=3), Value("b", 20), Value("c", 30))
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), values, outputs=(2,))
    >>> timing = time_schedule(graph, Schedule((0, 1, 2), fetches=((2, 0),)))
    >>> timing.begin, timing.end, timing.waiting
    ((0, 1, 13), (1, 10, 14), 3)
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    costs = graph.costs[order].tolist()
    undelayed = list(accumulate(costs, initial=0))  # position -> its beginning if nothing ever waits
    happens = _list_transfer_events(graph, schedule, order)
    waits = [0] * len(costs)
    transfers = []
    out_end: dict[int, int] = {}
    ready: dict[int, int] = {}
    waited = lane_out = lane_back = 0
    for position in sorted(happens):
        event = happens[position]
        begin = now = undelayed[position] + waited
        now = max([now, *(out_end[value] for value in event.frees)])
        for value in event.issues:
            start = max(now, lane_back, out_end[value])
            ready[value] = lane_back = start + int(graph.values[value].fetch_cost or 0)
            transfers.append(Transfer(value, True, start, lane_back))
        now = max([now, *(ready.pop(value) for value in event.reads if value in ready)])
        waits[position] = now - begin
        waited += now - begin
        for value in event.yields:
            if value in out_end:
                continue
            start = max(now + costs[position], lane_out)
            out_end[value] = lane_out = start + int(graph.values[value].offload_cost or 0)
            transfers.append(Transfer(value, False, start, lane_out))
    begins = [begin + wait for begin, wait in zip(undelayed, accumulate(waits), strict=False)]
    ends = [begin + cost for begin, cost in zip(begins, costs, strict=True)]
    ends[-1] = max([ends[-1], *ready.values()])  # including graph outputs that are fetched for the end
    return Timing(tuple(begins), tuple(ends), tuple(transfers))


@dataclass(slots=True)
class _TransferEvent:
    """The values whose transfers concern a position.

    Args:
        frees: must be out before it begins.
        issues: begin to come back.
        reads: fetched at some position, and read here.
        yields: offloaded, and computed here.
    """

    frees: list[int] = field(default_factory=list)
    issues: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    yields: list[int] = field(default_factory=list)


def _list_transfer_events(graph: Graph, schedule: Schedule, order: np.ndarray) -> dict[int, _TransferEvent]:
    happens: defaultdict[int, _TransferEvent] = defaultdict(_TransferEvent)
    is_fetched = mark((value for _, value in schedule.fetches), len(graph.values))
    for value, last in find_offload_ends(graph, schedule).items():
        if last + 1 < len(order):
            happens[last + 1].frees.append(value)
    for position, value in schedule.fetches:
        happens[position].issues.append(value)
    for position, value in _list_marked(graph.arrays.inputs, order, is_fetched):
        happens[position].reads.append(value)
    for position, value in _list_marked(graph.arrays.outputs, order, is_fetched):
        happens[position].yields.append(value)
    return happens


def _list_marked(values: Rows, order: np.ndarray, marked: np.ndarray) -> Iterator[tuple[int, int]]:
    """Lists (position, value) for every marked value that the node of a position reads or yields."""
    position, value = list_events(values, order)
    where = np.flatnonzero(marked[value])
    return zip(position[where].tolist(), value[where].tolist(), strict=True)


def find_storage(graph: Graph, schedule: Schedule) -> Retention:
    """Returns the retention intervals during which each copy has storage of its own.

    If the output of an in-place node takes over a copy's storage, the interval of the copy ends one position before
    that node. Together with resident bytes and workspace, the copies at a position then add up to the memory of
    `simulate`.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=1, inplace=True)
    >>> graph = Graph((a, b), (Value("a", 10), Value("b", 10)), outputs=(1,))
    >>> find_storage(graph, Schedule((0, 1))).end.tolist()
    [0, 1]
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    intervals = find_retention(graph, schedule)
    taken = np.nonzero(_may_be_taken_over(graph, order, intervals, schedule))[0]
    _, one_a_position = np.unique(intervals.end[taken], return_index=True)
    end = intervals.end.copy()
    end[taken[one_a_position]] -= 1
    return replace(intervals, end=end)


def find_first_beside(graph: Graph, schedule: Schedule) -> np.ndarray:
    """Returns, for each position, the first one that may still run beside it, int64 [num_positions], ascending.

    All values that are held from that position on, together, stay within the schedule's peak, whatever is computed and
    freed in between. A position takes over an input's storage only if no other reader can still run. For schedules
    without fetches.
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    intervals = find_retention(graph, schedule)
    size = graph.sizes_bytes[intervals.value]
    entering = graph.arrays.workspace_bytes[order]
    saved = _count_taken_over_bytes(graph, order, intervals, schedule)
    leaving = entering - saved
    np.add.at(entering, intervals.start, size)
    np.add.at(leaving, intervals.end, size)
    peak_bytes = simulate(graph, schedule).peak_bytes
    # The key is a position. The saving of the positions under it counts once that position has ended.
    enabled: dict[int, list[int]] = {}
    others = _find_other_readers(graph, schedule, intervals)
    first = np.zeros(len(order), dtype=np.int64)
    together, begin = graph.resident_bytes, 0
    for position, taken in enumerate(entering.tolist()):
        together += taken
        if others[position] < begin:
            together -= int(saved[position])
        else:
            enabled.setdefault(int(others[position]), []).append(position)
        while begin < position and together > peak_bytes:
            together -= int(leaving[begin] + saved[enabled.get(begin, [])].sum())
            begin += 1
        first[position] = begin
    return first


def _find_other_readers(graph: Graph, schedule: Schedule, intervals: Retention) -> np.ndarray:
    """Returns the last other reader of the input that each in-place node takes over, -1 if none, [num_positions]."""
    copy_at = {
        (value, start): copy
        for copy, (value, start) in enumerate(zip(intervals.value.tolist(), intervals.start.tolist(), strict=True))
    }
    order = np.asarray(schedule.order, dtype=np.int64)
    newest: dict[int, int] = {}
    last_other = np.full(len(intervals.value), -1, dtype=np.int64)
    for position, number in enumerate(order.tolist()):
        node = graph.nodes[number]
        for copy in {newest[value] for value in node.inputs}:
            if position < intervals.end[copy]:
                last_other[copy] = position
        newest |= {value: copy_at[value, position] for value in node.outputs}
    found = np.full(len(order), len(order), dtype=np.int64)
    taken = _may_be_taken_over(graph, order, intervals, schedule)
    np.minimum.at(found, intervals.end[taken], last_other[taken])
    return np.where(found < len(order), found, -1)


def find_offload_ends(graph: Graph, schedule: Schedule) -> dict[int, int]:
    """Returns, for each fetched value, the position by whose end it has to be copied out."""
    order = np.asarray(schedule.order, dtype=np.int64)
    intervals = find_retention(graph, schedule)
    taken = _may_be_taken_over(graph, order, intervals, schedule)
    ends: dict[int, int] = {}
    for copy in np.flatnonzero(np.isin(intervals.value, [value for _, value in schedule.fetches])).tolist():
        ends.setdefault(int(intervals.value[copy]), int(intervals.end[copy]) - int(taken[copy]))
    return ends


def make_retain_all_schedule(graph: Graph) -> Schedule:
    """Returns the schedule that computes every node once, in the input order."""
    return Schedule(tuple(range(len(graph.nodes))))


def simulate_stock(graph: Graph) -> Simulation:
    """Simulates the step without rematerialization: every node once, in the input order."""
    return simulate(graph, make_retain_all_schedule(graph))


def find_peak_bound(graph: Graph) -> PeakBound:
    """Returns a lower bound on the peak of every schedule, in any order, and the node with that need."""
    needed = find_node_bytes(graph)
    node, at_end = int(needed.argmax()), int(graph.sizes_bytes[list(graph.outputs)].sum())
    if at_end >= needed[node]:
        node = len(graph.nodes) - 1
    return PeakBound(node, graph.resident_bytes + max(at_end, int(needed[node])))


def find_node_bytes(graph: Graph) -> np.ndarray:
    """Finds the least memory that each node needs while it runs, beside resident bytes, int64 [num_nodes]."""
    sizes, arrays = graph.sizes_bytes, graph.arrays
    held = arrays.inputs.sum(sizes[arrays.inputs.index]) + arrays.outputs.sum(sizes[arrays.outputs.index])
    could_take = np.repeat(arrays.takes_over_bytes, arrays.inputs.lengths) == sizes[arrays.inputs.index]
    taken_over: np.ndarray = np.where(arrays.inputs.sum(could_take) > 0, arrays.takes_over_bytes, 0)
    return held - taken_over + arrays.workspace_bytes


def _count_taken_over_bytes(graph: Graph, order: np.ndarray, intervals: Retention, schedule: Schedule) -> np.ndarray:
    """Returns the bytes of inputs whose storage the first output of an in-place node takes over, [num_positions]."""
    saved = np.zeros(len(order), dtype=np.int64)
    taken = _may_be_taken_over(graph, order, intervals, schedule)
    saved[intervals.end[taken]] = graph.sizes_bytes[intervals.value[taken]]
    return saved


def _may_be_taken_over(graph: Graph, order: np.ndarray, intervals: Retention, schedule: Schedule) -> np.ndarray:
    """Returns which copies end at an in-place node whose first output has their size, bool [num_copies]."""
    read_at_end = (intervals.end > intervals.start) | intervals.fetched
    # A graph output is held at the last position whether or not that position reads it.
    dies = read_at_end & ~(graph.arrays.is_output[intervals.value] & (intervals.end == len(order) - 1))
    # A position does not write over a copy that is held up to it but that it does not read.
    for position, value in schedule.offloads:
        if value not in graph.nodes[schedule.order[position]].inputs:
            dies &= (intervals.value != value) | (intervals.end != position)
    takes_over_bytes = graph.arrays.takes_over_bytes[order[intervals.end]]
    return dies & (graph.sizes_bytes[intervals.value] == takes_over_bytes)
