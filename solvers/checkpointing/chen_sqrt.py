"""Chen et al. (2016), sqrt(n): every k-th layer of a linear network is a checkpoint, with k about sqrt(n).

Checkmate, Table 1: for linear forward passes only. The heuristic does not cover other graphs; there, the solver only
tries to retain everything. `ap_sqrt` and `linearized_sqrt` cover them.
"""

from dataclasses import dataclass

from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, every_sqrt, is_linear, linear_candidates
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class ChenSqrt(Solver):
    """Retains about every sqrt(n)-th layer of a linear network. It has no options."""

    def search(self, search: Search) -> Result:
        candidates = linear_candidates(search.problem.graph)
        choices = (every_sqrt(candidates),) if is_linear(search.problem.graph) else ()
        return cheapest_policy(search, choices)
