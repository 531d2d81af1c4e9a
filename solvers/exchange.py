"""How searches of one problem share what they know while they run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from checkmate_tf.solvers.base import Progress


@dataclass(frozen=True)
class News:
    """A set of recomputations within the budget, int64 [num_events, 2] of (stage, node), its cost, and a lower bound.

    `events` and `cost` are None where only the bound is news.
    """

    events: np.ndarray | None
    cost: int | None
    bound: int


@dataclass
class Exchange:
    """The exchange of a search on its own: it tells the caller, and hears nothing."""

    on_progress: Callable[[Progress], None] | None = None
    budget_bytes: int = 0
    started: float = field(default_factory=time.perf_counter)

    def tell(self, news: News) -> None:
        """Something improved."""
        if self.on_progress is not None and news.cost is not None:
            self.on_progress(Progress(time.perf_counter() - self.started, news.cost, self.budget_bytes, news.bound))

    def hear(self) -> News | None:
        """The latest that others found, once."""
        return None
