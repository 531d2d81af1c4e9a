"""No rematerialization: every node runs once, in the input order, and every value is retained until its last use.

Checkmate, Table 1, "Checkpoint all (Ideal)"; TWRemat's NoRemat.
"""

from dataclasses import dataclass
from typing import ClassVar

from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.search import Search


@dataclass(frozen=True)
class RetainAll(Solver):
    """Returns the one schedule that recomputes nothing. It has no options."""

    offloads: ClassVar[bool] = True  # It accepts graphs with costs of transfers, because it offloads nothing.

    def search(self, search: Search) -> Result:
        problem = search.problem
        schedule = make_retain_all_schedule(problem.graph)
        fits = simulate(problem.graph, schedule).peak_bytes <= problem.budget_bytes
        return Result(schedule if fits else None)
