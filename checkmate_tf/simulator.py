"""Simulates schedules: this is the one authority on what a schedule costs and how much memory it takes."""

from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.schedule import Retention, Schedule, check_positions, find_retention


@dataclass(frozen=True)
class Simulation:
    """A simulation gives the memory and the cost of one schedule.

    `memory_bytes`: in use at each position, int64 [num_positions]: resident bytes, every value retained across it or
    used by its node, the node's outputs and its workspace.
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
        """Returns the cost over the cost of computing every node once, minus 1."""
        return self.cost / self.baseline_cost - 1 if self.baseline_cost else 0.0


@dataclass(frozen=True, slots=True)
class PeakBound:
    """A peak bound is what the node that needs most memory needs at its least: no schedule has a lower peak."""

    node: int
    peak_bytes: int


def simulate(graph: Graph, schedule: Schedule) -> Simulation:
    """Simulates a schedule that passes `check_schedule`: its memory at each position, in bytes, and its total cost.

    Raises GraphError or ScheduleError for arguments that are no graph, or no positions of it.

    The memory model is that of MOCCASIN, appendix A.3, with resident bytes, workspace, separate
    values of a node and in-place outputs added. A fetched copy is there from its position on. Where values are fetched,
    the cost is the time at which the last position ends, beside which values are copied out and back: see
    `time_schedule`.

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
        return Simulation(memory, time_schedule(graph, schedule).end[-1], graph.baseline_cost)
    cost = sum(graph.costs[order].tolist())  # a long schedule's may exceed 64 bits
    return Simulation(memory, cost, graph.baseline_cost)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer copies a value out of the device's memory or, where `is_fetch`, back; times are in the cost unit."""

    value: int
    is_fetch: bool
    begin: int
    end: int


@dataclass(frozen=True)
class Timing:
    """A timing says when each position of a schedule begins and ends, [num_positions], and when values are copied."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    transfers: tuple[Transfer, ...]

    @property
    def waiting(self) -> int:
        """Sums the time during which no node runs, because one waits for a transfer."""
        return self.end[-1] - sum(end - begin for begin, end in zip(self.begin, self.end, strict=True))

    @property
    def hidden_share(self) -> float:
        """Gives the part of the copying during which nodes run; 1 where nothing is copied."""
        copying = sum(one.end - one.begin for one in self.transfers)
        return 1 - min(self.waiting / copying, 1) if copying else 1.0


def time_schedule(graph: Graph, schedule: Schedule) -> Timing:
    """Times the positions of a schedule that passes `check_schedule`, and its transfers.

    Nodes run one after the other. Beside them there is one lane out and one lane back, which each copy one value at a
    time, in the order in which the copies are asked for:

    - A value that is fetched is copied out once, from the end of its first computation on; several values of a node in
      the order of its outputs. Where its first copy is last held (see `Schedule.offloads`), the next position waits for
      the end of that, and so does one that writes over the copy.
    - A fetch begins when its position could, and the value has been copied out. The first position that reads the
      fetched copy waits for it.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=9)
    >>> values = (Value("a", 10, offload_cost=4, fetch_cost=3), Value("b", 20), Value("c", 30))
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), values, outputs=(2,))
    >>> timing = time_schedule(graph, Schedule((0, 1, 2), fetches=((2, 0),)))
    >>> timing.begin, timing.end, timing.waiting
    ((0, 1, 13), (1, 10, 14), 3)
    """
    frees: dict[int, list[int]] = {}  # position -> values that must be out before it begins
    for value, last in find_offload_ends(graph, schedule).items():
        frees.setdefault(last + 1, []).append(value)
    offloaded = {value for _, value in schedule.fetches}
    issued: dict[int, list[int]] = {}
    for position, value in schedule.fetches:
        issued.setdefault(position, []).append(value)
    begin, end, transfers = [], [], []
    out_end: dict[int, int] = {}
    ready: dict[int, int] = {}
    now = lane_out = lane_back = 0
    for position, number in enumerate(schedule.order):
        node = graph.nodes[number]
        now = max([now, *(out_end[value] for value in frees.get(position, ()))])
        for value in issued.get(position, ()):
            start = max(now, lane_back, out_end[value])
            ready[value] = lane_back = start + int(graph.values[value].fetch_cost or 0)
            transfers.append(Transfer(value, True, start, lane_back))
        if ready:
            now = max([now, *(ready.pop(value) for value in node.inputs if value in ready)])
        begin.append(now)
        now += int(node.cost)
        end.append(now)
        for value in node.outputs if offloaded else ():
            if value not in offloaded or value in out_end:
                continue
            start = max(now, lane_out)
            out_end[value] = lane_out = start + int(graph.values[value].offload_cost or 0)
            transfers.append(Transfer(value, False, start, lane_out))
    end[-1] = max([now, *ready.values()])  # outputs of the graph that were fetched for the end
    return Timing(tuple(begin), tuple(end), tuple(transfers))


def find_storage(graph: Graph, schedule: Schedule) -> Retention:
    """Finds the retention intervals with the storage that each copy takes of its own.

    A copy whose storage the output of an in-place node takes over ends one position before that node: with resident
    bytes and the workspace, the copies that are there at a position add up to the memory that `simulate` gives.

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
    """Finds, for each position, the first one that may still run beside it, int64 [num_positions]; ascending.

    Whatever is computed and freed meanwhile: all that the positions from that one on hold, together, keeps within the
    schedule's peak. A position takes over an input's storage only where no other reader may still run. For schedules
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
    # The saving of these positions counts once the position that is the key has ended.
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
    """Finds where, before each in-place node, what it takes over is last read, -1 for nowhere, [num_positions]."""
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
    """Finds for each value that is fetched the position with whose end it has to be copied out, at the latest."""
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
    """Finds a lower bound on the peak of every schedule, in any order, and the node that sets it."""
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
    """Counts the bytes of inputs whose storage the first output of an in-place node takes over, [num_positions]."""
    saved = np.zeros(len(order), dtype=np.int64)
    taken = _may_be_taken_over(graph, order, intervals, schedule)
    saved[intervals.end[taken]] = graph.sizes_bytes[intervals.value[taken]]
    return saved


def _may_be_taken_over(graph: Graph, order: np.ndarray, intervals: Retention, schedule: Schedule) -> np.ndarray:
    """Returns which copies die where an in-place node runs whose first output has their size, bool [num_copies]."""
    read_at_end = (intervals.end > intervals.start) | intervals.fetched
    # A graph output is held at the last position whether or not that position reads it.
    dies = read_at_end & ~(graph.arrays.is_output[intervals.value] & (intervals.end == len(order) - 1))
    # What is held up to a position that does not read it is not written over there.
    for position, value in schedule.offloads:
        if value not in graph.nodes[schedule.order[position]].inputs:
            dies &= (intervals.value != value) | (intervals.end != position)
    takes_over_bytes = graph.arrays.takes_over_bytes[order[intervals.end]]
    return dies & (graph.sizes_bytes[intervals.value] == takes_over_bytes)
