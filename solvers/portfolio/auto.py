"""The default solver: a portfolio of annealing, block relaxation and greedy methods, with reordering in free order.

It begins in this process with a short annealing and a few block relaxations, which solve most layer-level training
graphs to a proof. The others go to worker processes, which share the best schedule and the best bound, and stop when
the two meet or time is up. When the annealing has long found nothing better, a relaxation that solves its programs to
their end replaces it. The settings by size are from runs on layer-level and op-level graphs (docs/notes/METHOD.md).

Very small graphs are searched exhaustively. If no schedule in Checkmate's stages stays within the budget, and that is
proved, the solver searches schedules outside of the stages: exhaustively, which is a proof, if few states are within
the budget, and then by FastSA.

In free order, and on large graphs, a short annealing in this process comes first and finds a first schedule. Free order
then chooses the better of the input order and the order of least peak (`topological_order.py`), solves the graph in
that order, and maps the schedule back. FastSA runs beside that search, or after it if both orders have the
same peak. A fixed-order bound does not hold in free order. There, the bound is the baseline cost, one recomputation
more if it is proved that no order fits without one, or the optimum on very small graphs.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.annealing.annealer import MOVES, Annealer
from checkmate_tf.solvers.annealing.solver import AnnealingRun, StageAnnealing
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.ap_greedy import ApGreedy
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.fastsa.solver import Fastsa
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.offloading.choose import choose_transfers, has_transfers
from checkmate_tf.solvers.ordering.topological_order import in_input_order, reordered, search_order
from checkmate_tf.solvers.portfolio.race import Contestant, Race, run_side_by_side
from checkmate_tf.solvers.portfolio.settings import SETTINGS
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.relaxation.model import Blocks
from checkmate_tf.solvers.relaxation.solver import BlockRelaxation
from checkmate_tf.solvers.search import MOST_MEMORY_BYTES, Search, Update
from checkmate_tf.solvers.stages import Event, rows_of, staged_events
from checkmate_tf.solvers.twremat.solver import Twremat
from checkmate_tf.solvers.xla_greedy import XlaGreedy

_ANY_GAP = 1e9  # a tolerance that every schedule meets, so that the first one ends the search
_ENDLESS_MOVES_PER_NODE = 10**9  # workers anneal until they are stopped


@dataclass(frozen=True)
class Auto(Solver):
    """Runs the methods that suit the graph and the time, and returns the best schedule and bound of all.

    Args:
        workers: number of processes besides this one; 0 for none, None for as many as there are cores, from two to
            four.
        deterministic: the same seed leads to the same schedule, unless the time limit ends the search. There are then
            no workers.
        tolerance: the search ends when the schedule's cost exceeds its bound by at most this fraction of the baseline
            cost.
        here_s: the search in this process ends after this long, and workers continue.
        here_nodes: for larger graphs, this process searches only for a first schedule. Workers, whose memory is
            limited, do the rest.
        memory_limit_bytes: limit of each worker.
        start: a schedule to begin with, with any peak. It is used if its first computations are in the input order.
        bound: a known lower bound in fixed order.
        first_schedule: whether to end with the first schedule within the budget.
    """

    workers: int | None = None
    deterministic: bool = False
    tolerance: float = 1e-6
    here_s: float = 2.5
    here_nodes: int = 6000
    memory_limit_bytes: int = MOST_MEMORY_BYTES
    start: Schedule | None = None
    bound: int = 0
    first_schedule: bool = False
    offloads: ClassVar[bool] = True

    def search(self, search: Search) -> Result:
        if has_transfers(search.problem.graph):
            return choose_transfers(self.search, search, first_schedule=self.first_schedule)
        problem, seed, until_s = search.problem, search.seed, search.deadline_s
        if len(problem.graph.nodes) <= SETTINGS.exhaustive_nodes:
            found = _search_exhaustively(search, SETTINGS.exhaustive_states)
            if found is not None:
                return found
        if problem.order == "free":
            return self._search_free_order(search)
        start = () if self.start is None else staged_events(self.start)
        if self.first_schedule:
            first = Incumbent(search)
            first.learn_result(_anneal_longer_and_longer(search, start), "stage_annealing")
            if first.cost is not None:
                return first.result()
        with Race(until_s, self.memory_limit_bytes) as race:
            best = self._search_here(search, race, self._num_workers, start)
            if not best.infeasible_in and not best.is_closed(self._tolerance) and self._has_time(until_s):
                self._race(race, self._contestants(race, best, seed, self._num_workers), best)
        found = best.result()
        found = replace(found, stats={**found.stats, **race.stats})
        return found if found.infeasible_in != "stages" else self._search_beyond_stages(search, found)

    @property
    def _tolerance(self) -> float:
        return _ANY_GAP if self.first_schedule else self.tolerance

    @property
    def _num_workers(self) -> int:
        if self.deterministic:
            return 0
        if self.workers is not None:
            return self.workers
        return min(max(_num_cores(), SETTINGS.least_workers), SETTINGS.most_workers)

    def _has_time(self, until_s: float) -> bool:
        return self._num_workers > 0 and until_s - time.perf_counter() > SETTINGS.least_race_s

    def _search_here(
        self,
        search: Search,
        race: Race,
        num_staged: int,
        start: tuple[Event, ...] = (),
        beside: Sequence[Contestant] = (),
    ) -> Incumbent:
        """Searches in this process. If that takes more than a moment, annealing and those `beside` begin in workers.

        For large graphs, it searches only for a first schedule, before workers start.
        """
        problem, seed = search.problem, search.seed
        best = Incumbent(search, bound=self.bound, events=rows_of(start) if start else None)
        limit_s = race.until_s - time.perf_counter()
        has_workers = self._has_time(race.until_s)
        if has_workers and len(problem.graph.nodes) > self.here_nodes:
            best.learn_result(_anneal_until_within_budget(search, start), "stage_annealing")
            return best
        early = []
        if has_workers:
            limit_s = min(self.here_s, limit_s)
            if _num_cores() > 1:
                early = [*beside, *self._contestants(race, best, seed, num_staged)[:-1]]
        anneals = MOVES.is_compiled() or not has_workers
        relaxation = BlockRelaxation(tolerance=self._tolerance, start=start, bound=self.bound, anneals=anneals)
        with _run_beside(race.start, early):
            result = relaxation.search(replace(search, time_limit_s=limit_s, started_s=time.perf_counter()))
        best = Incumbent(search)
        best.learn_result(result, "block_relaxation")
        race.blocks = result.blocks
        return best

    def _contestants(
        self, race: Race, best: Incumbent, seed: int, num_staged: int, *, bound: bool = True
    ) -> list[Contestant]:
        """Lists the searches in stage space for the workers. One of them is for the bound, if a bound is wanted."""
        patience = SETTINGS.patience_rounds if bound else None
        annealing = StageAnnealing(start=_events_of(best), moves_per_node=_ENDLESS_MOVES_PER_NODE, patience=patience)
        solvers: list[Solver] = [annealing] * (num_staged - 1)
        solvers.append(self._relaxation(best, race.blocks) if bound else annealing)
        return [Contestant(solver, best.problem, seed + number) for number, solver in enumerate(solvers)]

    def _relaxation(self, best: Incumbent, blocks: Blocks | None = None, *, exact: bool = False) -> BlockRelaxation:
        moves = SETTINGS.first_moves_per_node if best.events is None else 0
        return BlockRelaxation(
            tolerance=self._tolerance, anneal_moves_per_node=moves, start=_events_of(best), bound=best.bound,
            exact=exact, anneals=MOVES.is_compiled(), blocks=blocks,
            num_threads=min(max(_num_cores() - 1, 1), SETTINGS.max_threads),
        )  # fmt: skip

    def _successor(self, best: Incumbent) -> Contestant:
        return Contestant(self._relaxation(best, exact=True), best.problem, 0)

    def _race(self, race: Race, contestants: list[Contestant], best: Incumbent, whole_time: bool = False) -> None:
        """Starts the contestants that are not running yet."""
        race.start(contestants[len(race.running) :])
        last_resorts: tuple[Solver, ...] = (Twremat(), XlaGreedy(), Fastsa())
        if not MOVES.is_compiled():  # the others need compiled code, too
            last_resorts = (ApGreedy(), *last_resorts)
        if len(contestants) == 1 and _num_cores() == 1:
            last_resorts = ()
        run_side_by_side(
            race, best, tolerance=self._tolerance, whole_time=whole_time,
            last_resorts=[Contestant(solver, best.problem, 0) for solver in last_resorts],
            successor=None if whole_time else self._successor,
        )  # fmt: skip
        if race.refusal and (best.cost is None or not race.running):  # There is only this process.
            best.learn_result(self._relaxation(best).search(_from_now_on(best.search)), "block_relaxation")

    def _search_beyond_stages(self, search: Search, in_stages: Result) -> Result:
        """Looks for a schedule, or a proof that none exists, if none in stages stays within the budget."""
        if len(search.problem.graph.nodes) <= SETTINGS.beyond_nodes:
            found = _search_exhaustively(search, SETTINGS.beyond_states)
            if found is not None:
                return found
        if search.remaining_s > SETTINGS.least_race_s:
            schedule = Fastsa().search(_from_now_on(search)).schedule
            if schedule is not None:
                return Result(schedule, stats={"won": "fastsa"})
        return in_stages

    def _search_free_order(self, search: Search) -> Result:
        """Anneals in the input order for a moment, and then searches in the better of two orders.

        The annealing makes sure that there is a schedule, whatever the search for another order leads to.
        """
        first = Incumbent(search)
        anneal = _anneal_longer_and_longer if self.first_schedule else _anneal_until_within_budget
        first.learn_result(anneal(search), "stage_annealing")
        if first.cost is None:
            return self._search_orders(search)
        if self.first_schedule:
            return first.result()
        found = self._search_orders(_below(search, first.cost))
        if found.schedule is not None and simulate(search.problem.graph, found.schedule).cost <= first.cost:
            return found
        return replace(found, schedule=first.schedule, stats={**found.stats, "won": first.won})

    def _search_orders(self, search: Search) -> Result:
        problem, seed, until_s = search.problem, search.seed, search.deadline_s
        graph = problem.graph
        with Race(until_s, self.memory_limit_bytes) as race:
            with _run_beside(race.prepare, self._num_workers if _num_cores() > 1 else 0):
                limit_s = SETTINGS.order_share * (until_s - time.perf_counter())
                order = search_order(graph, time_limit_s=limit_s, seed=seed, budget_bytes=problem.budget_bytes)
                if order.peak_bytes <= problem.budget_bytes:
                    stats = {"won": "topological_order"}
                    return Result(Schedule(order.order), graph.baseline_cost, "free", stats=stats)
                limit_s = SETTINGS.compare_orders_share * (until_s - time.perf_counter())
                chosen = _choose_order(problem, order.order, seed, limit_s)
            best = self._race_in_order(search, order.order, chosen, race)
        least_extra = min((node.cost for node in graph.nodes if node.recomputable), default=0)
        proved = order.peak_lower_bound_bytes > problem.budget_bytes
        bound = graph.baseline_cost + (least_extra if proved else 0)
        found = best.result()
        schedule = None if found.schedule is None else in_input_order(chosen, found.schedule)
        return Result(schedule, bound, "free", stats={**found.stats, **race.stats})

    def _race_in_order(
        self,
        search: Search,
        order: tuple[int, ...],
        chosen: tuple[int, ...],
        race: Race,
    ) -> Incumbent:
        """Searches in the chosen order: the input order, or the order of least peak, `order`."""
        problem, seed = search.problem, search.seed
        inner = Problem(reordered(problem.graph, chosen), problem.budget_bytes, "fixed")
        within = replace(search, problem=inner)
        # If the order changes the peak, FastSA has the whole time; otherwise, it has the time that the search leaves.
        plain = tuple(range(len(chosen)))
        explores = order != plain and not self.first_schedule and self._has_time(race.until_s)
        fastsa = Fastsa(first_order=plain if chosen == order else order)
        reorders = Contestant(fastsa, replace(inner, order="free"), seed)
        always = [reorders] if explores else []
        num_staged = max(1, self._num_workers - len(always))
        best = self._search_here(within, race, num_staged, beside=always)
        is_closed = best.is_closed(self._tolerance)
        if not self._has_time(race.until_s) or (self.first_schedule and is_closed):
            return best
        if is_closed and not explores:  # Only another order can be better.
            race.end()
            with Race(race.until_s, race.memory_limit_bytes) as alone:
                self._race(alone, [reorders], best, whole_time=True)
            race.workers.peak_memory_bytes = max(race.workers.peak_memory_bytes, alone.workers.peak_memory_bytes)
            return best
        contestants = self._contestants(race, best, seed, num_staged, bound=not explores)
        if explores and _num_cores() == 1:  # half of a core is too little for FastSA
            contestants = []
        if not explores and race.until_s - time.perf_counter() > SETTINGS.successor_s:
            contestants.append(reorders)
        self._race(race, [*always, *contestants], best, whole_time=not self.first_schedule)
        return best


def _from_now_on(search: Search, share: float = 1.0) -> Search:
    """Returns the same search with this share of the remaining time."""
    return replace(search, time_limit_s=share * search.remaining_s, started_s=time.perf_counter())


def _anneal_until_within_budget(search: Search, start: tuple[Event, ...] = ()) -> Result:
    """Anneals for a first schedule, and no longer, if the moves are compiled."""
    if not MOVES.is_compiled():
        return Result(None)
    problem = search.problem
    annealer = Annealer(problem.graph, problem.budget_bytes, search.seed)
    annealer.load(start)
    until_s = time.perf_counter() + SETTINGS.first_share * search.remaining_s  # without the time to load the moves
    for _ in range(SETTINGS.first_coolings):
        for _ in annealer.cool(SETTINGS.cooling_moves_per_node * len(problem.graph.nodes)):
            if annealer.best_cost is not None:
                annealer.restart()
                return Result(annealer.best_schedule())
            if time.perf_counter() > until_s:
                return Result(None)
    return Result(None)


def _anneal_longer_and_longer(search: Search, start: tuple[Event, ...] = ()) -> Result:
    """Anneals for a first schedule in half of the time, each time for longer, if the moves are compiled."""
    if not MOVES.is_compiled():
        return Result(None)
    run = AnnealingRun(StageAnnealing(start=start), _from_now_on(search, SETTINGS.longer_share))
    run.find_first()
    return run.result()


def _below(search: Search, cost: int) -> Search:
    """Returns the same search, which reports only schedules that cost less."""

    def tell(update: Update) -> None:
        if update.cost is not None and update.cost < cost:
            search.send(update)

    return replace(search, on_update=tell)


def _search_exhaustively(search: Search, max_states: int) -> Result | None:
    """Returns the optimum, or a proof that there is none; None if that takes more states or too much time."""
    oracle = Exhaustive(max_states=max_states)
    found = oracle.search(_from_now_on(search, SETTINGS.exhaustive_share))
    if found.schedule is None and found.infeasible_in is None:
        return None
    if found.schedule is not None:
        simulation = simulate(search.problem.graph, found.schedule)
        search.report(simulation.cost, found.cost_lower_bound, peak_bytes=simulation.peak_bytes)
    return replace(found, stats={**found.stats, "won": "exhaustive"})


@contextmanager
def _run_beside(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Runs the function beside this process's search, if that takes more than a moment and threads can be started."""
    timer = threading.Timer(SETTINGS.alone_s, function, arguments)
    with suppress(RuntimeError):
        timer.start()
    try:
        yield
    finally:
        with hold_interrupts():
            timer.cancel()
            if timer.is_alive():
                timer.join()


def _events_of(best: Incumbent) -> tuple[Event, ...]:
    return () if best.events is None else tuple(map(tuple, best.events.tolist()))


def _num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose_order(problem: Problem, order: tuple[int, ...], seed: int, time_limit_s: float) -> tuple[int, ...]:
    """Chooses between the given order and the input order, by the result of a short annealing in each."""
    plain = tuple(range(len(problem.graph.nodes)))
    if order == plain:
        return plain
    if not MOVES.compile_within(time_limit_s):
        return order  # Its peak is lower, so it is more likely to be solved.

    def cost(candidate: tuple[int, ...]) -> tuple[float, int]:
        until_s = time.perf_counter() + time_limit_s
        annealer = Annealer(reordered(problem.graph, candidate), problem.budget_bytes, seed)
        for _ in annealer.cool(SETTINGS.compared_moves_per_node * len(plain)):
            if time.perf_counter() > until_s:
                break
        return (np.inf if annealer.best_cost is None else annealer.best_cost), annealer.overflow

    return min((plain, order), key=cost)
