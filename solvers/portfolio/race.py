"""Solvers of one problem side by side in worker processes, which share the best schedule and the best bound."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Found, Problem, Solver
from checkmate_tf.solvers.exchange import Exchange, News
from checkmate_tf.solvers.portfolio.worker import Message, Task, Workers
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.solvers.relaxation.model import Blocks
from checkmate_tf.solvers.stages import Event, events_of, rows_of, schedule_of_events

_RETURN_S = 0.5
_WORTH_A_START_S = 5.0
_ALONE_SHARE = 0.6


@dataclass(frozen=True)
class Contestant:
    """A solver and its problem, which may be in free order where the portfolio's is fixed and its result is mapped."""

    solver: Solver
    problem: Problem
    seed: int

    @property
    def shares(self) -> bool:
        """It tells and hears what is found while it runs; others are heard when they end."""
        return hasattr(self.solver, "search_with")


@dataclass
class Best:
    """The best of a search so far: a schedule, the best recomputations in stage space, and a bound in fixed order.

    `won` is the solver that found the schedule; `blocks` are what a relaxation may begin with.
    """

    problem: Problem
    schedule: Schedule | None = None
    cost: int | None = None
    events: np.ndarray | None = None
    events_cost: int | None = None
    bound: int = 0
    infeasible: bool = False
    blocks: Blocks | None = None
    won: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, found: Found, name: str) -> "Best":
        best = Best(problem, bound=problem.graph.baseline_cost)
        best.learn_found(found, name)
        return best

    def is_closed(self, tolerance: float) -> bool:
        return self.cost is not None and self.cost - self.bound <= tolerance * self.problem.graph.baseline_cost

    def learn(self, news: News, name: str) -> bool:
        """Takes over what is better; whether anything is."""
        better_bound = news.bound > self.bound
        self.bound = max(self.bound, news.bound)
        if news.cost is None or news.events is None:
            return better_bound
        better_events = self.events_cost is None or news.cost < self.events_cost
        if better_events:
            self.events, self.events_cost = news.events, news.cost
        if self.cost is None or news.cost < self.cost:
            self.schedule = schedule_of_events(len(self.problem.graph.nodes), news.events)
            self.cost, self.won = news.cost, name
        return better_events or better_bound

    def learn_found(self, found: Found, name: str) -> bool:
        """Takes over what is better of a solver's result in fixed order; its schedule may lie outside stage space."""
        bound = found.cost_lower_bound
        self.infeasible = self.infeasible or found.infeasible
        if found.schedule is None:
            return self.learn(News(None, None, bound), name)
        return self.learn_schedule(found.schedule, name, bound)

    def learn_schedule(self, schedule: Schedule, name: str, bound: int = 0) -> bool:
        """Takes over a schedule within the budget if it is better, and its recomputations if they keep to it too."""
        graph = self.problem.graph
        cost = int(graph.costs[list(schedule.order)].sum())
        if self.cost is None or cost < self.cost:
            self.schedule, self.cost, self.won = schedule, cost, name
        return self.learn(news_of(self.problem, schedule, bound), name)

    def news(self) -> News:
        return News(self.events, self.events_cost, self.bound)

    def found(self) -> Found:
        stats = {"won": self.won} if self.won else {}
        stats |= {f"failed_{name}": reason for name, reason in self.failed.items()}
        return Found(
            self.schedule, self.bound, "fixed", infeasible=self.infeasible and self.schedule is None, stats=stats
        )


@dataclass
class Race:
    """Contestants in worker processes, until a time of `time.perf_counter()`; a context manager that ends them all."""

    until: float
    memory_limit_bytes: int
    workers: Workers = field(default_factory=Workers)
    running: list[Contestant] = field(default_factory=list)

    def __enter__(self) -> "Race":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends all contestants; none can be started after it."""
        self.workers.__exit__()

    def prepare(self, count: int) -> None:
        """Starts the processes of the next contestants, which are not known yet."""
        with contextlib.suppress(OSError):
            self.workers.prepare(count)

    def start(self, contestants: Sequence[Contestant]) -> None:
        for contestant in contestants:
            open_s = self.until - time.perf_counter() - (0 if contestant.shares else _RETURN_S)
            task = Task(contestant.solver, contestant.problem, open_s, contestant.seed, self.memory_limit_bytes)
            try:
                self.workers.start(task)
            except OSError:
                return
            self.running.append(contestant)


def run_side_by_side(
    race: Race,
    best: Best,
    exchange: Exchange,
    *,
    tolerance: float,
    last_resorts: Sequence[Contestant] = (),
    successor: Callable[[Best], Contestant] | None = None,
    whole_time: bool = False,
) -> None:
    """Goes on until the best schedule and bound meet, or time is up; `best` takes over what the contestants find.

    Args:
        last_resorts: join when most of the time has brought no schedule, one after the other.
        successor: takes the place of the first contestant to end with time left, and goes on from the best till then.
        whole_time: goes on when they meet, as some contestants are not held to what the bound is about.
    """
    workers, until, waiting = race.workers, race.until, list(last_resorts)
    join_at = time.perf_counter() + _ALONE_SHARE * (until - time.perf_counter())
    while (len(workers) or waiting) and time.perf_counter() < until:
        if not whole_time and (best.infeasible or best.is_closed(tolerance)):
            break
        if best.cost is None and waiting and (time.perf_counter() >= join_at or not len(workers)):
            race.start(waiting[:1])
            waiting, join_at = waiting[1:], until
        for message in workers.messages(max(0.0, (join_at if waiting else until) - time.perf_counter())):
            contestant = race.running[message.worker]
            if contestant in last_resorts and message.news is None:
                join_at = time.perf_counter()
            if _learn(best, message, contestant):
                workers.tell(best.news(), but=message.worker)
                exchange.tell(replace(best.news(), cost=best.cost))
            is_early = message.found is not None and until - time.perf_counter() > _WORTH_A_START_S
            if is_early and successor is not None and contestant not in last_resorts and not best.is_closed(tolerance):
                race.start([successor(best)])
                successor = None
        if best.cost is not None:
            waiting = []


def _learn(best: Best, message: Message, contestant: Contestant) -> bool:
    name = solver_name(contestant.solver)
    if message.error is not None:
        best.failed[name] = message.error
    if message.news is not None:
        return best.learn(message.news, name)
    if message.found is None:
        return False
    if contestant.problem.order == best.problem.order:
        return best.learn_found(message.found, name)
    return message.found.schedule is not None and best.learn_schedule(message.found.schedule, name)


def news_of(problem: Problem, schedule: Schedule, bound: int = 0) -> News:
    """A schedule's recomputations as news, where in Checkmate's order they keep within the budget; else the bound."""
    graph = problem.graph
    events = rows_of(staged_events(schedule))
    simulation = simulate(graph, schedule_of_events(len(graph.nodes), events))
    if simulation.peak_bytes > problem.budget_bytes:
        return News(None, None, bound)
    return News(events, simulation.cost, bound)


def staged_events(schedule: Schedule) -> tuple[Event, ...]:
    """The recomputations of a schedule, each once a stage; none where its first computations are in another order."""
    latest = np.maximum.accumulate(np.asarray(schedule.order, dtype=np.int64))
    if (np.diff(latest, prepend=-1) > 1).any():
        return ()
    return tuple(sorted(set(events_of(schedule))))
