"""The heuristics of Table 1: they choose checkpoints among the forward nodes, which determine the matrix S.

Checkmate, section 6.1 and appendix B. The checkpoints cut the forward nodes into segments. A checkpoint's values are
retained from their computation on, and so are gradients, which prior work never recomputes. Any other forward value is
retained to the end of its segment and then dropped. The backward pass reads the segments from the last to the first. At
the first stage that reads a segment, its dropped values are recomputed once and retained until their last use. The last
segment is retained throughout, because the backward pass begins with it. R is optimal for this S (`from_stages`). On a
linear network the result is Chen's algorithm, which costs one more forward pass less the checkpoints and the last
segment.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, takewhile

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, from_stages
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import cheapest_recompute


@dataclass(frozen=True)
class Settings:
    """Limits the memory and time of the heuristics.

    Args:
        cell_bytes, cell_s: memory and time for each cell of the matrix S, of which several copies are made. No further
            schedule is made without the time for one more.
        event_bytes, event_s: memory and time to make and simulate a schedule, for each value that one of its positions
            reads or yields. A schedule that takes more than is left is skipped.
    """

    cell_bytes: int = 10
    cell_s: float = 2e-8
    event_bytes: int = 64
    event_s: float = 4e-7


SETTINGS = Settings()


def forward_nodes(graph: Graph) -> tuple[int, ...]:
    """Returns the nodes before the backward pass, in the input order."""
    return tuple(index for index, node in enumerate(graph.nodes) if not node.is_backward)


def is_linear(graph: Graph) -> bool:
    """Returns whether every forward node reads values of the forward node before it, and of no other."""
    forward = forward_nodes(graph)
    before = (None, *forward)[:-1]
    return all(graph.predecessors[node] == (() if b is None else (b,)) for node, b in zip(forward, before, strict=True))


def linear_candidates(graph: Graph) -> tuple[int, ...]:
    """Returns the inner nodes of the forward pass taken as a path in the input order (appendix B.2)."""
    return forward_nodes(graph)[1:-1]


def articulation_candidates(graph: Graph) -> tuple[int, ...]:
    """Returns the articulation points of the undirected forward graph (appendix B.1); on a path, its inner nodes."""
    forward = set(forward_nodes(graph))
    neighbours: dict[int, list[int]] = {node: [] for node in sorted(forward)}
    for node in neighbours:
        for before in graph.predecessors[node]:
            if before in forward:
                neighbours[node].append(before)
                neighbours[before].append(node)
    return tuple(sorted(find_articulation_points(neighbours)))


def find_articulation_points(neighbours: Mapping[int, Sequence[int]]) -> set[int]:
    """Returns the nodes of an undirected graph whose removal splits one of its connected parts.

    Hopcroft and Tarjan (1973): in a depth-first search, a node is such a point if no node below one of its children
    leads back above it. A root is one if it has several children.
    """
    found: set[int] = set()
    depth: dict[int, int] = {}
    highest: dict[int, int] = {}  # the least depth to which the nodes below a node lead back
    for root in neighbours:
        if root in depth:
            continue
        depth[root] = highest[root] = 0
        num_children = 0
        path = [(root, iter(neighbours[root]))]
        while path:
            node, unseen = path[-1]
            for other in unseen:
                if other not in depth:
                    depth[other] = highest[other] = len(path)
                    path.append((other, iter(neighbours[other])))
                    break
                highest[node] = min(highest[node], depth[other])
            else:
                path.pop()
                if not path:
                    break
                parent = path[-1][0]
                highest[parent] = min(highest[parent], highest[node])
                if parent == root:
                    num_children += 1
                elif highest[node] >= depth[parent]:
                    found.add(parent)
        if num_children > 1:
            found.add(root)
    return found


def every_sqrt(candidates: Sequence[int]) -> tuple[int, ...]:
    """Chen et al. (2016), sqrt(n): returns every k-th candidate, with k the rounded square root of their number."""
    stride = max(1, round(math.sqrt(len(candidates))))
    return tuple(candidates[stride - 1 :: stride])


def greedy(graph: Graph, candidates: Sequence[int], segment_bytes: int) -> tuple[int, ...]:
    """Chen et al. (2016), Algorithm 3: returns a candidate once the forward values since the last exceed b bytes."""
    return _greedy(candidates, _bytes_until(graph, candidates), segment_bytes)


def _greedy(candidates: Sequence[int], bytes_until: Sequence[int], segment_bytes: int) -> tuple[int, ...]:
    chosen = []
    index = bisect_right(bytes_until, segment_bytes)
    while index < len(candidates):
        chosen.append(candidates[index])
        index = bisect_right(bytes_until, bytes_until[index] + segment_bytes, lo=index + 1)
    return tuple(chosen)


def _bytes_until(graph: Graph, candidates: Sequence[int]) -> list[int]:
    """Returns the bytes of all forward values up to those of each candidate, [num_candidates]."""
    forward = forward_nodes(graph)
    sizes = (sum(graph.values[value].size_bytes for value in graph.nodes[node].outputs) for node in forward)
    until = dict(zip(forward, accumulate(sizes), strict=True))
    return [until[node] for node in candidates]


def greedy_choices(graph: Graph, candidates: Sequence[int], *, num_sizes: int) -> tuple[tuple[int, ...], ...]:
    """Returns the different sets of checkpoints that `greedy` chooses over a range of b: its search over b."""
    sizes = [sum(graph.values[v].size_bytes for v in graph.nodes[node].outputs) for node in forward_nodes(graph)]
    total_bytes = max(1, sum(sizes))
    smallest = max(1, min((size for size in sizes if size), default=1) // 2)
    tried = np.unique(np.geomspace(smallest, total_bytes, num_sizes).astype(np.int64))
    bytes_until = _bytes_until(graph, candidates)
    return tuple(dict.fromkeys(_greedy(candidates, bytes_until, int(size)) for size in (0, *tried)))


def retain_matrix(graph: Graph, checkpoints: Iterable[int]) -> np.ndarray:
    """Returns S for these checkpoints, bool [num_nodes, num_values]."""
    num_nodes = len(graph.nodes)
    forward, chosen = forward_nodes(graph), set(checkpoints)
    segment_of = dict(zip(forward, np.cumsum([0, *(node in chosen for node in forward)])[:-1].tolist(), strict=True))
    last_stage = {segment: node for node, segment in segment_of.items()}
    last_segment = segment_of[forward[-1]] if forward else 0
    first_read = _first_backward_reads(graph, segment_of, chosen)
    retain = np.zeros((num_nodes, len(graph.values)), dtype=bool)
    for value, producer in enumerate(graph.producer):
        segment = segment_of.get(producer)
        if segment is None or segment == last_segment or producer in chosen or value in graph.outputs:
            retain[producer + 1 :, value] = True
            continue
        retain[producer + 1 : last_stage[segment] + 1, value] = True
        last_use = max(graph.users[value], default=-1)
        retain[first_read.get(segment, num_nodes) + 1 : last_use + 1, value] = True
    return retain


def _first_backward_reads(graph: Graph, segment_of: dict[int, int], chosen: set[int]) -> dict[int, int]:
    """Returns, for each segment, the first backward node that reads one of its values other than its checkpoint's."""
    first: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.inputs if node.is_backward else ():
            producer = graph.producer[value]
            if producer in segment_of and producer not in chosen:
                first.setdefault(segment_of[producer], index)
    return first


def cheapest_policy(search: Search, choices: Iterable[Iterable[int]]) -> Result:
    """Returns the cheapest schedule within the budget over sets of checkpoints, which include retaining everything.

    Raises MemoryError if the matrices would be too large.
    """
    graph = search.problem.graph
    num_cells = len(graph.nodes) * len(graph.values)
    search.check_memory(SETTINGS.cell_bytes * num_cells)
    in_time = takewhile(lambda _: search.remaining_s > SETTINGS.cell_s * num_cells, choices)
    made = (_make_schedule(search, retain_matrix(graph, chosen)) for chosen in in_time)
    return cheapest_schedule(search, (schedule for schedule in made if schedule is not None))


def _make_schedule(search: Search, retain: np.ndarray) -> Schedule | None:
    """Returns the cheapest schedule for an S; None if it takes more time or memory than the search has left."""
    graph = search.problem.graph
    try:
        recompute = cheapest_recompute(graph, retain, deadline_s=search.deadline_s)
    except TimeoutError:
        return None
    values = graph.arrays.inputs.lengths + graph.arrays.outputs.lengths
    num_events = int(recompute.sum(axis=0) @ values)
    has_memory = SETTINGS.event_bytes * num_events <= search.memory_limit_bytes
    has_time = SETTINGS.event_s * num_events <= search.remaining_s
    return from_stages(graph, recompute) if has_memory and has_time else None


def cheapest_schedule(search: Search, schedules: Iterable[Schedule]) -> Result:
    """Returns the cheapest schedule within the budget, among the given ones and retaining everything.

    No schedule is begun after the time limit.
    """
    problem = search.problem
    best: tuple[int, Schedule] | None = None
    tried = 0
    for schedule in chain((make_retain_all_schedule(problem.graph),), schedules):
        simulation = simulate(problem.graph, schedule)
        tried += 1
        if simulation.peak_bytes <= problem.budget_bytes and (best is None or simulation.cost < best[0]):
            best = simulation.cost, schedule
        if search.remaining_s < 0:
            break
    return Result(None if best is None else best[1], stats={"schedules_tried": tried})
