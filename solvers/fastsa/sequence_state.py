"""FastSA's sequence state: slots that hold a node or nothing, and the life of each value that follows from them.

Every value has a sorted list of events, `4 * slot + kind`: in that slot it is computed, used, or fetched from host
memory (appendix B.3). A copy lives from a start (computed or fetched) to its last use before the next start. Adding or
removing a node changes one interval of each value (section 2.2.1, figure 5). A sequence is valid if the first event of
each value is its computation.

The tree's memory is that of simulate(), in units and without resident bytes. Workspace (B.1) counts in its own slot. An
in-place node saves its first output once if an equally large input ends there.
"""

from math import gcd

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.graph_arrays import Rows
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers.fastsa.sequence_arrays import (
    CAPACITY,
    CHAIN_ROOM,
    EVENTS,
    FETCH,
    FETCHES,
    INPUTS,
    IS_OUTPUT,
    JOURNAL_ROOM,
    LENGTH,
    LINKS_END,
    NOP,
    OUTPUTS,
    PRODUCER,
    RECOMPUTABLE,
    SIZE,
    SIZE_CLASS,
    TAKES_CLASS,
    WORKSPACE,
    State,
    addresses_of,
)
from checkmate_tf.solvers.fastsa.sequence_events import fill
from checkmate_tf.solvers.memory_tree import empty_deltas, empty_weights

_INT32_MAX = 2**31 - 1


def unit_bytes(graph: Graph) -> int:
    """Returns the bytes of a unit of the tree.

    It is exact if the sum of all sizes over their common divisor fits in 32 bits.
    """
    workspace, sizes = graph.arrays.workspace_bytes.tolist(), graph.sizes_bytes.tolist()
    most = sum(sizes) + max(workspace)
    return max(1, gcd(*sizes, *workspace), -(-most // (_INT32_MAX - len(sizes) - 1)))


def build(
    graph: Graph,
    schedule: Schedule,
    *,
    num_slots: int,
    seed: int = 0,
    fixed_order: bool = False,
    soft_unit_bytes: float = 0.0,
) -> State:
    """Builds the state of a valid schedule, with its positions spread evenly over the slots.

    `soft_unit_bytes` > 0 adds the LogAddExp tree, in which this many bytes double a weight.
    """
    unit = unit_bytes(graph)
    nodes, values, links = _graph_tables(graph, unit)
    num_values = len(values)
    room = 2 * _count_events(graph, schedule, nodes, links, num_values) + 24
    values[:, CAPACITY] = room
    values[:, EVENTS] = np.concatenate(([0], np.cumsum(room)[:-1]))
    soft = soft_unit_bytes > 0
    random = np.random.default_rng(seed).integers(1, 2**62)
    arrays = (
        nodes,
        values,
        links,
        np.ascontiguousarray(graph.costs),
        _transfer_costs(graph, num_values),
        np.zeros(int(room.sum()), dtype=np.int32),
        np.full((num_slots, 3), [NOP, 0, NOP], dtype=np.int32),
        np.zeros(num_slots, dtype=np.int32),
        empty_deltas(num_slots),
        empty_weights(num_slots) if soft else np.zeros((2, 0)),
        np.append(values[:, SIZE], 1) * (unit / soft_unit_bytes if soft else 0.0),
        np.array([0, 0, 0, fixed_order, soft, len(nodes), num_values, num_slots, random, 2**62, 0], dtype=np.int64),
        np.zeros((JOURNAL_ROOM, 3), dtype=np.int32),
        np.zeros(2 * CHAIN_ROOM, dtype=np.int32),
    )
    state = State(*arrays, addresses_of(arrays))
    place = 1 + (np.arange(len(schedule)) + 1) * (num_slots - 2) // (len(schedule) + 1)
    fetches = np.array(schedule.fetches, dtype=np.int32).reshape(-1, 2)
    fill(state.addresses, np.array(schedule.order, dtype=np.int32), place.astype(np.int32), fetches)
    return state


def _graph_tables(graph: Graph, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Builds the tables of nodes and values, without room for events, and the links from each node to its values.

    A node without outputs gets a value of size 0.
    """
    arrays, sizes, num_values = graph.arrays, graph.sizes_bytes, len(graph.values)
    silent = [index for index, node in enumerate(graph.nodes) if not node.outputs]
    phantom_of = {index: num_values + number for number, index in enumerate(silent)}
    outputs = Rows.of([node.outputs or (phantom_of[index],) for index, node in enumerate(graph.nodes)])
    links = arrays.inputs.join(outputs)
    classes, class_of = np.unique(sizes, return_inverse=True)
    takes = arrays.takes_over_bytes
    nodes = np.zeros((len(graph.nodes), 7), dtype=np.int32)
    nodes[:, INPUTS] = links.start[:-1]
    nodes[:, OUTPUTS] = links.start[:-1] + arrays.inputs.lengths
    nodes[:, LINKS_END] = links.start[1:]
    nodes[:, WORKSPACE] = -(-arrays.workspace_bytes // unit)
    nodes[:, TAKES_CLASS] = np.where(takes < 0, -1, np.searchsorted(classes, takes))
    nodes[:, RECOMPUTABLE] = arrays.recomputable
    values = np.zeros((num_values + len(silent), 7), dtype=np.int32)
    values[:, PRODUCER] = [*graph.producer, *silent]
    values[:num_values, SIZE] = -(-sizes // unit)
    values[:num_values, SIZE_CLASS] = class_of
    values[num_values:, SIZE_CLASS] = -2
    values[:num_values, IS_OUTPUT] = arrays.is_output
    return nodes, values, links.index.astype(np.int32)


def _count_events(
    graph: Graph, schedule: Schedule, nodes: np.ndarray, links: np.ndarray, num_values: int
) -> np.ndarray:
    """Counts the events of each value in a schedule, int64 [num_values]."""
    times = np.bincount(schedule.order, minlength=len(graph.nodes))
    touched = np.zeros(num_values, dtype=np.int64)
    for index in range(len(graph.nodes)):
        touched[links[nodes[index, INPUTS] : nodes[index, LINKS_END]]] += times[index]
    np.add.at(touched, [value for _, value in schedule.fetches], 1)
    return touched


def _transfer_costs(graph: Graph, num_values: int) -> np.ndarray:
    """Returns the costs of fetching and offloading each value, int64 [num_values, 3].

    A cost is -1 if the value cannot be offloaded. The third column counts fetches, and is 0.
    """
    transfers = np.full((num_values, 3), -1, dtype=np.int64)
    transfers[:, FETCHES] = 0
    for index, value in enumerate(graph.values):
        if value.fetch_cost is not None and value.offload_cost is not None:
            transfers[index, :2] = value.fetch_cost, value.offload_cost
    return transfers


def to_schedule(slot_nodes: np.ndarray, fetches: np.ndarray) -> Schedule:
    """Returns the schedule of the nodes in slots, [num_slots], and of the fetches (slot, value), [num_fetches, 2]."""
    positions = np.flatnonzero(slot_nodes != NOP)
    position_of_fetch = np.searchsorted(positions, fetches[:, 0])
    pairs = sorted(zip(position_of_fetch.tolist(), fetches[:, 1].tolist(), strict=True))
    return Schedule(tuple(slot_nodes[positions].tolist()), tuple(pairs))


def fetches_of(state: State) -> np.ndarray:
    """Returns the fetches of a state as pairs (slot, value), int32 [num_fetches, 2]."""
    pairs = []
    for value in np.flatnonzero(state.transfers[:, FETCHES]):
        start, length = state.values[value, EVENTS], state.values[value, LENGTH]
        pairs += [(int(code) >> 2, value) for code in state.events[start : start + length] if code & 3 == FETCH]
    return np.array(pairs, dtype=np.int32).reshape(-1, 2)
