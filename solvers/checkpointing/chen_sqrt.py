"""Chen et al. (2016), sqrt(n): every k-th layer of a linear network is a checkpoint, k about sqrt(n).

Checkmate, Table 1: for linear forward passes only. On another graph only retaining everything is tried, as the
heuristic says nothing there: see `ap_sqrt` and `linearized_sqrt`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, every_sqrt, is_linear, linear_candidates


@dataclass(frozen=True)
class ChenSqrt(Solver):
    """It has no options."""

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        candidates = linear_candidates(problem.graph)
        choices = (every_sqrt(candidates),) if is_linear(problem.graph) else ()
        return cheapest_policy(problem, choices, time_limit_s=time_limit_s)
