"""No rematerialization: every node once, in the input order, every value retained to its last use.

Checkmate, Table 1, "Checkpoint all (Ideal)"; TWRemat's NoRemat.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers.base import Found, Problem, Progress, Solver


@dataclass(frozen=True)
class RetainAll(Solver):
    """The one schedule without a repeat; it has no options."""

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        schedule = retain_all_schedule(problem.graph)
        fits = simulate(problem.graph, schedule).peak_bytes <= problem.budget_bytes
        return Found(schedule if fits else None)
