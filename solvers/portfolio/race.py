"""Runs solvers of one problem side by side in worker processes, which share the best schedule and the best bound."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from checkmate_tf.solvers.base import Solver
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.portfolio.settings import SETTINGS
from checkmate_tf.solvers.portfolio.worker import Message, Task, Workers
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.solvers.relaxation.model import Blocks
from checkmate_tf.user_warnings import warn


@dataclass(frozen=True)
class Contestant:
    """A solver and its problem, which may be in free order although the portfolio's is fixed. Its result is mapped."""

    solver: Solver
    problem: Problem
    seed: int


@dataclass
class Race:
    """Contestants in worker processes, until a time of `time.perf_counter()`; a context manager that ends them all.

    `blocks` are blocks for a relaxation among them to begin with. `refusal` is why the last ones could not be started.
    """

    until_s: float
    memory_limit_bytes: int
    workers: Workers = field(default_factory=Workers)
    running: list[Contestant] = field(default_factory=list)
    blocks: Blocks | None = None
    refusal: str = ""

    def __enter__(self) -> "Race":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends all contestants. None can be started after it."""
        self.workers.__exit__()

    @property
    def stats(self) -> dict[str, float | int | str]:
        """Returns the workers' figures."""
        peak_bytes = self.workers.peak_memory_bytes
        return {"workers_peak_memory_bytes": peak_bytes} if peak_bytes else {}

    def prepare(self, count: int) -> None:
        """Starts the processes of the next contestants before these are known."""
        with contextlib.suppress(OSError):
            self.workers.prepare(count)

    def start(self, contestants: Sequence[Contestant]) -> None:
        """Starts the contestants, if processes can be started and there is time."""
        for contestant in contestants:
            if self.until_s - time.perf_counter() < SETTINGS.least_task_s:
                return
            open_s = self.until_s - time.perf_counter() - (0 if contestant.solver.shares else SETTINGS.return_s)
            task = Task(contestant.solver, contestant.problem, open_s, contestant.seed, self.memory_limit_bytes)
            try:
                self.workers.start(task)
            except OSError as error:
                self.refusal = str(error)
                return
            self.refusal = ""
            self.running.append(contestant)


def run_side_by_side(
    race: Race,
    incumbent: Incumbent,
    *,
    tolerance: float,
    last_resorts: Sequence[Contestant] = (),
    successor: Callable[[Incumbent], Contestant] | None = None,
    whole_time: bool = False,
) -> None:
    """Waits until the best schedule and bound meet, or time is up. `incumbent` takes over the contestants' results.

    A contestant whose process dies is started once more. A single warning at the end names the contestants that failed
    all the same.

    Args:
        last_resorts: contestants that join one after the other if most of the time has brought no schedule.
        successor: replaces the first contestant that ends with time left, and continues from the best results so far.
        whole_time: continue after schedule and bound meet, because some contestants are not limited to the bound's
            schedules.
    """
    workers, until_s, waiting = race.workers, race.until_s, list(last_resorts)
    restarted: list[Contestant] = []
    join_at = time.perf_counter() + SETTINGS.alone_share * (until_s - time.perf_counter())
    while (len(workers) or waiting) and time.perf_counter() < until_s:
        if not whole_time and (incumbent.infeasible_in or incumbent.is_closed(tolerance)):
            break
        if incumbent.cost is None and waiting and (time.perf_counter() >= join_at or not len(workers)):
            race.start(waiting[:1])
            waiting, join_at = waiting[1:], until_s
        if race.refusal and not len(workers):
            break
        for message in workers.messages(max(0.0, (join_at if waiting else until_s) - time.perf_counter())):
            contestant = race.running[message.worker]
            if message.died and contestant not in restarted and until_s - time.perf_counter() > SETTINGS.least_race_s:
                restarted.append(contestant)
                race.start([contestant])
                workers.tell(incumbent.update())
                continue
            if contestant in last_resorts and message.update is None:
                join_at = time.perf_counter()
            if _learn(incumbent, message, contestant):
                workers.tell(incumbent.update(), but=message.worker)
            is_early = message.result is not None and until_s - time.perf_counter() > SETTINGS.successor_s
            goes_on = is_early and contestant not in last_resorts and not incumbent.is_closed(tolerance)
            if goes_on and successor is not None:
                race.start([successor(incumbent)])
                successor = None
        if incumbent.cost is not None:
            waiting = []
    _warn_of_failures(race, incumbent)


def _warn_of_failures(race: Race, incumbent: Incumbent) -> None:
    failures = [f"{name} {reason}" for name, reason in incumbent.failed.items()]
    failures += [f"no more could be started ({race.refusal})"] if race.refusal else []
    if failures:
        warn(
            f"worker processes of the solver failed: {'; '.join(failures)}. The result comes "
            "from the workers that did not fail"
        )


def _learn(incumbent: Incumbent, message: Message, contestant: Contestant) -> bool:
    name = solver_name(contestant.solver)
    if message.error is not None:
        incumbent.failed[name] = message.error
    if message.update is not None:
        return incumbent.learn(message.update, name)
    if message.result is None:
        return False
    if contestant.problem.order == incumbent.problem.order:
        return incumbent.learn_result(message.result, name)
    return message.result.schedule is not None and incumbent.learn_schedule(message.result.schedule, name)
