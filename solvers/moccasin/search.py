"""Runs MOCCASIN's models: calls of CP-SAT, the incumbent, and the large-neighbourhood search around the peak."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.mip.cpsat import CpSatSettings, new_cpsat
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.moccasin.builder import Precedence, build
from checkmate_tf.solvers.moccasin.candidates import (
    Limits,
    Window,
    event_time,
    neighbourhood_candidates,
    neighbourhood_fetches,
)
from checkmate_tf.solvers.moccasin.model import IntervalModel
from checkmate_tf.solvers.moccasin.scaling import Scaled
from checkmate_tf.solvers.moccasin.settings import SETTINGS
from checkmate_tf.solvers.offloading.transfers import hide_transfers
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.stages import stages_of

_ROUNDING = 1e-6  # relative rounding error of a bound
_LEAST_COST = 1e-9  # least weight of a recomputation that is drawn by cost, so that the sum is never 0


@dataclass(frozen=True)
class Outcome:
    """The result of CP-SAT: a bound on its objective, and `closed` if it proved the optimum or infeasibility."""

    closed: bool
    infeasible: bool
    schedule: Schedule | None
    objective_bound: int


def run_cpsat(
    formulation: IntervalModel,
    settings: CpSatSettings,
    *,
    on_schedule: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    stop_above: int | None = None,
) -> Outcome:
    """Solves a model. Calls `on_schedule` with each better solution, and `on_bound` with each better bound.

    The search ends as soon as the objective is proved to exceed `stop_above`.
    """
    solver = new_cpsat(settings)

    def bounded(bound: float) -> None:
        if on_bound is not None:
            on_bound(_rounded_up(bound))
        if stop_above is not None and _rounded_up(bound) > stop_above:
            solver.stop_search()

    solver.best_bound_callback = bounded
    status = solver.solve(formulation.model, _Schedules(formulation, on_schedule) if on_schedule is not None else None)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    infeasible = status == cp_model.INFEASIBLE
    return Outcome(
        closed=status in (cp_model.OPTIMAL, cp_model.INFEASIBLE),
        infeasible=infeasible,
        schedule=formulation.schedule(solver.value) if found else None,
        objective_bound=0 if infeasible else _rounded_up(solver.best_objective_bound),
    )


class _Schedules(cp_model.CpSolverSolutionCallback):
    def __init__(self, formulation: IntervalModel, on_schedule: Callable[[Schedule], None]) -> None:
        super().__init__()
        self.formulation = formulation
        self.on_schedule = on_schedule

    def on_solution_callback(self) -> None:
        self.on_schedule(self.formulation.schedule(self.value))


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


def fetch_events(graph: Graph, schedule: Schedule) -> dict[int, tuple[list[int], int]]:
    """Lists the events at which a schedule in stages fetches each value, and the last one that holds its first copy."""
    events = [event_time(stage, node) for stage, node in zip(stages_of(schedule).tolist(), schedule.order, strict=True)]
    intervals = find_retention(graph, schedule)
    found: dict[int, tuple[list[int], int]] = {}
    for position, value in schedule.fetches:
        first = int(np.searchsorted(intervals.value, value))
        found.setdefault(value, ([], events[intervals.end[first]]))[0].append(events[position])
    return found


def offer_hidden(incumbent: Incumbent, schedule: Schedule) -> bool:
    """Offers a schedule, and the same with its copies moved so that more of them are hidden.

    Returns whether one of them is better.
    """
    problem = incumbent.problem
    better = incumbent.offer(schedule)
    if not schedule.fetches:
        return better
    return incumbent.offer(hide_transfers(problem.graph, schedule, problem.budget_bytes)) or better


@dataclass(frozen=True)
class Neighbourhoods:
    """A large-neighbourhood search from the incumbent, which must be in stages.

    Each neighbourhood is around one recomputation: either the positions over which the value would be retained without
    it, or a window of positions. The search frees recomputations there and values held over its full positions,
    preferably large and cheap ones, fixes the rest, and asks for a strictly cheaper schedule. The number of freed nodes
    adapts: it rises when CP-SAT finishes, and falls when it does not. Fetches are freed with the nodes that compute the
    values, and a neighbourhood may also be around a fetch.

    Args:
        fetch_windows: the stages in which each value may be fetched.
    """

    scaled: Scaled
    limits: Limits
    windows: tuple[Window, ...]
    fetch_windows: tuple[Window, ...]
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
            gained = answer.schedule is not None and self._accept(graph, incumbent, answer.schedule, until_s)
            fruitless = 0 if gained else fruitless + 1
            if answer.closed:
                freed_nodes = min(freed_nodes * SETTINGS.more_freed_ratio, self.most_freed)
            elif not gained:
                freed_nodes = max(freed_nodes * SETTINGS.fewer_freed_ratio, self.least_freed)
        return tried

    def _accept(self, graph: Graph, incumbent: Incumbent, schedule: Schedule, until_s: float) -> bool:
        if not schedule.fetches:
            schedule = prune(graph, schedule, incumbent.problem.budget_bytes, deadline_s=until_s)
        return offer_hidden(incumbent, schedule)

    def _solve(
        self,
        graph: Graph,
        incumbent: Incumbent,
        repeats: list[list[int]],
        freed: list[int],
        until_s: float,
        seed: int,
    ) -> Outcome:
        assert incumbent.schedule is not None
        assert incumbent.cost is not None
        candidates = neighbourhood_candidates(graph, repeats, freed, self.limits, self.windows)
        fetches = neighbourhood_fetches(
            graph, candidates, self.fetch_windows, freed, fetch_events(graph, incumbent.schedule),
            max_fetches=SETTINGS.max_fetches,
        )  # fmt: skip
        candidates = replace(candidates, fetches=fetches)
        formulation = build(graph, self.scaled, candidates, precedence=self.precedence, deadline_s=until_s)
        extra = (incumbent.cost - graph.baseline_cost) // self.scaled.cost_unit
        formulation.model.add(formulation.extra() <= extra - 1)
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
        again = np.flatnonzero(~first)
        fetches = np.array(incumbent.schedule.fetches, dtype=np.int64).reshape(-1, 2)
        positions, nodes = (
            np.append(again, fetches[:, 0]),
            np.append(order[again], graph.arrays.producer[fetches[:, 1]]),
        )
        fetch_costs = np.array([value.fetch_cost or 0 for value in graph.values], dtype=np.int64)
        weights = np.append(graph.costs[order[again]], fetch_costs[fetches[:, 1]]) + _LEAST_COST
        chosen = int(random.choice(len(positions), p=weights / weights.sum()))
        position, node = int(positions[chosen]), int(nodes[chosen])
        if random.integers(2):
            own = intervals.end[(producer == node) & (intervals.start < position)]
            begin, end = int(own.max(initial=0)) + 1, position + 1
        else:
            radius = int(random.integers(count, SETTINGS.radius_ratio * count))
            begin, end = max(position - radius, 0), min(position + radius, len(order))
        near = np.exp(-np.maximum(np.maximum(begin - positions, positions - end), 0) / (1.0 + end - begin))
        freed = {node, *_sample(nodes, near, count // 2, random)}
        memory = simulate(graph, incumbent.schedule).memory_bytes
        size = int(graph.sizes_bytes[list(graph.nodes[node].outputs)].sum())
        full = np.zeros(len(order) + 1, dtype=np.int64)
        full[1:][begin:end] = memory[begin:end] + size > incumbent.problem.budget_bytes
        full = np.cumsum(full)
        spanned = full[np.maximum(intervals.end, intervals.start + 1)] - full[intervals.start + 1]
        price = np.where([bool(window.stages) for window in self.windows], graph.costs, np.inf)[graph.arrays.producer]
        price = np.minimum(price, np.where([bool(window.stages) for window in self.fetch_windows], fetch_costs, np.inf))
        score = spanned * graph.sizes_bytes[intervals.value] / (price[intervals.value] + 1.0)
        freed.update(_sample(producer, score, count - len(freed), random))
        return sorted(freed)


def _sample(nodes: np.ndarray, weights: np.ndarray, count: int, random: np.random.Generator) -> list[int]:
    """Draws up to `count` of the nodes, without replacement. A larger weight makes a node more likely."""
    positive = np.flatnonzero(weights > 0)
    keys = random.exponential(size=len(positive)) / weights[positive]
    return [int(nodes[positive[index]]) for index in np.argsort(keys)[:count]]
