"""Finds path cuts in the linear relaxation. The docstring of `model.py` defines them.

With short blocks, the linear relaxation rebuilds a value from next to nothing: it recomputes a small part in each of
many blocks, from the same small part of the inputs, which it holds for long. That is impossible over all these blocks
together: a value that is used there is either held at their start or recomputed as a whole, and so are the values from
which it is recomputed. With these cuts, a few blocks lead to a linear bound far above that of blocks of one stage.

For given blocks f to l, one pass over the nodes from late to early computes the least amounts Z[i] of recomputation
that follow from the values held at the start of f. It therefore finds every violated cut.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.relaxation.memory import expected_memory_bytes, overfull_events
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, PathCut, Reach, path_cut_row
from checkmate_tf.solvers.relaxation.programs import LinearOptimum, LinearRelaxation
from checkmate_tf.solvers.relaxation.rows import build_block_model
from checkmate_tf.solvers.relaxation.settings import SETTINGS
from checkmate_tf.solvers.stages import Event

# Smaller dual values of memory rows and of path cuts are HiGHS's rounding errors.
_LEAST_WORTH = 1e-6
_LEAST_WORTH_OF_CUT = 1e-9
_ROUNDING = 1e-6  # error of a reduced cost, relative to the costs compared


@dataclass(frozen=True)
class BoundedBlocks:
    """Blocks with path cuts, and the linear bound with them, in units of cost.

    Args:
        tightest_stage: the stage within a block on whose memory the bound depends most, if any: the place to cut.
        linear: the last linear relaxation solved. Its columns are those of the blocks' model.
        model: the model of the blocks as they were given, with the same columns.
        memory_bytes: the memory that its solution represents at each stage.
        overfull: events whose memory rows the solution violates, although the blocks do not have them, the worst first.
        worth_of_start: how much the bound depends on the start of each block but the first.
        worth_of_row: how much the bound depends on each event memory row.
    """

    blocks: Blocks
    bound: float
    tightest_stage: int | None = None
    linear: LinearOptimum | None = None
    model: BlockModel | None = None
    memory_bytes: np.ndarray | None = None
    overfull: tuple[Event, ...] = ()
    worth_of_start: Mapping[int, float] = field(default_factory=dict)
    worth_of_row: Mapping[Event, float] = field(default_factory=dict)

    def linear_of(self, model: BlockModel) -> LinearOptimum | None:
        """Returns the linear relaxation, if it was solved to the end and is of this model."""
        return self.linear if self.linear is not None and len(self.linear.reduced) == model.num_columns else None

    def fix_columns(self, model: BlockModel, less_than: float) -> BlockModel:
        """Fixes the columns of a model that, by their reduced costs, have the same value in all cheaper points."""
        linear = self.linear_of(model)
        if linear is None:
            return model
        room = less_than - linear.bound
        columns = model.integers[np.abs(linear.reduced[model.integers]) > room + _ROUNDING * abs(less_than)]
        return replace(model, fixed={column: int(linear.reduced[column] < 0) for column in columns.tolist()})


def add_path_cuts(
    graph: Graph,
    budget_bytes: int,
    blocks: Blocks,
    reach: Reach,
    *,
    max_rounds: int = SETTINGS.max_cut_rounds,
    time_limit_s: float = math.inf,
) -> BoundedBlocks:
    """Adds path cuts that raise the linear bound to blocks, and drops those on which it does not depend."""
    until_s = time.perf_counter() + time_limit_s
    model = build_block_model(graph, budget_bytes, blocks, reach)
    if model.infeasible or not model.num_columns:
        return BoundedBlocks(blocks, 0.0)
    program = LinearRelaxation(model)
    cuts, best = sorted(blocks.cuts), None  # cuts in the order of the last rows
    while True:
        linear = program.solve(until_s - time.perf_counter())
        if linear is None:
            break
        max_rounds -= 1
        rises = linear.bound > (0.0 if best is None else best.bound * SETTINGS.cut_rise_ratio)
        best = linear
        found = []
        if max_rounds > 0 and rises:
            found = find_violated_cuts(model, graph, linear.point)[: SETTINGS.max_cuts]
        if not found:
            break
        program.add_rows(path_cut_row(blocks, model.recompute, model.retain, graph, cut) for _, cut in found)
        cuts += [cut for _, cut in found]
    if best is None:
        return BoundedBlocks(blocks, 0.0)
    worths = best.worth[len(model.rows.lower) - len(blocks.cuts) :].tolist()
    # Cuts that were added after the last program was solved have no worth yet.
    worth_of_cut = {cut: worth for cut, worth in zip(cuts, worths, strict=False) if worth > _LEAST_WORTH_OF_CUT}
    return BoundedBlocks(
        replace(blocks, cuts=frozenset(worth_of_cut)),
        best.bound,
        _find_tightest_stage(model, best),
        best,
        model,
        expected_memory_bytes(model, graph, best.point),
        overfull_events(model, graph, budget_bytes, reach, best.point),
        _worth_of_start(model, best, worth_of_cut),
        {event: float(best.worth[row]) for event, row in model.event_row.items()},
    )


def drop_idle_memory_rows(
    graph: Graph, budget_bytes: int, blocks: Blocks, reach: Reach, *, time_limit_s: float = math.inf
) -> Blocks:
    """Drops the inner memory rows on which the linear bound of blocks does not depend, which are nearly all."""
    model = build_block_model(graph, budget_bytes, blocks, reach)
    linear = None if model.infeasible or not model.num_columns else LinearRelaxation(model).solve(time_limit_s)
    if linear is None:
        return blocks
    priced = (stage for stage, row in model.memory_row.items() if linear.worth[row] > _LEAST_WORTH)
    return replace(blocks, inner=blocks.inner.intersection(priced))


def _find_tightest_stage(model: BlockModel, linear: LinearOptimum) -> int | None:
    worth = {stage: float(linear.worth[row]) for stage, row in sorted(model.memory_row.items())
             if stage in model.blocks.inner and stage + 1 not in model.blocks.starts}  # fmt: skip
    stage = max(worth, key=worth.__getitem__, default=None)
    return stage if stage is not None and worth[stage] > _LEAST_WORTH else None


def _worth_of_start(
    model: BlockModel, linear: LinearOptimum, worth_of_cut: Mapping[PathCut, float]
) -> dict[int, float]:
    worth = dict.fromkeys(model.blocks.starts[1:], 0.0)
    for cut, amount in worth_of_cut.items():
        for stage in worth.keys() & {cut.first_stage, cut.end_stage}:
            worth[stage] += amount
    for stage, row in model.memory_row.items():
        if stage + 1 in worth:
            worth[stage + 1] += float(linear.worth[row])
    for (first, _), row in model.event_row.items():
        for stage in worth.keys() & {first, first + 1}:
            worth[stage] += float(linear.worth[row])
    return worth


def find_violated_cuts(model: BlockModel, graph: Graph, point: np.ndarray) -> list[tuple[float, PathCut]]:
    """Returns the path cuts that a point violates, each with the amount, the most violated first."""
    num_blocks = len(model.blocks.starts)
    held = np.zeros((num_blocks + 1, len(graph.values)))
    again = np.zeros((num_blocks + 1, len(graph.nodes)))
    for (block, value), column in model.retain.items():
        held[block, value] = point[column]
    for (block, node), column in model.recompute.items():
        again[block + 1, node] = point[column]
    again = np.cumsum(again, axis=0)
    found = []
    for first in range(1, num_blocks):
        uses = _Uses(model, graph, held[first], first)
        for last in range(first, num_blocks):
            uses.add_block(last)
            if last > first:
                found += uses.find_violated(last, held[last + 1], again[last + 1] - again[first])
    return sorted(found, key=lambda pair: (-round(pair[0], 6), pair[1]))


class _Uses:
    """The values of earlier nodes that the blocks from `first` on need."""

    def __init__(self, model: BlockModel, graph: Graph, held: np.ndarray, first: int) -> None:
        self._model = model
        self._graph = graph
        self._held = held.tolist()
        self._ends = (*model.blocks.starts, model.num_stages)
        self._first = first
        self._used: set[int] = set()

    def add_block(self, block: int) -> None:
        begin = self._ends[self._first]
        for stage in range(self._ends[block], self._ends[block + 1]):
            self._used.update(value for value in self._graph.nodes[stage].inputs if self._graph.producer[value] < begin)
        if self._ends[block + 1] == self._model.num_stages:
            self._used.update(value for value in self._graph.outputs if self._graph.producer[value] < begin)

    def find_violated(self, last: int, held_after: np.ndarray, again: np.ndarray) -> list[tuple[float, PathCut]]:
        """Returns the cuts of blocks `first` to `last`. `again` is how much of each node they recompute together."""
        graph, held = self._graph, self._held
        begin, end = self._ends[self._first], self._ends[last + 1]
        need = {value: 1.0 - held[value] for value in self._used}
        path: dict[int, tuple[int, ...]] = {value: (value,) for value in need}
        carried: set[int] = set()
        for value in np.flatnonzero(held_after > 0.5 * SETTINGS.least_violation).tolist():
            more = held_after[value] - held[value]
            if graph.producer[value] < begin and more > need.get(value, SETTINGS.least_violation):
                need[value], path[value] = more, (value,)
                carried.add(value)
        found = []
        nodes = {graph.producer[value] for value in need}
        heap = [-node for node in nodes]
        heapify(heap)
        while heap:
            node = -heappop(heap)
            value = max((value for value in graph.nodes[node].outputs if value in need), key=lambda value: need[value])
            amount = need[value]
            if amount <= SETTINGS.least_violation:
                continue
            excess = amount - again[node]
            if excess > SETTINGS.least_violation:
                found.append((float(excess), PathCut(begin, end, path[value][0] in carried, path[value])))
            for source in graph.nodes[node].inputs:
                left = amount - held[source]
                if left > need.get(source, SETTINGS.least_violation):
                    need[source], path[source] = left, (*path[value], source)
                    producer = graph.producer[source]
                    if producer not in nodes:
                        nodes.add(producer)
                        heappush(heap, -producer)
        return found
