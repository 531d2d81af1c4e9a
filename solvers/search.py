"""What one run of a solver shares with its caller, and with other searches of the same problem."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from checkmate_tf.solvers.problem import Problem


@dataclass(frozen=True)
class Update:
    """What a search knows when its schedule or its bound improved.

    Args:
        time_s: since the search began.
        cost, peak_bytes: of the best schedule; `cost` is None as long as there is none.
        cost_lower_bound: no schedule within the budget costs less.
        events: the schedule's recomputations, int64 [num_events, 2] of (stage, node), from searches that share them.
    """

    time_s: float
    cost: int | None
    peak_bytes: int
    cost_lower_bound: int
    events: np.ndarray | None = None


@dataclass
class Search:
    """One run of a solver: the problem, the time, the seed, and who is told what improves.

    Args:
        time_limit_s: since `started_s`, a time of `time.perf_counter()`.
        on_update: called with every update whose cost is known.
    """

    problem: Problem
    time_limit_s: float
    seed: int = 0
    on_update: Callable[[Update], None] | None = None
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def deadline_s(self) -> float:
        return self.started_s + self.time_limit_s

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - time.perf_counter()

    def report(
        self, cost: int | None, cost_lower_bound: int, *, peak_bytes: int = 0, events: np.ndarray | None = None
    ) -> None:
        """Tells what improved; without `peak_bytes` the schedule's peak is taken to be the budget."""
        peak_bytes = peak_bytes or self.problem.budget_bytes
        self.send(Update(self.elapsed_s, cost, peak_bytes, cost_lower_bound, events))

    def send(self, update: Update) -> None:
        if self.on_update is not None and update.cost is not None:
            self.on_update(update)

    def poll(self) -> Update | None:
        """The latest that other searches of the problem found, once; a search on its own hears nothing."""
        return None
