"""Finds a topological order of least peak memory without rematerialization.

The order is exact if the search proves it, as on small graphs and on any graph whose peak equals the minimum-cut bound.
Otherwise it comes from a beam search. FastSA (appendix B.2) anneals for the same purpose; this search finds the same
orders on the published graphs, and proves them. It can be used alone, and before every solver for free order.
"""

import math
import time
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import Simulation, find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.ordering.downset_beam import beam, order_arrays
from checkmate_tf.solvers.ordering.settings import SETTINGS

_UNBOUNDED = 2**30  # a capacity above all sums of sizes, which SciPy needs in 32 bits


@dataclass(frozen=True)
class OrderFound:
    """An order of all nodes and its peak. No order without rematerialization peaks below the lower bound."""

    order: tuple[int, ...]
    peak_bytes: int
    peak_lower_bound_bytes: int

    @property
    def proved(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak_bytes <= self.peak_lower_bound_bytes


def search_order(
    graph: Graph,
    *,
    time_limit_s: float = 10.0,
    seed: int = 0,
    budget_bytes: int | None = None,
    max_states: int = 4_000_000,
) -> OrderFound:
    """Searches for an order of least peak. Returns the input order if none is better.

    Args:
        time_limit_s: time to find an order better than the input order. Half of it is for finding a still better one.
        budget_bytes: stop at the first order whose peak is at most this.
        max_states: limit of the downsets examined. The search is deterministic unless the time limit ends it.

    The input order is also returned if there is no time to compile the beam search.
    """
    began_s = time.perf_counter()
    has_beam = BEAM.compile_within(time_limit_s)
    loading_s = time.perf_counter()
    if has_beam:
        compile_beam()
    started_s = began_s + time.perf_counter() - loading_s  # Loading does not count as searching.
    deadline_s = started_s + time_limit_s
    baseline = simulate_stock(graph)
    found = OrderFound(
        tuple(range(len(graph.nodes))),
        baseline.peak_bytes,
        order_peak_lower_bound_bytes(graph, baseline, deadline_s=deadline_s),
    )
    target_bytes = max(found.peak_lower_bound_bytes, -1 if budget_bytes is None else budget_bytes)
    if not has_beam:
        return found
    arrays = order_arrays(graph)
    states = 0
    for width in SETTINGS.widths:
        while found.peak_bytes > target_bytes:
            bound_bytes = found.peak_bytes - 1
            result = beam(
                arrays,
                bound_bytes=bound_bytes - graph.resident_bytes,
                width=width,
                seed=seed,
                deadline_s=deadline_s,
            )
            states += result.states
            if result.order is None:
                break
            found = replace(found, order=result.order, peak_bytes=order_peak_bytes(graph, result.order))
            deadline_s = started_s + SETTINGS.better_share * time_limit_s
        if found.peak_bytes <= target_bytes:
            return found
        if not result.truncated:
            return replace(found, peak_lower_bound_bytes=found.peak_bytes)
        if time.perf_counter() > deadline_s or states + SETTINGS.wider_ratio * result.states > max_states:
            return found
    return found


def compile_beam() -> None:
    """Compiles or loads the beam search, by searching for the order of a chain."""
    chain = Graph((Node("a", "", (), (0,), 0), Node("b", "", (0,), (1,), 0)), (Value("a", 1), Value("b", 1)))
    beam(order_arrays(chain), bound_bytes=2, width=1, seed=0, deadline_s=math.inf)


BEAM = Kernel(compile_beam, last=("ordering.downset_beam._advance",))


def order_peak_bytes(graph: Graph, order: tuple[int, ...]) -> int:
    """Returns the peak of an order without rematerialization."""
    return simulate(graph, Schedule(order)).peak_bytes


def reordered(graph: Graph, order: tuple[int, ...]) -> Graph:
    """Returns the graph with its nodes in another topological order. Values keep their indices.

    `in_input_order` turns a schedule of it into a schedule of the graph.
    """
    return replace(graph, nodes=tuple(graph.nodes[node] for node in order))


def in_input_order(order: tuple[int, ...], schedule: Schedule) -> Schedule:
    """Turns a schedule of `reordered(graph, order)` into a schedule of `graph` (free order)."""
    return replace(schedule, order=tuple(order[node] for node in schedule.order))


def order_peak_lower_bound_bytes(graph: Graph, baseline: Simulation, *, deadline_s: float) -> int:
    """Returns a lower bound on the peak of every order without rematerialization, by minimum cuts.

    The memory retained while node i runs is at least the least that any downset with all predecessors of i and without
    i retains. That is a minimum cut: if node p is computed and value x is still needed, it cuts p -> x at the size of
    x. If x is not needed, its users are computed; if a node is computed, so are its predecessors. Nodes are tried in
    the order of their memory in the input order, an upper bound on their contribution, and at most `max_flows` of them
    (`settings.py`).
    """
    sizes = graph.sizes_bytes
    best = find_peak_bound(graph).peak_bytes
    unit = max(1, gcd(*(int(size) for size in sizes)), -(-int(sizes.sum()) // (_UNBOUNDED - 1)))
    network = _Network.of(graph, (sizes // unit).astype(np.int64))
    last_s = deadline_s - SETTINGS.flow_arc_s * len(network.tail)
    for node in np.argsort(-baseline.memory_bytes, kind="stable")[: SETTINGS.max_flows]:
        if baseline.memory_bytes[node] <= best or time.perf_counter() > last_s:
            break
        own = graph.nodes[node]
        held = graph.resident_bytes + own.workspace_bytes + int(sizes[list(own.outputs)].sum())
        reused = max((int(sizes[v]) for v in own.inputs if own.inplace and own.outputs), default=0)
        best = max(best, held + network.least_cut(int(node), graph.predecessors[node]) * unit - reused)
    return best


@dataclass(frozen=True)
class _Network:
    """The arcs of the cut problem. Indices are those of nodes, then values, then source and sink."""

    tail: np.ndarray
    head: np.ndarray
    capacity: np.ndarray
    source: int

    @staticmethod
    def of(graph: Graph, sizes: np.ndarray) -> "_Network":
        num_nodes, source = len(graph.nodes), len(graph.nodes) + len(graph.values)
        # A graph output is retained once computed, whoever reads it.
        arcs = [(graph.producer[value], source + 1, int(sizes[value])) for value in graph.outputs]
        for value in sorted(set(range(len(graph.values))) - set(graph.outputs)):
            arcs.append((graph.producer[value], num_nodes + value, int(sizes[value])))
            arcs += [(num_nodes + value, user, _UNBOUNDED) for user in graph.users[value]]
        arcs += [(node, before, _UNBOUNDED) for node in range(num_nodes) for before in graph.predecessors[node]]
        tail, head, capacity = np.array(arcs, dtype=np.int64).T
        return _Network(tail, head, capacity, source)

    def least_cut(self, node: int, predecessors: tuple[int, ...]) -> int:
        """Returns the least memory that a downset with `predecessors` and without `node` retains, in units."""
        if not predecessors:
            return 0
        tail = np.concatenate((self.tail, np.full(len(predecessors), self.source), [node]))
        head = np.concatenate((self.head, predecessors, [self.source + 1]))
        capacity = np.concatenate((self.capacity, np.full(len(predecessors) + 1, _UNBOUNDED)))
        arcs = csr_matrix((capacity.astype(np.int32), (tail, head)), shape=(self.source + 2, self.source + 2))
        return int(maximum_flow(arcs, self.source, self.source + 1).flow_value)
