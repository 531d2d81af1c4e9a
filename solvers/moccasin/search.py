"""Runs MOCCASIN's models: calls of CP-SAT, the incumbent, and the large-neighbourhood search around the peak."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.mip.cpsat import CpSatSettings, new_cpsat
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.moccasin.builder import Precedence, build
from checkmate_tf.solvers.moccasin.candidates import Limits, Window, event_time, neighbourhood_candidates
from checkmate_tf.solvers.moccasin.model import IntervalModel
from checkmate_tf.solvers.moccasin.scaling import Scaled
from checkmate_tf.solvers.moccasin.settings import SETTINGS
from checkmate_tf.solvers.pruning import prune

_ROUNDING = 1e-6  # relative rounding error of a bound
_LEAST_COST = 1e-9  # least weight of a recomputation that is drawn by cost, so that the sum is never 0


@dataclass(frozen=True)
class Outcome:
    """The result of CP-SAT: a bound on its objective, and `closed` if it proved the optimum or infeasibility."""

    closed: bool
    infeasible: bool
    order: list[int] | None
    objective_bound: int


def run_cpsat(
    formulation: IntervalModel,
    settings: CpSatSettings,
    *,
    on_order: Callable[[list[int]], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    stop_above: int | None = None,
) -> Outcome:
    """Solves a model. Calls `on_order` with the order of each better solution, and `on_bound` with each better bound.

    The search ends as soon as the objective is proved to exceed `stop_above`.
    """
    solver = new_cpsat(settings)

    def bounded(bound: float) -> None:
        if on_bound is not None:
            on_bound(_rounded_up(bound))
        if stop_above is not None and _rounded_up(bound) > stop_above:
            solver.stop_search()

    solver.best_bound_callback = bounded
    status = solver.solve(formulation.model, _Orders(formulation, on_order) if on_order is not None else None)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    infeasible = status == cp_model.INFEASIBLE
    return Outcome(
        closed=status in (cp_model.OPTIMAL, cp_model.INFEASIBLE),
        infeasible=infeasible,
        order=formulation.order(solver.value) if found else None,
        objective_bound=0 if infeasible else _rounded_up(solver.best_objective_bound),
    )


class _Orders(cp_model.CpSolverSolutionCallback):
    def __init__(self, formulation: IntervalModel, on_order: Callable[[list[int]], None]) -> None:
        super().__init__()
        self.formulation = formulation
        self.on_order = on_order

    def on_solution_callback(self) -> None:
        self.on_order(self.formulation.order(self.value))


def _rounded_up(bound: float) -> int:
    """Rounds a bound up, because objectives are integers. A bound just above an integer is that integer."""
    return int(np.ceil(bound - _ROUNDING * max(1.0, abs(bound)))) if np.isfinite(bound) else 0


def stage_repeats(graph: Graph, schedule: Schedule) -> list[list[int]]:
    """Lists the stages in which each node is recomputed, ascending, [num_nodes]. Several in one stage count once."""
    repeats: list[list[int]] = [[] for _ in graph.nodes]
    stage = 0
    for node in schedule.order:
        if node == stage:
            stage += 1
        elif stage < len(repeats) and (not repeats[node] or repeats[node][-1] != stage):
            repeats[node].append(stage)
    return repeats


def schedule_in_stages(graph: Graph, repeats: Sequence[Sequence[int]]) -> Schedule:
    """Returns the schedule of these recomputations in stages."""
    events = [(node, node) for node in range(len(graph.nodes))]
    events += [(stage, node) for node, stages in enumerate(repeats) for stage in stages]
    return Schedule.of(node for _, node in sorted(events))


def event_times(repeats: Sequence[Sequence[int]], *, stages_only: bool = False) -> list[list[int]]:
    """Lists the events of each node, in the form for `IntervalModel.hint`, [num_nodes]."""
    if stages_only:
        return [[2 * node + 1, *(2 * stage for stage in stages)] for node, stages in enumerate(repeats)]
    return [
        [event_time(node, node), *(event_time(stage, node) for stage in stages)] for node, stages in enumerate(repeats)
    ]


@dataclass(frozen=True)
class Neighbourhoods:
    """A large-neighbourhood search from the incumbent, which must be in stages.

    Each neighbourhood is around one recomputation: either the positions over which the value would be retained without
    it, or a window of positions. The search frees recomputations there and values held over its full positions,
    preferably large and cheap ones, fixes the rest, and asks for a strictly cheaper schedule. The number of freed nodes
    adapts: it rises when CP-SAT finishes, and falls when it does not.
    """

    scaled: Scaled
    limits: Limits
    windows: tuple[Window, ...]
    precedence: Precedence = "cover"
    workers: int = 1
    work_limit: float = SETTINGS.work_limit
    least_freed: int = SETTINGS.least_freed
    most_freed: int = SETTINGS.most_freed

    def improve(self, incumbent: Incumbent, *, until_s: float, random: np.random.Generator, max_fruitless: int) -> int:
        """Searches until `until_s`, or until `max_fruitless` neighbourhoods in a row gain nothing.

        Returns the number of neighbourhoods tried.
        """
        graph = incumbent.problem.graph
        freed_nodes, fruitless, tried = SETTINGS.first_freed, 0, 0
        while time.perf_counter() < until_s and fruitless < max_fruitless and not incumbent.is_closed():
            assert incumbent.schedule is not None
            repeats = stage_repeats(graph, incumbent.schedule)
            freed = self._freed(graph, incumbent, repeats, int(freed_nodes), random)
            try:
                answer = self._solve(graph, incumbent, repeats, freed, until_s, int(random.integers(2**31)))
            except TimeoutError:
                break
            tried += 1
            gained = answer.order is not None and self._accept(graph, incumbent, answer.order, until_s)
            fruitless = 0 if gained else fruitless + 1
            if answer.closed:
                freed_nodes = min(freed_nodes * SETTINGS.more_freed_ratio, self.most_freed)
            elif not gained:
                freed_nodes = max(freed_nodes * SETTINGS.fewer_freed_ratio, self.least_freed)
        return tried

    def _accept(self, graph: Graph, incumbent: Incumbent, order: list[int], until_s: float) -> bool:
        return incumbent.offer(prune(graph, Schedule.of(order), incumbent.problem.budget_bytes, deadline_s=until_s))

    def _solve(
        self,
        graph: Graph,
        incumbent: Incumbent,
        repeats: list[list[int]],
        freed: list[int],
        until_s: float,
        seed: int,
    ) -> Outcome:
        candidates = neighbourhood_candidates(graph, repeats, freed, self.limits, self.windows)
        formulation = build(graph, self.scaled, candidates, precedence=self.precedence, deadline_s=until_s)
        is_free = set(freed)
        kept = sum(self.scaled.costs[node] * len(stages) for node, stages in enumerate(repeats) if node not in is_free)
        assert incumbent.cost is not None
        extra = (incumbent.cost - graph.baseline_cost) // self.scaled.cost_unit
        formulation.model.add(formulation.extra() <= extra - kept - 1)
        limit_s = until_s - time.perf_counter()
        how = CpSatSettings(limit_s, seed, work_limit=self.work_limit, num_workers=self.workers)
        return run_cpsat(formulation, how)

    def _freed(
        self, graph: Graph, incumbent: Incumbent, repeats: list[list[int]], count: int, random: np.random.Generator
    ) -> list[int]:
        """Chooses the nodes to free. Half of them are recomputed now, and the rest may be recomputed instead."""
        assert incumbent.schedule is not None
        order = np.asarray(incumbent.schedule.order)
        intervals = find_retention(graph, incumbent.schedule)
        producer = graph.arrays.producer[intervals.value]
        first = np.zeros(len(order), dtype=bool)
        first[np.unique(order, return_index=True)[1]] = True
        positions = np.flatnonzero(~first)
        weights = graph.costs[order[positions]] + _LEAST_COST
        position = int(random.choice(positions, p=weights / weights.sum()))
        if random.integers(2):
            own = intervals.end[(producer == order[position]) & (intervals.start < position)]
            begin, end = int(own.max(initial=0)) + 1, position + 1
        else:
            radius = int(random.integers(count, SETTINGS.radius_ratio * count))
            begin, end = max(position - radius, 0), min(position + radius, len(order))
        near = np.exp(-np.maximum(np.maximum(begin - positions, positions - end), 0) / (1.0 + end - begin))
        freed = {int(order[position]), *_sample(order[positions], near, count // 2, random)}
        memory = simulate(graph, incumbent.schedule).memory_bytes
        size = int(graph.sizes_bytes[list(graph.nodes[order[position]].outputs)].sum())
        full = np.zeros(len(order) + 1, dtype=np.int64)
        full[1:][begin:end] = memory[begin:end] + size > incumbent.problem.budget_bytes
        full = np.cumsum(full)
        spanned = full[np.maximum(intervals.end, intervals.start + 1)] - full[intervals.start + 1]
        repeatable = np.asarray([bool(window.stages) for window in self.windows])
        score = spanned * graph.sizes_bytes[intervals.value] / (graph.costs[producer] + 1.0) * repeatable[producer]
        freed.update(_sample(producer, score, count - len(freed), random))
        return sorted(freed)


def _sample(nodes: np.ndarray, weights: np.ndarray, count: int, random: np.random.Generator) -> list[int]:
    """Draws up to `count` of the nodes, without replacement. A larger weight makes a node more likely."""
    positive = np.flatnonzero(weights > 0)
    keys = random.exponential(size=len(positive)) / weights[positive]
    return [int(nodes[positive[index]]) for index in np.argsort(keys)[:count]]
