"""Chen's sqrt(n) on the articulation points of the forward graph, with optimal R.

Checkmate, section 6.1 and appendix B.1. On a linear network it is `chen_sqrt`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkpointing.policy import articulation_candidates, cheapest_policy, every_sqrt


@dataclass(frozen=True)
class ApSqrt(Solver):
    """It has no options."""

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        choices = (every_sqrt(articulation_candidates(problem.graph)),)
        return cheapest_policy(problem, choices, time_limit_s=time_limit_s)
