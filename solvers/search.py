"""The state that one run of a solver shares with its caller and with other searches of the same problem."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from checkmate_tf.budget import format_bytes
from checkmate_tf.process_memory import find_free_bytes
from checkmate_tf.solvers.problem import Problem

# What is larger takes a solver longer to build than anyone waits.
MOST_MEMORY_BYTES = 4 * 2**30


def find_memory_limit() -> int:
    """Returns how much memory a search may take: half of the free memory, and at most `MOST_MEMORY_BYTES`."""
    free = find_free_bytes()
    return MOST_MEMORY_BYTES if free is None else min(free // 2, MOST_MEMORY_BYTES)


def check_memory(needed_bytes: float, limit_bytes: float) -> None:
    """Raises MemoryError if a search would take more memory than its limit."""
    if needed_bytes > limit_bytes:
        needed, limit = format_bytes(int(needed_bytes)), format_bytes(int(limit_bytes))
        raise MemoryError(f"it would need at least {needed} of memory, above its limit of {limit}")


@dataclass(frozen=True)
class Update:
    """An improvement of a search's schedule or bound.

    Args:
        time_s: time since the search began.
        cost, peak_bytes: of the best schedule; `cost` is None while there is none.
        cost_lower_bound: lower bound on the cost of every schedule within the budget.
        events: the schedule's recomputations, int64 [num_events, 2] of (stage, node), from searches that share them.

    Example:

    >>> update = Update(time_s=0.5, cost=12, peak_bytes=400, cost_lower_bound=11)
    >>> f"at most {update.cost / update.cost_lower_bound - 1:.1%} above the optimum"
    'at most 9.1% above the optimum'
    """

    time_s: float
    cost: int | None
    peak_bytes: int
    cost_lower_bound: int
    events: np.ndarray | None = None


@dataclass
class Search:
    """One run of a solver: the problem, the time limit, the seed, and the callback for improvements.

    Args:
        time_limit_s: limit of the time since `started_s`, a time of `time.perf_counter()`.
        on_update: called with every update whose cost is known.
        memory_limit_bytes: memory that the search may take. A solver whose model would be larger gives up before it
            builds the model.
    """

    problem: Problem
    time_limit_s: float
    seed: int = 0
    on_update: Callable[[Update], None] | None = None
    started_s: float = field(default_factory=time.perf_counter)
    memory_limit_bytes: int = field(default_factory=find_memory_limit)

    @property
    def deadline_s(self) -> float:
        return self.started_s + self.time_limit_s

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - time.perf_counter()

    def check_memory(self, needed_bytes: float) -> None:
        """Raises MemoryError if the search may not take so much memory. The solution's status is then NOT_FOUND."""
        check_memory(needed_bytes, self.memory_limit_bytes)

    def report(
        self, cost: int | None, cost_lower_bound: int, *, peak_bytes: int = 0, events: np.ndarray | None = None
    ) -> None:
        """Reports an improvement. Without `peak_bytes`, the schedule's peak is taken to be the budget."""
        peak_bytes = peak_bytes or self.problem.budget_bytes
        self.send(Update(self.elapsed_s, cost, peak_bytes, cost_lower_bound, events))

    def send(self, update: Update) -> None:
        if self.on_update is not None and update.cost is not None:
            self.on_update(update)

    def poll(self) -> Update | None:
        """Returns the latest update from other searches of the problem, each once. A search on its own returns None."""
        return None
