"""Ends Chen's greedy segments at articulation points of the forward graph, with optimal R.

Checkmate, section 6.1 and appendix B.1. On a linear network it equals `chen_greedy`.
"""

from dataclasses import dataclass

from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import articulation_candidates, cheapest_policy, greedy_choices
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class ApGreedy(Solver):
    """Retains articulation points, one for about every b bytes.

    The search over b tries `num_sizes` values, from the smallest layer to all layers together.
    """

    num_sizes: int = 50

    def search(self, search: Search) -> Result:
        candidates = articulation_candidates(search.problem.graph)
        choices = greedy_choices(search.problem.graph, candidates, num_sizes=self.num_sizes)
        return cheapest_policy(search, choices)
