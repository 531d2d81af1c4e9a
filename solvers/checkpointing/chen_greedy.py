"""Chen et al. (2016), Algorithm 3: checkpoints about every b bytes of a linear network, with a search over b.

Checkmate, Table 1: for linear forward passes only. On another graph only retaining everything is tried, as the
heuristic says nothing there: see `ap_greedy` and `linearized_greedy`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, greedy_choices, is_linear, linear_candidates


@dataclass(frozen=True)
class ChenGreedy(Solver):
    """The search over b tries `num_sizes` values, from the smallest layer to all layers together."""

    num_sizes: int = 50

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        candidates = linear_candidates(problem.graph) if is_linear(problem.graph) else ()
        choices = greedy_choices(problem.graph, candidates, num_sizes=self.num_sizes)
        return cheapest_policy(problem, choices, time_limit_s=time_limit_s)
