"""What a schedule of a `checkmate-graph/1` object takes, and the least that any can cost: written for itself.

Nothing here is of checkmate_tf, and everything is done in the plainest way.
"""

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

JsonGraph = dict[str, Any]


class Figures(NamedTuple):
    """The figures of a schedule."""

    peak_bytes: int
    cost: int


def simulate(graph: JsonGraph, order: list[int]) -> Figures:
    """Walks through the positions; raises AssertionError where the sequence does not compute the graph."""
    nodes, sizes = graph["nodes"], [value["size_bytes"] for value in graph["values"]]
    last = len(order) - 1
    made: list[list[int]] = [[] for _ in sizes]
    for position, node in enumerate(order):
        assert position == order.index(node) or nodes[node]["recomputable"], (
            f"position {position} may not run {node} again"
        )
        for value in nodes[node]["inputs"]:
            assert made[value], f"position {position} reads value {value}, which is not there"
        for value in nodes[node]["outputs"]:
            made[value].append(position)
    assert set(order) == set(range(len(nodes))), "a node is never computed"
    memory = [graph["resident_bytes"] + nodes[node]["workspace_bytes"] for node in order]
    dying: list[list[int]] = [[] for _ in order]
    for value, starts in enumerate(made):
        for start, until in zip(starts, [*starts[1:], len(order)], strict=True):
            reads = [position for position in range(start + 1, until) if value in nodes[order[position]]["inputs"]]
            end = max(reads, default=start)
            if value in graph["outputs"] and until == len(order):
                end = last
            elif reads:
                dying[end].append(value)
            for position in range(start, end + 1):
                memory[position] += sizes[value]
    for position, node in enumerate(order):
        memory[position] -= _taken_over(graph, node, dying[position])
    return Figures(max(memory), sum(nodes[node]["cost"] for node in order))


def _taken_over(graph: JsonGraph, node: int, dying: list[int]) -> int:
    """The size of a dying input whose storage the first output may take over."""
    outputs = graph["nodes"][node]["outputs"]
    if not graph["nodes"][node].get("inplace") or not outputs:
        return 0
    size = graph["values"][outputs[0]]["size_bytes"]
    return size if any(graph["values"][value]["size_bytes"] == size for value in dying) else 0


def find_peak_bound_bytes(graph: JsonGraph) -> int:
    """What the node that needs most takes where nothing else is held."""
    sizes = [value["size_bytes"] for value in graph["values"]]
    return graph["resident_bytes"] + max(
        node["workspace_bytes"]
        + sum(sizes[value] for value in {*node["inputs"], *node["outputs"]})
        - _taken_over(graph, index, node["inputs"])
        for index, node in enumerate(graph["nodes"])
    )


def keeps_input_order(order: list[int]) -> bool:
    """Whether first computations are in the input order."""
    return list(dict.fromkeys(order)) == sorted(set(order))


def find_least_cost(graph: JsonGraph, budget_bytes: int, *, fixed: bool, max_states: int = 60_000) -> int | str | None:
    """The least cost of any schedule within the budget, None where there is none, "unknown" after too many states.

    A state is what has been computed and what is held; before each position anything may be dropped.
    """
    nodes = graph["nodes"]
    start = (frozenset[int](), frozenset[int]())
    least = {start: 0}
    queue: list[tuple[int, int, tuple[frozenset[int], frozenset[int]]]] = [(0, 0, start)]
    number, done = 0, set()
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        computed, held = state
        if len(computed) == len(nodes) and held >= set(graph["outputs"]):
            return cost
        if len(least) > max_states:
            return "unknown"
        for node, after in _moves(graph, computed, held, budget_bytes, fixed):
            following = (computed if node is None else computed | {node}, after)
            then = cost if node is None else cost + nodes[node]["cost"]
            if then < least.get(following, then + 1):
                least[following] = then
                number += 1
                heapq.heappush(queue, (then, number, following))
    return None


def _moves(
    graph: JsonGraph, computed: frozenset[int], held: frozenset[int], budget_bytes: int, fixed: bool
) -> Iterator[tuple[int | None, frozenset[int]]]:
    """(node run, or None for a value that is dropped; what is held then)."""
    sizes = [value["size_bytes"] for value in graph["values"]]
    for value in held:
        yield None, held - {value}
    for index, node in enumerate(graph["nodes"]):
        if index in computed and not node["recomputable"]:
            continue
        if index not in computed and fixed and index != len(computed):
            continue
        if not held >= set(node["inputs"]):
            continue
        beside = held | set(node["outputs"])
        needed = graph["resident_bytes"] + node["workspace_bytes"] + sum(sizes[value] for value in beside)
        if needed <= budget_bytes:
            yield index, beside
        for value in node["inputs"]:
            if needed - _taken_over(graph, index, [value]) <= budget_bytes:
                yield index, beside - {value}
