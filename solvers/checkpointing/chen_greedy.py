"""Chen et al. (2016), Algorithm 3: a checkpoint about every b bytes of a linear network, with a search over b.

Checkmate, Table 1: for linear forward passes only. The heuristic does not cover other graphs; there, the solver only
tries to retain everything. `ap_greedy` and `linearized_greedy` cover them.
"""

from dataclasses import dataclass

from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, greedy_choices, is_linear, linear_candidates
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class ChenGreedy(Solver):
    """Retains layers of a linear network, one for about every b bytes.

    The search over b tries `num_sizes` values, from the smallest layer to all layers together.
    """

    num_sizes: int = 50

    def search(self, search: Search) -> Result:
        candidates = linear_candidates(search.problem.graph) if is_linear(search.problem.graph) else ()
        choices = greedy_choices(search.problem.graph, candidates, num_sizes=self.num_sizes)
        return cheapest_policy(search, choices)
