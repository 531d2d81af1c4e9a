"""Simulates schedules: this is the one authority on what a schedule costs and how much memory it takes."""

from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.schedule import Retention, Schedule, check_steps, find_retention


@dataclass(frozen=True)
class Simulation:
    """A simulation gives the memory and the cost of one schedule.

    `memory_bytes`: in use while each step runs, int64 [num_steps]: resident bytes, every value
    retained across or used by the step, its outputs and its workspace.
    """

    memory_bytes: np.ndarray
    cost: int
    baseline_cost: int

    @property
    def peak_bytes(self) -> int:
        """Returns the most memory in use at any step, in bytes."""
        return int(self.memory_bytes.max())

    @property
    def peak_step(self) -> int:
        """Returns the first step at the peak."""
        return int(self.memory_bytes.argmax())

    @property
    def overhead(self) -> float:
        """Returns the cost over the cost of computing every node once, minus 1."""
        return self.cost / self.baseline_cost - 1 if self.baseline_cost else 0.0


@dataclass(frozen=True, slots=True)
class LeastStep:
    """The least step is the node that needs most memory even at its least: no schedule has a lower peak."""

    node: int
    peak_bytes: int


def simulate(graph: Graph, schedule: Schedule) -> Simulation:
    """Simulates a schedule that passes `check_schedule`: its memory at each step, in bytes, and its total cost.

    Raises GraphError or ScheduleError for arguments that are no graph, or no steps of it.

    The memory model is that of MOCCASIN, appendix A.3, with resident bytes, workspace, separate
    values of a node and in-place outputs added. A fetched copy is there from its step on; each fetch
    adds its value's fetch_cost, the first of a value its offload_cost too (FastSA, appendix B.3).

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=1)
    >>> values = (Value("a", 10), Value("b", 20), Value("c", 30))
    >>> graph = Graph((a, b, Node("c", "c", (0, 1), (2,), cost=1)), values, outputs=(2,))
    >>> simulation = simulate(graph, Schedule((0, 1, 0, 2)))
    >>> simulation.memory_bytes.tolist(), simulation.peak_bytes, round(simulation.overhead, 2)
    ([10, 30, 30, 60], 60, 0.33)
    """
    check_graph(graph)
    order = check_steps(graph, schedule)
    intervals = find_retention(graph, schedule)
    size = graph.sizes_bytes[intervals.value]
    change = np.zeros(len(order) + 1, dtype=np.int64)
    np.add.at(change, intervals.start, size)
    np.subtract.at(change, intervals.end + 1, size)
    memory = graph.resident_bytes + np.cumsum(change[:-1]) + graph.arrays.workspace_bytes[order]
    memory -= _count_taken_over_bytes(graph, order, intervals)
    cost = sum(graph.costs[order].tolist())  # a long schedule's may exceed 64 bits
    return Simulation(memory, cost + _sum_transfer_cost(graph, schedule), graph.baseline_cost)


def find_storage(graph: Graph, schedule: Schedule) -> Retention:
    """Finds the retention intervals with the storage that each copy takes of its own.

    A copy whose storage the output of an in-place node takes over ends one step before that node: with resident bytes
    and the step's workspace, the copies that are there at a step add up to the memory that `simulate` gives.

    >>> from checkmate_tf.graph import Node, Value
    >>> a, b = Node("a", "a", (), (0,), cost=1), Node("b", "b", (0,), (1,), cost=1, inplace=True)
    >>> graph = Graph((a, b), (Value("a", 10), Value("b", 10)), outputs=(1,))
    >>> find_storage(graph, Schedule((0, 1))).end.tolist()
    [0, 1]
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    intervals = find_retention(graph, schedule)
    taken = np.nonzero(_may_be_taken_over(graph, order, intervals))[0]
    _, one_a_step = np.unique(intervals.end[taken], return_index=True)
    end = intervals.end.copy()
    end[taken[one_a_step]] -= 1
    return replace(intervals, end=end)


def find_first_beside(graph: Graph, schedule: Schedule) -> np.ndarray:
    """Finds, for each step, the first one that may still run beside it, int64 [num_steps]; ascending.

    Whatever is computed and freed meanwhile: all that the steps from that one on hold, together, keeps within the
    schedule's peak. A step takes over an input's storage only where no other reader may still run. For schedules
    without fetches.
    """
    order = np.asarray(schedule.order, dtype=np.int64)
    intervals = find_retention(graph, schedule)
    size = graph.sizes_bytes[intervals.value]
    entering = graph.arrays.workspace_bytes[order]
    saved = _count_taken_over_bytes(graph, order, intervals)
    leaving = entering - saved
    np.add.at(entering, intervals.start, size)
    np.add.at(leaving, intervals.end, size)
    peak_bytes = simulate(graph, schedule).peak_bytes
    # The saving of these steps counts once the step that is the key has ended.
    enabled: dict[int, list[int]] = {}
    others = _find_other_readers(graph, order, intervals)
    first = np.zeros(len(order), dtype=np.int64)
    together, begin = graph.resident_bytes, 0
    for step, taken in enumerate(entering.tolist()):
        together += taken
        if others[step] < begin:
            together -= int(saved[step])
        else:
            enabled.setdefault(int(others[step]), []).append(step)
        while begin < step and together > peak_bytes:
            together -= int(leaving[begin] + saved[enabled.get(begin, [])].sum())
            begin += 1
        first[step] = begin
    return first


def _find_other_readers(graph: Graph, order: np.ndarray, intervals: Retention) -> np.ndarray:
    """Finds the last step before each in-place step that reads what that step takes over, -1 for none, [num_steps]."""
    copy_at = {
        (value, start): copy
        for copy, (value, start) in enumerate(zip(intervals.value.tolist(), intervals.start.tolist(), strict=True))
    }
    newest: dict[int, int] = {}
    last_other = np.full(len(intervals.value), -1, dtype=np.int64)
    for step, number in enumerate(order.tolist()):
        node = graph.nodes[number]
        for copy in {newest[value] for value in node.inputs}:
            if step < intervals.end[copy]:
                last_other[copy] = step
        newest |= {value: copy_at[value, step] for value in node.outputs}
    found = np.full(len(order), len(order), dtype=np.int64)
    taken = _may_be_taken_over(graph, order, intervals)
    np.minimum.at(found, intervals.end[taken], last_other[taken])
    return np.where(found < len(order), found, -1)


def _sum_transfer_cost(graph: Graph, schedule: Schedule) -> int:
    fetched = [value for _, value in schedule.fetches]
    fetches = sum(graph.values[value].fetch_cost or 0 for value in fetched)
    return fetches + sum(graph.values[value].offload_cost or 0 for value in set(fetched))


def make_retain_all_schedule(graph: Graph) -> Schedule:
    """Returns the schedule that computes every node once, in the input order."""
    return Schedule(tuple(range(len(graph.nodes))))


def simulate_stock(graph: Graph) -> Simulation:
    """Simulates the step without rematerialization: every node once, in the input order."""
    return simulate(graph, make_retain_all_schedule(graph))


def find_least_step(graph: Graph) -> LeastStep:
    """Finds a lower bound on the peak of every schedule, in any order, and the node that sets it."""
    sizes, arrays = graph.sizes_bytes, graph.arrays
    held = arrays.inputs.sum(sizes[arrays.inputs.index]) + arrays.outputs.sum(sizes[arrays.outputs.index])
    could_take = np.repeat(arrays.takes_over_bytes, arrays.inputs.lengths) == sizes[arrays.inputs.index]
    taken_over = np.where(arrays.inputs.sum(could_take) > 0, arrays.takes_over_bytes, 0)
    needed = held - taken_over + arrays.workspace_bytes
    node, at_end = int(needed.argmax()), int(sizes[list(graph.outputs)].sum())
    if at_end >= needed[node]:
        node = len(graph.nodes) - 1
    return LeastStep(node, graph.resident_bytes + max(at_end, int(needed[node])))


def _count_taken_over_bytes(graph: Graph, order: np.ndarray, intervals: Retention) -> np.ndarray:
    """Counts the bytes of inputs whose storage the first output of an in-place node takes over, [num_steps]."""
    saved = np.zeros(len(order), dtype=np.int64)
    taken = _may_be_taken_over(graph, order, intervals)
    saved[intervals.end[taken]] = graph.sizes_bytes[intervals.value[taken]]
    return saved


def _may_be_taken_over(graph: Graph, order: np.ndarray, intervals: Retention) -> np.ndarray:
    """Returns which copies die at a step of an in-place node whose first output has their size, bool [num_copies]."""
    read_at_end = (intervals.end > intervals.start) | intervals.fetched
    # A graph output is held at the last step whether or not that step reads it.
    dies = read_at_end & ~(graph.arrays.is_output[intervals.value] & (intervals.end == len(order) - 1))
    takes_over_bytes = graph.arrays.takes_over_bytes[order[intervals.end]]
    return dies & (graph.sizes_bytes[intervals.value] == takes_over_bytes)
