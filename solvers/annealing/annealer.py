"""Keeps the compiled state of annealing in stage space.

A state is a set of events (t, v), each of which means "node v is recomputed in stage t". Stages, and the order within a
stage, are Checkmate's (section 4.2), so every set is a valid schedule in fixed order. The energy of a state is its cost
plus a price on its overflow: the bytes above the budget, summed over events. The price adapts so that part of the
states stay within the budget.

There are four kinds of moves. One drops a value at an event above the budget and recomputes it at its next use; each
input of the recomputation is either held longer or recomputed in turn, whichever has the lower price. One removes a
recomputation together with those that fed only it. One does both: it removes a recomputation and drops other values.
One shifts a recomputation to another stage. The moves are compiled (`stage_moves.py`).
"""

import math
from collections.abc import Iterable
from types import ModuleType

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers.annealing import stage_tables as kernel
from checkmate_tf.solvers.annealing.settings import SETTINGS
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.presolve import coarsen_sizes, leave_out_small_values
from checkmate_tf.solvers.stages import schedule_of_events

_LARGEST_SUM = 2**61  # limit of the overflow, summed over all events
_LEAST_COST = 1e-3  # cost units of a recomputation, at least: a temperature must not be 0


class Annealer:
    """Holds the compiled state of one search: a set of events, the best set so far, and the price of overflow."""

    def __init__(self, graph: Graph, budget_bytes: int, seed: int) -> None:
        self._moves = compiled_moves()
        self._num_nodes = num_nodes = len(graph.nodes)
        reduced = leave_out_small_values(graph, int(SETTINGS.small_share * budget_bytes))
        room = SETTINGS.events_per_node * num_nodes + SETTINGS.spare_events
        smaller, room_bytes = reduced.graph, budget_bytes - reduced.small_bytes
        most_bytes = int(graph.sizes_bytes.sum() + graph.arrays.workspace_bytes.max())
        unit_bytes = (num_nodes + room) * most_bytes // _LARGEST_SUM + 1
        if unit_bytes > 1:
            smaller, room_bytes = coarsen_sizes(smaller, unit_bytes), room_bytes // unit_bytes
        self._graph = _kernel_graph(smaller)
        self._state = _kernel_state(smaller, room_bytes, seed, room, len(self._graph.items))
        self._best = np.full((1 + room, 2), -1, dtype=np.int64)
        costs = graph.costs[graph.arrays.recomputable]
        self._mean_cost = max(float(costs.mean()) if len(costs) else 0.0, _LEAST_COST)
        self._nodes_by_cost = np.argsort(-graph.costs, kind="stable").astype(np.int64)
        priced_cost = SETTINGS.first_price_share * graph.baseline_cost + self._mean_cost
        self._first_weight = priced_cost / max(self.overflow, 1)
        self._round = 0
        self._baseline_cost = graph.baseline_cost
        if simulate_stock(graph).peak_bytes <= budget_bytes:  # the reserve for small values may hide this
            self.learn(np.zeros((0, 2), dtype=np.int64), graph.baseline_cost)
        self._keep_if_best()

    @property
    def overflow(self) -> int:
        return int(self._state.total[kernel.OVERFLOW])

    @property
    def cost(self) -> int:
        return int(self._state.total[kernel.COST])

    @property
    def best_cost(self) -> int | None:
        """The least cost of a set within the budget so far; None if there is no such set."""
        return int(self._best[0, 0]) if self._best[0, 0] >= 0 else None

    def load(self, events: Iterable[tuple[int, int]]) -> None:
        """Replaces the present set by `events`, pairs (stage, node), and keeps it if it is better than the best set."""
        rows = np.array(sorted(set(events)), dtype=np.int64).reshape(-1, 2)
        self._moves.load(self._graph, self._state, rows)
        self._keep_if_best()

    def learn(self, events: np.ndarray | None, cost: int | None) -> None:
        """Takes over a set within the budget as the best one if it costs less. The present set does not change."""
        if events is None or cost is None or (self.best_cost is not None and self.best_cost <= cost):
            return
        if len(events) < len(self._best):
            self._best[0] = cost, len(events)
            self._best[1 : 1 + len(events)] = events

    def cool(self, num_moves: int, *, gently: bool = False, steadily: bool = False) -> Iterable[int]:
        """Anneals once from hot to cold, and yields the number of moves made after each chunk.

        Args:
            gently: begin at a temperature low enough to leave most of the present recomputations.
            steadily: begin hotter, make more moves while hot, and let the price of overflow rise more slowly. The
                caller has to run the whole cooling. While no schedule is known, the price rises as fast as without
                `steadily`.
        """
        heat, most_rise, times = SETTINGS.coolings[self._round % len(SETTINGS.coolings)]
        hot = self._mean_cost * (heat if steadily else min(heat, SETTINGS.hurried_heat))
        slowly = steadily and self.best_cost is not None
        num_events = int(self._state.total[kernel.NUM_EVENTS])
        if gently and num_events:
            mean_cost = (self.cost - self._baseline_cost) / num_events
            hot, most_rise = max(SETTINGS.gentle_heat * mean_cost, _LEAST_COST), SETTINGS.gentle_rise
        elif steadily:
            num_moves *= times
        cold = hot * SETTINGS.cold_ratio
        self._round += not gently
        rise = SETTINGS.fastest_rise
        if slowly:
            rise = min(rise, most_rise * SETTINGS.priced_moves / max(num_moves, 1))
        # Above the budget the price keeps rising. Each cooling therefore starts from the first price, and has a limit.
        ratios = np.array([1.0, SETTINGS.least_price_ratio, SETTINGS.most_price_ratio])
        weights = np.array([*self._first_weight * ratios, math.exp(rise)])
        chunks = max(1, num_moves * self._num_nodes // SETTINGS.chunk_node_moves)
        for chunk in range(chunks):
            high = hot * (cold / hot) ** (chunk / chunks)
            low = hot * (cold / hot) ** ((chunk + 1) / chunks)
            moves = max(1, num_moves // chunks)
            self._moves.anneal_stages(self._graph, self._state, self._best, weights, moves, high, low)
            yield moves

    def restart(self) -> None:
        """Drops the recomputations of the best set that the budget does not need, and continues from there."""
        if self.best_cost is None:
            return
        self._moves.load(self._graph, self._state, self._best[1 : 1 + self._best[0, 1]])
        self._moves.remove_unneeded(self._graph, self._state, self._nodes_by_cost)
        self._keep_if_best()

    def events(self) -> np.ndarray:
        """Returns the present set, int64 [num_events, 2] of (stage, node)."""
        events = self._state.events
        active = events[: self._state.total[kernel.NUM_EVENTS], kernel.POOL]
        return events[active][:, [kernel.STAGE, kernel.NODE]]

    def best_events(self) -> np.ndarray | None:
        """Returns the best set so far, int64 [num_events, 2] of (stage, node); None if there is none."""
        return None if self.best_cost is None else self._best[1 : 1 + self._best[0, 1]].copy()

    def best_schedule(self) -> Schedule | None:
        events = self.best_events()
        return None if events is None else schedule_of_events(self._num_nodes, events)

    def _keep_if_best(self) -> None:
        if self.overflow == 0 and (self.best_cost is None or self.cost < self.best_cost):
            self._moves.save(self._state, self._best)


def compiled_moves() -> ModuleType:
    """Imports the module of the compiled moves.

    It is imported only where it is needed, because the first import after an installation compiles it, which takes
    long.
    """
    from checkmate_tf.solvers.annealing import stage_moves

    return stage_moves


MOVES = Kernel(
    compiled_moves,
    last=(
        "annealing.stage_memory.add_between",
        "annealing.stage_copies.insert",
        "annealing.stage_moves.remove_unneeded",
    ),
)


def _kernel_graph(graph: Graph) -> kernel.KernelGraph:
    num_nodes = len(graph.nodes)
    arrays, producer = graph.arrays, graph.arrays.producer
    may_drop = arrays.recomputable[producer] & (graph.sizes_bytes > 0) & (arrays.last_use > producer + 1)
    by_producer = np.argsort(producer, kind="stable")
    candidates = by_producer[may_drop[by_producer]]
    items, starts = [candidates], []
    for rows in (arrays.inputs, arrays.outputs, arrays.users):
        starts.append(rows.start + sum(map(len, items)))
        items.append(rows.index)
    nodes = np.zeros((num_nodes + 1, 7), dtype=np.int64)
    values = np.zeros((len(graph.values) + 1, 4), dtype=np.int64)
    nodes[:, kernel.FIRST_INPUT], nodes[:, kernel.FIRST_OUTPUT], values[:, kernel.FIRST_USER] = starts
    nodes[:-1, kernel.NODE_COST] = graph.costs
    nodes[:-1, kernel.WORKSPACE] = arrays.workspace_bytes
    nodes[:-1, kernel.RECOMPUTABLE] = arrays.recomputable
    nodes[:-1, kernel.REUSE] = arrays.inplace_output
    nodes[:-1, kernel.CANDIDATES] = np.searchsorted(producer[candidates], np.arange(num_nodes), side="left")
    values[:-1, kernel.PRODUCER] = producer
    values[:-1, kernel.SIZE] = graph.sizes_bytes
    values[:-1, kernel.IS_OUTPUT] = arrays.is_output
    return kernel.KernelGraph(nodes, values, np.concatenate(items))


def _kernel_state(graph: Graph, budget_bytes: int, seed: int, room: int, num_items: int) -> kernel.KernelState:
    """Returns the state without recomputations."""
    num_nodes = len(graph.nodes)
    excess = simulate_stock(graph).memory_bytes.astype(np.int64) - budget_bytes
    starts = np.arange(0, num_nodes, kernel.CHUNK_STAGES)
    chunks = np.zeros((len(starts), 4), dtype=np.int64)
    chunks[:, kernel.HIGH] = np.maximum.reduceat(excess, starts)
    chunks[:, kernel.LOW] = np.minimum.reduceat(excess, starts)
    chunks[:, kernel.COUNT] = np.diff([*starts, num_nodes])
    total = np.zeros(8, dtype=np.int64)
    total[kernel.COST] = graph.baseline_cost
    total[kernel.OVERFLOW] = np.maximum(excess, 0).sum()
    total[kernel.RNG] = seed % 2**63
    events = np.zeros((num_nodes + room, 9), dtype=np.int64)
    events[:num_nodes, kernel.NODE] = events[:num_nodes, kernel.STAGE] = np.arange(num_nodes)
    events[:num_nodes, kernel.DYING] = _dying_inputs(graph)
    events[:, kernel.LATER] = -1
    events[:room, kernel.POOL] = np.arange(num_nodes, num_nodes + room)
    events[num_nodes:, kernel.SLOT] = np.arange(room)
    return kernel.KernelState(
        events=events,
        head=np.arange(num_nodes, dtype=np.int64),
        excess=np.concatenate((excess, np.zeros(room, dtype=np.int64))),
        chunks=chunks,
        total=total,
        journal=np.zeros((4096, 3), dtype=np.int64),
        price=np.zeros(num_nodes + num_items),
        closure=np.zeros(4 * kernel.MAX_CLOSURE, dtype=np.int64),
    )


def _dying_inputs(graph: Graph) -> np.ndarray:
    """Counts, for each node, the inputs that end there in the input order and fit its first output."""
    arrays, num_nodes = graph.arrays, len(graph.nodes)
    reader, value = np.repeat(np.arange(num_nodes), arrays.inputs.lengths), arrays.inputs.index
    dies = (arrays.last_use[value] == reader) & (graph.sizes_bytes[value] == arrays.takes_over_bytes[reader])
    return np.bincount(reader[dies], minlength=num_nodes)
