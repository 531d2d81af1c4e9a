"""No rematerialization: every node once, in the input order, every value retained to its last use.

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

    offloads: ClassVar[bool] = True  # It keeps all values in memory, whatever a copy costs.

    def search(self, search: Search) -> Result:
        problem = search.problem
        schedule = make_retain_all_schedule(problem.graph)
        fits = simulate(problem.graph, schedule).peak_bytes <= problem.budget_bytes
        return Result(schedule if fits else None)
