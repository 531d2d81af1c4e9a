"""TWRemat: divide and conquer along a decomposition of the graph (Kumar et al., NeurIPS 2019).

Algorithm 1 with the family TWRemat(k) of section 4.3, by minimum fill-in tree decompositions shrunk by Lemma 1,
balanced separators (Lemma 3, found once and kept), and on path decompositions (section 5).

Departures: the paper has neither budgets nor costs. Here, the solver tries every requested k and decomposition, removes
recomputations that the budget does not need (`pruning`), and returns the cheapest schedule within the budget;
`Twremat.paper()` is without that. A separator node that none of the required outputs needs is not computed.
Non-recomputable nodes are computed once and retained. In fixed order, first computations are moved forward where
necessary.

Section 5 only sketches the path algorithm. The solver takes from it the spine (a Hamiltonian path through a topological
order), a path decomposition of the graph with its spine, and recursion to the left and right of a bag. The following
choices are its own: the layout (`path_decomposition`), the balanced bag as the one to recurse around, and Algorithm 1's
rule for the nodes to compute on either side. The bounds of the paper's proof are not claimed.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.twremat.tree_decomposition import (
    TreeDecomposition,
    balanced_separator,
    components,
    path_decomposition,
    tree_decomposition,
    undirected,
    with_spine,
)


@dataclass(frozen=True)
class Twremat(Solver):
    """Runs TWRemat for several recursion limits, and returns the cheapest schedule within the budget.

    Args:
        recursion_limits: the values of k in TWRemat(k) to try. () stands for the number of bags, which is NoRemat, and
            the powers of two below it.
        num_decompositions: number of minimum fill-in decompositions, with ties broken differently in each.
        use_paths: whether to try the path decomposition, too.
        max_length: schedules longer than this many times the number of nodes are not built.
        pruned: remove recomputations that the budget does not need.
    """

    recursion_limits: tuple[int, ...] = ()
    num_decompositions: int = 2
    use_paths: bool = True
    max_length: float = 20.0
    pruned: bool = True

    @staticmethod
    def paper() -> "Twremat":
        """Returns the paper's TWRemat(1): one minimum fill-in tree decomposition, full recursion, nothing removed.

        It has no budget: its one schedule is either within the budget or not.
        """
        return Twremat((1,), num_decompositions=1, use_paths=False, max_length=math.inf, pruned=False)

    def search(self, search: Search) -> Result:
        problem, graph = search.problem, search.problem.graph
        best: tuple[int, Schedule] | None = None
        stats: dict[str, float | int | str] = {}
        for name, decomposition in self._decompositions(search):
            stats[f"width_{name}"] = decomposition.width
            if search.remaining_s < 0:
                break
            separators = separator_tree(graph, decomposition)
            for limit in self.recursion_limits or _recursion_limits(len(decomposition.bags)):
                if search.remaining_s < 0:
                    break
                schedule = self._within_budget(problem, separators, limit, search.deadline_s)
                if schedule is None:
                    continue
                cost = simulate(graph, schedule).cost
                if best is None or cost < best[0]:
                    best = cost, schedule
                    stats.update(decomposition=name, recursion_limit=limit)
                    simulation = simulate(graph, schedule)
                    search.report(cost, graph.baseline_cost, peak_bytes=simulation.peak_bytes)
        return Result(best[1] if best else None, stats=stats)

    def _decompositions(self, search: Search) -> Iterable[tuple[str, TreeDecomposition]]:
        """Yields the decompositions that are finished within the time limit."""
        adjacency = undirected(search.problem.graph)
        for index in range(self.num_decompositions):
            if search.remaining_s < 0:
                return
            tie_seed = 0 if index == 0 else search.seed * self.num_decompositions + index
            with suppress(TimeoutError):
                yield f"tree_{index}", tree_decomposition(adjacency, seed=tie_seed, deadline_s=search.deadline_s)
        if self.use_paths and search.remaining_s > 0:
            yield "path", path_decomposition(with_spine(adjacency), deadline_s=search.deadline_s)

    def _within_budget(self, problem: Problem, separators: "Separator", limit: int, deadline: float) -> Schedule | None:
        graph = problem.graph
        longest = self.max_length * len(graph.nodes)
        schedule = twremat_schedule(graph, separators, recursion_limit=limit, max_length=longest, deadline_s=deadline)
        if schedule is None:
            return None
        if problem.order == "fixed":
            schedule = in_input_order(graph, schedule)
        if simulate(graph, schedule).peak_bytes > problem.budget_bytes:
            return None
        return prune(graph, schedule, problem.budget_bytes, deadline_s=deadline) if self.pruned else schedule


@dataclass(frozen=True)
class Separator:
    """A balanced separator and the components that it leaves, for one connected part of the decomposition.

    `bag` are its nodes in topological order. `part_of` maps each other node of this part of the graph to the index of
    the component that contains it. `num_bags` is the size of the part.
    """

    bag: tuple[int, ...]
    parts: tuple["Separator", ...]
    part_of: Mapping[int, int]
    num_bags: int


def separator_tree(graph: Graph, decomposition: TreeDecomposition) -> Separator:
    """Finds the separators of Algorithm 1's recursion, each once (the memo that Theorem 5 requires)."""
    neighbors = dict(enumerate(decomposition.neighbors))

    def build(bags: Sequence[int], above: frozenset[int]) -> Separator:
        chosen = balanced_separator(bags, neighbors)
        removed = above | decomposition.bags[chosen]
        parts = components(bags, neighbors, chosen)
        part_of = {
            node: index
            for index, part in enumerate(parts)
            for bag in part
            for node in decomposition.bags[bag]
            if node not in removed
        }
        inside = tuple(sorted(decomposition.bags[chosen] - above))
        return Separator(inside, tuple(build(part, removed) for part in parts), part_of, len(bags))

    return build(range(len(decomposition.bags)), frozenset())


def twremat_schedule(
    graph: Graph,
    separators: Separator,
    *,
    recursion_limit: int = 1,
    max_length: float = math.inf,
    deadline_s: float = math.inf,
) -> Schedule | None:
    """TWRemat(k) with k = `recursion_limit` (Algorithm 1, section 4.3): no recursion into at most k bags.

    Returns None if the schedule would have more than `max_length` positions, or is not finished by `deadline_s`.
    """
    last = tuple(sorted({*_sinks(graph), *(graph.producer[value] for value in graph.outputs)}))
    builder = _Builder(graph, recursion_limit, max_length, deadline_s)
    complete = builder.schedule(separators, _needed(graph, last, None), last)
    if not complete:
        return None
    return Schedule(tuple(_without_forbidden_repeats(graph, builder.order)))


class _Builder:
    """Algorithm 1: extends the order, and stops when it is too long or takes too long."""

    def __init__(self, graph: Graph, recursion_limit: int, max_length: float, deadline_s: float):
        self.graph = graph
        self.recursion_limit = recursion_limit
        self.max_length = max_length
        self.deadline_s = deadline_s
        self.order: list[int] = []

    def schedule(self, separator: Separator, inside: set[int], targets: Sequence[int]) -> bool:
        """Appends a schedule of nodes of `inside` that computes `targets`. Returns False if it got or took too long.

        `inside` are the nodes of this part that `targets` need.
        """
        if len(self.order) > self.max_length:
            return False
        if time.perf_counter() > self.deadline_s:
            return False
        if separator.num_bags <= self.recursion_limit or not separator.parts:
            self.order.extend(sorted(inside))
            return True
        for node in separator.bag:
            if node not in inside:
                continue
            if not self._parts(separator, inside, self.graph.predecessors[node]):
                return False
            self.order.append(node)
        return self._parts(separator, inside, targets)

    def _parts(self, separator: Separator, inside: set[int], targets: Sequence[int]) -> bool:
        """Computes those of `targets` that are in the components left by the separator."""
        by_part: dict[int, list[int]] = {}
        for target in targets:
            if target in inside and target in separator.part_of:
                by_part.setdefault(separator.part_of[target], []).append(target)
        for part, wanted in sorted(by_part.items()):
            needed = _needed(self.graph, wanted, partial(_is_in, separator, part))
            if not self.schedule(separator.parts[part], needed, wanted):
                return False
        return True


def in_input_order(graph: Graph, schedule: Schedule) -> Schedule:
    """Returns the schedule with nodes inserted so that first computations are in the input order."""
    order: list[int] = []
    next_first = 0
    for node in schedule.order:
        order.extend(range(next_first, node + 1) if node >= next_first else (node,))
        next_first = max(next_first, node + 1)
    return Schedule(tuple(_without_forbidden_repeats(graph, order)))


def _without_forbidden_repeats(graph: Graph, order: Sequence[int]) -> Iterable[int]:
    computed: set[int] = set()
    for node in order:
        if graph.nodes[node].recomputable or node not in computed:
            yield node
        computed.add(node)


def _is_in(separator: "Separator", part: int, node: int) -> bool:
    return separator.part_of.get(node) == part


def _needed(graph: Graph, targets: Iterable[int], inside: Callable[[int], bool] | None) -> set[int]:
    """Returns the targets and all nodes inside that they need."""
    needed = set(targets)
    stack = list(needed)
    while stack:
        for node in graph.predecessors[stack.pop()]:
            if node not in needed and (inside is None or inside(node)):
                needed.add(node)
                stack.append(node)
    return needed


def _sinks(graph: Graph) -> Iterable[int]:
    return (node for node, after in enumerate(graph.successors) if not after)


def _recursion_limits(num_bags: int) -> tuple[int, ...]:
    """Returns limits from no recursion at all, which is NoRemat, to full recursion."""
    return num_bags, *(1 << power for power in reversed(range((num_bags - 1).bit_length())))
