"""Chen's greedy segments, ended at articulation points of the forward graph, with optimal R.

Checkmate, section 6.1 and appendix B.1. On a linear network it is `chen_greedy`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkpointing.policy import articulation_candidates, cheapest_policy, greedy_choices


@dataclass(frozen=True)
class ApGreedy(Solver):
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
        candidates = articulation_candidates(problem.graph)
        choices = greedy_choices(problem.graph, candidates, num_sizes=self.num_sizes)
        return cheapest_policy(problem, choices, time_limit_s=time_limit_s)
