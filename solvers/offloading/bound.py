"""Bounds the time of all schedules in fixed order that keep, recompute and offload.

While a node first runs, memory has room for only some of the values that later nodes read. Each of the others comes
back later. Either its producer runs again, or the value was copied out before that node began, so that its memory is
free by then, and is copied back after the node has ended. The lanes out and back copy one value at a time, beside the
nodes.

The relaxation is a linear program a node: which values are out of memory may be fractional, a producer that runs again
finds all its inputs in memory, and memory is limited at no other node. Recomputation and paging in one program are
POET's (Patil et al., ICML 2022), whose objective is energy.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_node_bytes
from checkmate_tf.solvers.mip.highs import LinearProgram
from checkmate_tf.solvers.mip.program import MixedIntegerProgram

_LARGEST_COST = 1e4  # that a library sees: far above its tolerances, far below where floating point loses digits
_MOST_LANE_ROWS = 64  # for each lane: fewer are solved sooner, and bound less
_ROUNDING = 1e-6  # largest relative error of a bound by the library's tolerances


@dataclass(frozen=True)
class _Pressure:
    """The values that later nodes read when a node first runs, and the bytes of them that memory has no room for.

    Args:
        values: computed earlier, read later, and neither read nor computed by the node, int64 [num_values].
        next_reader: the first node after this one that reads each; the number of nodes where none does.
    """

    node: int
    values: np.ndarray
    next_reader: np.ndarray
    excess_bytes: int


def bound_cost(graph: Graph, budget_bytes: int, *, deadline_s: float) -> int:
    """Returns a lower bound on the cost of every schedule in fixed order within the budget.

    Nodes beside which most has to leave memory come first. It ends early at `deadline_s`, a time of
    `time.perf_counter()`: each node's bound holds by itself.
    """
    bound = graph.baseline_cost
    excess_bytes = _find_excess_bytes(graph, budget_bytes)
    short = np.flatnonzero(excess_bytes > 0)
    for node in short[np.argsort(-excess_bytes[short], kind="stable")].tolist():
        if time.perf_counter() > deadline_s:
            break
        pressure = _find_pressure(graph, node, int(excess_bytes[node]))
        bound = max(bound, _bound_beside(graph, pressure, deadline_s))
    return bound


def _find_excess_bytes(graph: Graph, budget_bytes: int) -> np.ndarray:
    """Returns the bytes of values computed before each node and read after it that have no room beside it."""
    arrays, sizes, num_nodes = graph.arrays, graph.sizes_bytes, len(graph.nodes)
    change = np.zeros(num_nodes + 1, dtype=np.int64)
    kept = arrays.last_use > arrays.producer + 1
    np.add.at(change, arrays.producer[kept] + 1, sizes[kept])
    np.subtract.at(change, arrays.last_use[kept], sizes[kept])
    reader = np.repeat(np.arange(num_nodes), arrays.inputs.lengths)
    read = arrays.inputs.sum(sizes[arrays.inputs.index] * (arrays.last_use[arrays.inputs.index] > reader))
    return np.cumsum(change[:-1]) - read - (budget_bytes - graph.resident_bytes - find_node_bytes(graph))


def _find_pressure(graph: Graph, node: int, excess_bytes: int) -> _Pressure:
    arrays, num_nodes = graph.arrays, len(graph.nodes)
    later = (arrays.producer < node) & (arrays.last_use > node)
    later[list(graph.nodes[node].inputs)] = False
    values = np.flatnonzero(later)
    readers = (arrays.users.index[arrays.users.start[value] : arrays.users.start[value + 1]] for value in values)
    following = [min(those[those > node].tolist(), default=num_nodes) for those in readers]
    return _Pressure(node, values, np.array(following, dtype=np.int64), excess_bytes)


def _bound_beside(graph: Graph, pressure: _Pressure, deadline_s: float) -> int:
    """Bounds the cost by the values out of memory while one node first runs; the baseline if that takes too long.

    Columns: when the node begins; the time from its end on; which of the values are out of memory; which of those come
    back by a copy; which producers run again.
    """
    values, reader = pressure.values, pressure.next_reader
    producer = graph.arrays.producer[values]
    producers, place = np.unique(producer, return_inverse=True)
    end = np.cumsum(graph.costs, dtype=np.float64)
    begin = end - graph.costs
    scale = max(1.0, end[-1] / _LARGEST_COST)
    out, back = (
        np.array([getattr(graph.values[value], kind) or 0 for value in values.tolist()]) / scale
        for kind in ("offload_cost", "fetch_cost")
    )
    count, again = len(values), len(producers)
    outside, copied, run = 2, 2 + count, 2 + 2 * count
    columns = np.arange(count)
    rows: list[tuple[float, np.ndarray, np.ndarray]] = []  # at least the number: columns, coefficients

    share = graph.sizes_bytes[values] / pressure.excess_bytes
    rows.append((1.0, outside + columns, share))
    for one in range(count):
        rows.append((0.0, np.array([copied + one, run + place[one], outside + one]), np.array([1.0, 1.0, -1.0])))
    # A value that leaves memory is copied out after its producer, and before the node beside which memory is short.
    for first in _pick(np.unique(producer)):
        those = np.flatnonzero(producer >= first)
        rows.append((end[first] / scale, np.append(0, copied + those), np.append(1.0, -out[those])))
    # It is copied back before its next reader, and computed again before the last node ends.
    num_nodes = len(graph.nodes)
    for last in _pick(np.unique(reader)):
        those = np.flatnonzero(reader <= last)
        rest = end[-1] - begin[last] if last < num_nodes else 0.0
        rows.append((rest / scale, np.append(1, copied + those), np.append(1.0, -back[those])))
    repeats = graph.costs[producers] / scale
    rows.append(
        ((end[-1] - end[pressure.node]) / scale, np.append(1, run + np.arange(again)), np.append(1.0, -repeats))
    )
    least = np.zeros(2 + 2 * count + again)
    least[0] = begin[pressure.node] / scale
    most = np.ones(len(least))
    most[:2] = math.inf
    most[copied:run] = [graph.values[value].fetch_cost is not None for value in values.tolist()]
    most[run:] = graph.arrays.recomputable[producers]
    found = LinearProgram(_make_program(least, most, rows)).solve(max(0.0, deadline_s - time.perf_counter()))
    if not found.optimal:
        return graph.baseline_cost
    total = found.objective * scale + int(graph.costs[pressure.node])
    return math.ceil(total - _ROUNDING * (scale + total))


def _pick(nodes: np.ndarray) -> list[int]:
    """Picks nodes for the rows of a lane, evenly, the first and the last among them."""
    number = min(len(nodes), _MOST_LANE_ROWS)
    picked: list[int] = nodes[np.linspace(0, len(nodes) - 1, number).astype(np.int64)].tolist()
    return picked


def _make_program(
    least: np.ndarray, most: np.ndarray, rows: list[tuple[float, np.ndarray, np.ndarray]]
) -> MixedIntegerProgram:
    costs = np.zeros(len(least))
    costs[:2] = 1.0
    lengths = [len(columns) for _, columns, _ in rows]
    matrix = sparse.csr_array(
        (
            np.concatenate([coefficients for _, _, coefficients in rows]),
            np.concatenate([columns for _, columns, _ in rows]),
            np.append(0, np.cumsum(lengths)),
        ),
        shape=(len(rows), len(least)),
    )
    lower = np.array([number for number, _, _ in rows])
    whole = np.zeros(len(least), dtype=np.bool_)
    return MixedIntegerProgram(costs, least, most, whole, matrix, lower, np.full(len(rows), math.inf))
