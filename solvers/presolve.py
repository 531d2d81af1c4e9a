"""Makes smaller problems whose solutions lead to solutions of the given one.

Small values: values of no size, and values so small that no memory row can need them, are held throughout. They are a
third of the values of op-level graphs, and a relaxation without them is several times as fast.

Single-value cuts: where the later nodes and the step's end read just one value of the earlier nodes, the nodes on both
sides are problems of their own, and equal problems need to be solved only once. A schedule that is not composed of such
parts computes the producer of a cut's value again after the cut. A cut therefore loses nothing if this producer costs
at least as much as the repeats of a known schedule.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.stages import Event, events_of

_SMALL_SHARES = (2e-3, 1e-5)  # of the budget: the largest sum of the values left out
_MANY_LEFT = 0.8  # of the values


@dataclass(frozen=True)
class ReducedGraph:
    """A graph without its smallest values. Nodes keep their numbers.

    Args:
        small_bytes: sum of the values left out. A schedule of `graph` that fits into the budget less these bytes fits
            into the budget with all values held. If no schedule of `graph` fits into the budget, none of the whole
            graph does.
    """

    graph: Graph
    small_bytes: int


def leave_out_small_values(graph: Graph, at_most_bytes: int) -> ReducedGraph:
    """Leaves out the smallest values, up to `at_most_bytes` in total. From 0 on, this includes values of no size."""
    sizes, small = graph.sizes_bytes, _find_small_values(graph, at_most_bytes)
    if not len(small):
        return ReducedGraph(graph, 0)
    kept = np.ones(len(sizes), dtype=bool)
    kept[small] = False
    index = np.cumsum(kept) - 1

    def only_kept(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(index[value]) for value in values if kept[value])

    nodes = tuple(
        replace(
            node,
            inputs=only_kept(node.inputs),
            outputs=only_kept(node.outputs),
            inplace=node.inplace and bool(node.outputs) and bool(kept[node.outputs[0]]),
        )
        for node in graph.nodes
    )
    values = tuple(value for value, keep in zip(graph.values, kept, strict=True) if keep)
    reduced = replace(graph, nodes=nodes, values=values, outputs=only_kept(graph.outputs))
    return ReducedGraph(reduced, int(sizes[small].sum()))


def coarsen_sizes(graph: Graph, unit_bytes: int) -> Graph:
    """Converts sizes to a larger unit, rounded up.

    A schedule that fits into the budget in whole units fits in bytes, too. Sizes that are equal in that unit may differ
    in bytes, so no output takes over the storage of an input.
    """
    values = tuple(replace(value, size_bytes=-(-value.size_bytes // unit_bytes)) for value in graph.values)
    nodes = tuple(
        replace(node, workspace_bytes=-(-node.workspace_bytes // unit_bytes), inplace=False) for node in graph.nodes
    )
    return replace(graph, nodes=nodes, values=values, resident_bytes=-(-graph.resident_bytes // unit_bytes))


def list_finer_limits(graph: Graph, budget_bytes: int) -> list[int]:
    """Lists limits of the bytes to leave out of a graph, from coarse to fine.

    The coarse limit is listed only if it leaves out many values, because reducing a large graph takes long. The last
    limit leaves out nothing, not even values of no size.
    """
    coarse, fine = (int(share * budget_bytes) for share in _SMALL_SHARES)
    num_left = len(graph.values) - len(_find_small_values(graph, coarse))
    return [*([coarse] if num_left <= _MANY_LEFT * len(graph.values) else []), fine, -1]


def _find_small_values(graph: Graph, at_most_bytes: int) -> np.ndarray:
    """Returns the smallest values in ascending order, up to `at_most_bytes` in total."""
    ascending = np.argsort(graph.sizes_bytes, kind="stable")
    return ascending[np.cumsum(graph.sizes_bytes[ascending]) <= at_most_bytes]


@dataclass(frozen=True)
class Part:
    """The nodes between two cuts as a graph. Node i of it is node i + `shift` of the whole graph.

    Args:
        value_in: the value of the whole graph at the cut before. Node 0 stands for its producer; it costs nothing and
            is not recomputable.
    """

    graph: Graph
    shift: int
    value_in: int | None

    @property
    def likeness(self) -> Hashable:
        """A key that is equal for parts with the same problem."""
        nodes = tuple(replace(node, name="", op_type="", is_backward=False) for node in self.graph.nodes)
        return nodes, tuple(value.size_bytes for value in self.graph.values), self.graph.outputs


def solve_parts_once(cut: Sequence[Part], solve: Callable[[Part], Result]) -> tuple[list[Event], int] | None:
    """Solves parts, and equal ones only once.

    Returns the recomputations of the whole graph and a bound on their cost; None if a part is infeasible.
    """
    solved: dict[Hashable, Result] = {}
    events: list[Event] = []
    extra = 0
    for part in cut:
        likeness = part.likeness
        found = solved[likeness] = solved.get(likeness) or solve(part)
        if found.infeasible_in is not None:
            return None
        extra += found.cost_lower_bound - part.graph.baseline_cost
        if found.schedule is not None:
            events += [(stage + part.shift, node + part.shift) for stage, node in events_of(found.schedule)]
    return events, extra


def cut_into_parts(graph: Graph, known_extra_cost: int) -> tuple[Part, ...]:
    """Cuts a graph wherever the later nodes read a single value whose producer is too expensive to be repeated.

    Such a producer costs at least `known_extra_cost` or is not recomputable. Without such a place, there is a single
    part.
    """
    last_use, producer = graph.arrays.last_use, graph.arrays.producer
    lasting = last_use > producer
    change = np.zeros(len(graph.nodes) + 1, dtype=np.int64)
    np.add.at(change, producer[lasting], 1)
    np.add.at(change, last_use[lasting], -1)
    held = np.cumsum(change)  # [stage]: values held from the stage into the next
    value_at: dict[int, int] = {}
    for stage in np.flatnonzero(held[: len(graph.nodes) - 1] == 1).tolist():
        value = int(np.flatnonzero((producer <= stage) & (last_use > stage))[0])
        node = graph.nodes[producer[value]]
        if not node.recomputable or node.cost >= known_extra_cost:
            value_at[stage + 1] = value
    starts = (0, *value_at)
    return tuple(
        _part(graph, first, end, value_at.get(first), value_at.get(end))
        for first, end in zip(starts, (*value_at, len(graph.nodes)), strict=True)
    )


def _part(graph: Graph, first: int, end: int, value_in: int | None, value_out: int | None) -> Part:
    values: list[Value] = []
    index: dict[int, int] = {}

    def local(value: int) -> int:
        if value not in index:
            index[value] = len(values)
            values.append(graph.values[value])
        return index[value]

    nodes: list[Node] = []
    if value_in is not None:
        nodes.append(Node("before the cut", "", (), (local(value_in),), 0, recomputable=False))
    for node in graph.nodes[first:end]:
        inputs, outputs = tuple(map(local, node.inputs)), tuple(map(local, node.outputs))
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    wanted = graph.outputs if value_out is None else (value_out,)
    outputs = tuple(local(value) for value in wanted)
    part = Graph(tuple(nodes), tuple(values), outputs, graph.resident_bytes, graph.cost_unit)
    return Part(part, first - (value_in is not None), value_in)
