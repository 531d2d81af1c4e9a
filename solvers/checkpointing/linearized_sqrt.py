"""Chen's sqrt(n) on the forward nodes as a path in the input order, with optimal R.

Checkmate, section 6.1 and appendix B.2. On a linear network it is `chen_sqrt`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, every_sqrt, linear_candidates


@dataclass(frozen=True)
class LinearizedSqrt(Solver):
    """It has no options."""

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        choices = (every_sqrt(linear_candidates(problem.graph)),)
        return cheapest_policy(problem, choices, time_limit_s=time_limit_s)
