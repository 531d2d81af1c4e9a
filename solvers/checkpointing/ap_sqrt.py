"""Applies Chen's sqrt(n) to the articulation points of the forward graph, with optimal R.

Checkmate, section 6.1 and appendix B.1. On a linear network it equals `chen_sqrt`.
"""

from dataclasses import dataclass

from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkpointing.policy import articulation_candidates, cheapest_policy, every_sqrt
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class ApSqrt(Solver):
    """Retains about sqrt(n) articulation points. It has no options."""

    def search(self, search: Search) -> Result:
        choices = (every_sqrt(articulation_candidates(search.problem.graph)),)
        return cheapest_policy(search, choices)
