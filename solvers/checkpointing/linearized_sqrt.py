"""Applies Chen's sqrt(n) to the forward nodes as a path in the input order, with optimal R.

Checkmate, section 6.1 and appendix B.2. On a linear network it equals `chen_sqrt`.
"""

from dataclasses import dataclass

from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import cheapest_policy, every_sqrt, linear_candidates
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class LinearizedSqrt(Solver):
    """Retains about every sqrt(n)-th forward node. It has no options."""

    def search(self, search: Search) -> Result:
        choices = (every_sqrt(linear_candidates(search.problem.graph)),)
        return cheapest_policy(search, choices)
