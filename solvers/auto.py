"""The default solver: a portfolio of annealing and block relaxation, with reordering for free order.

First a short annealing and a few block relaxations here, which close most training graphs. What is left goes to worker
processes that share the best schedule and the best bound: they stop when the two meet or time is up.

Free order takes the better of the input order and the order of least peak (`topological_order.py`), solves that in
fixed order and maps the schedule back. A fixed-order bound is none for free order: there the bound is the baseline
cost, one recomputation more where it is proved that no order fits without, or the optimum on very small graphs.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers.base import Found, Problem, Progress, Solver, solver_name
from checkmate_tf.solvers.block_relaxation import BlockRelaxation
from checkmate_tf.solvers.exchange import Exchange, News
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.fastsa import Fastsa
from checkmate_tf.solvers.stage_annealing import Annealer, StageAnnealing, schedule_of
from checkmate_tf.solvers.topological_order import in_input_order, reordered, search_order
from checkmate_tf.solvers.twremat import Twremat
from checkmate_tf.solvers.worker import Task, Workers
from checkmate_tf.solvers.xla_greedy import XlaGreedy

_SMALL_NODES = 9
_SMALL_STATES = 20_000
_ANY_GAP = 1e9
_RETURN_S = 1.0
# Their schedules may leave stage space: for free order, and the last resort where memory is very tight.
_OUTSIDE_STAGES = (Fastsa, Twremat, XlaGreedy)


@dataclass(frozen=True)
class Auto(Solver):
    """Args:
    workers: processes beside this one; 0 for none, None for as many as there are cores, at most four.
    deterministic: the same seed gives the same schedule wherever the time limit does not cut the search short;
        no workers then.
    tolerance: ends when the schedule's cost is within this fraction of the baseline cost of its bound.
    here_s: the search in this process ends after this long, and workers go on.
    memory_limit_bytes: of each worker.
    start: a schedule to begin with, whatever its peak; used where its first computations are in the input order.
    bound: a lower bound in fixed order that is known already.
    first_schedule: ends with the first schedule within the budget.
    """

    workers: int | None = None
    deterministic: bool = False
    tolerance: float = 0.0
    here_s: float = 1.5
    memory_limit_bytes: int = 4 * 2**30
    start: Schedule | None = None
    bound: int = 0
    first_schedule: bool = False

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        until = time.perf_counter() + time_limit_s
        plain = retain_all_schedule(problem.graph)
        if simulate(problem.graph, plain).peak_bytes <= problem.budget_bytes:
            return Found(plain, problem.graph.baseline_cost, "free", stats={"won": "retain_all"})
        if least_step(problem.graph).peak_bytes > problem.budget_bytes:
            return Found(None, infeasible=True, stats={"won": "least_step"})
        exchange = Exchange(on_progress, problem.budget_bytes)
        if problem.order == "free":
            return self._free(problem, until, seed, exchange)
        return self._fixed(problem, until, seed, exchange, self.start, self.bound)

    def _fixed(
        self,
        problem: Problem,
        until: float,
        seed: int,
        exchange: Exchange,
        start: Schedule | None = None,
        bound: int = 0,
        free: bool = False,
    ) -> Found:
        """Solves in fixed order; with `free`, workers may leave that order, and the bound is not theirs."""
        quick_s = until - time.perf_counter()
        if not self.deterministic:
            quick_s = min(self.here_s, quick_s)
        events = () if start is None else _events(start)
        relaxation = BlockRelaxation(tolerance=self._tolerance, start=events, bound=bound)
        found = relaxation.search_with(problem, time_limit_s=quick_s, seed=seed, exchange=exchange)
        best = _Best.of(problem.graph, found)
        open_s = until - time.perf_counter()
        if found.infeasible or best.is_closed(self._tolerance) or open_s < 1 or self._num_workers() == 0:
            return best.found(found.infeasible)
        return self._with_workers(problem, best, until, seed, exchange, free)

    @property
    def _tolerance(self) -> float:
        return _ANY_GAP if self.first_schedule else self.tolerance

    def _num_workers(self) -> int:
        if self.deterministic:
            return 0
        return min(os.cpu_count() or 1, 4) if self.workers is None else self.workers

    def _with_workers(
        self, problem: Problem, best: "_Best", until: float, seed: int, exchange: Exchange, free: bool
    ) -> Found:
        start = () if best.events is None else tuple(map(tuple, best.events.tolist()))
        solvers: list[Solver]
        relaxation = BlockRelaxation(tolerance=self._tolerance, anneal_moves_per_node=20, start=start, bound=best.bound)
        annealing = StageAnnealing(start=start, moves_per_node=10**9)
        solvers = [relaxation, annealing, annealing, annealing][: self._num_workers()]
        if free:
            solvers[1:] = [Fastsa()]
        if best.events is None:
            solvers += [Twremat(), XlaGreedy()]
        infeasible, outside, outside_won = False, None, ""
        with Workers() as workers:
            for number, solver in enumerate(solvers):
                outsider = isinstance(solver, _OUTSIDE_STAGES)
                open_s = until - time.perf_counter() - (_RETURN_S if outsider else 0)
                asked = replace(problem, order="free") if outsider and free else problem
                try:
                    workers.start(Task(solver, asked, open_s, seed + 1 + number, self.memory_limit_bytes))
                except OSError:
                    break
            while len(workers) and time.perf_counter() < until and not best.is_closed(self._tolerance):
                for message in workers.messages(until - time.perf_counter()):
                    name = solver_name(solvers[message.worker])
                    news = message.news
                    if isinstance(solvers[message.worker], _OUTSIDE_STAGES):
                        found = None if message.found is None else message.found.schedule
                        if found is not None and (outside is None or _cost(problem, found) < _cost(problem, outside)):
                            outside, outside_won = found, name
                        continue
                    if message.found is not None:
                        infeasible = infeasible or message.found.infeasible
                        news = _news(problem.graph, message.found)
                    if news is not None and best.learn(news, name):
                        workers.tell(best.news(), but=message.worker)
                        exchange.tell(best.news())
                if infeasible:
                    break
        if outside is not None and (best.cost is None or _cost(problem, outside) < best.cost):
            return Found(outside, best.bound, "fixed", stats={"won": outside_won})
        return best.found(infeasible)

    def _free(self, problem: Problem, until: float, seed: int, exchange: Exchange) -> Found:
        graph = problem.graph
        if len(graph.nodes) <= _SMALL_NODES:
            oracle = Exhaustive(max_states=_SMALL_STATES)
            found = oracle.search(problem, time_limit_s=until - time.perf_counter(), seed=seed)
            if found.schedule is not None or found.infeasible:
                return replace(found, stats={**found.stats, "won": "exhaustive"})
        limit_s = 0.2 * (until - time.perf_counter())
        order = search_order(graph, time_limit_s=limit_s, seed=seed, budget_bytes=problem.budget_bytes)
        if order.peak_bytes <= problem.budget_bytes:
            return Found(Schedule(order.order), graph.baseline_cost, "free", stats={"won": "topological_order"})
        least_extra = min((node.cost for node in graph.nodes if node.recomputable), default=0)
        proved = order.peak_lower_bound_bytes > problem.budget_bytes
        bound = graph.baseline_cost + (least_extra if proved else 0)
        chosen = self._better_order(problem, order.order, seed)
        inner = Problem(reordered(graph, chosen), problem.budget_bytes, "fixed")
        found = self._fixed(inner, until, seed, exchange, free=True)
        schedule = None if found.schedule is None else in_input_order(chosen, found.schedule)
        return Found(schedule, bound, "free", stats=found.stats)

    def _better_order(self, problem: Problem, order: tuple[int, ...], seed: int) -> tuple[int, ...]:
        """The given order or the input order, whichever a short annealing does better with."""
        plain = tuple(range(len(problem.graph.nodes)))
        if order == plain:
            return plain

        def cost(candidate: tuple[int, ...]) -> tuple[float, int]:
            annealer = Annealer(reordered(problem.graph, candidate), problem.budget_bytes, seed)
            for _ in annealer.cooling(100 * len(plain)):
                pass
            return (np.inf if annealer.best_cost is None else annealer.best_cost), annealer.overflow

        return min((plain, order), key=cost)


@dataclass
class _Best:
    """The best schedule and bound of a fixed-order search so far, and who found the schedule."""

    graph: Graph
    events: np.ndarray | None
    cost: int | None
    bound: int
    won: str = "block_relaxation"

    @staticmethod
    def of(graph: Graph, found: Found) -> "_Best":
        news = _news(graph, found)
        return _Best(graph, news.events, news.cost, max(news.bound, graph.baseline_cost))

    def is_closed(self, tolerance: float) -> bool:
        return self.cost is not None and self.cost - self.bound <= tolerance * self.graph.baseline_cost

    def learn(self, news: News, name: str) -> bool:
        """Whether anything is better than before."""
        better_bound = news.bound > self.bound
        self.bound = max(self.bound, news.bound)
        if news.cost is None or (self.cost is not None and news.cost >= self.cost):
            return better_bound
        self.events, self.cost, self.won = news.events, news.cost, name
        return True

    def news(self) -> News:
        return News(self.events, self.cost, self.bound)

    def found(self, infeasible: bool) -> Found:
        schedule = None if self.events is None else schedule_of(len(self.graph.nodes), self.events)
        return Found(schedule, self.bound, "fixed", infeasible=infeasible and schedule is None, stats={"won": self.won})


def _cost(problem: Problem, schedule: Schedule) -> int:
    return int(problem.graph.costs[list(schedule.order)].sum())


def _news(graph: Graph, found: Found) -> News:
    """A result in stage space as news."""
    if found.schedule is None:
        return News(None, None, found.cost_lower_bound)
    events = np.array(_events(found.schedule), dtype=np.int64).reshape(-1, 2)
    cost = graph.baseline_cost + int(graph.costs[events[:, 1]].sum())
    return News(events, cost, found.cost_lower_bound)


def _events(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The recomputations (stage, node) of a schedule whose first computations are in the input order; else none.

    A recomputation after the last first computation belongs to the last stage.
    """
    latest, events = -1, []
    for node in schedule.order:
        if node > latest + 1:
            return ()
        if node <= latest:
            events.append((latest + 1, node))
        latest = max(latest, node)
    return tuple((min(stage, latest), node) for stage, node in events if node < min(stage, latest))
