"""What every solver takes and gives: Problem, Solver, Result and Solution."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from checkmate_tf.errors import SolverError
from checkmate_tf.schedule import Order, Schedule
from checkmate_tf.simulator import Simulation
from checkmate_tf.solvers.search import Search

Scope = Literal["free", "fixed", "stages"]
"""The schedules that a proof is about: all, those whose first computations are in the input order, or, of these,
Checkmate's stages (see `Problem`)."""


class Status(StrEnum):
    """OPTIMAL and INFEASIBLE are proofs.

    INFEASIBLE: no schedule of the problem's order keeps within the budget. OPTIMAL: none in that order costs less, but
    for bounds in fixed order, which are about Checkmate's stages (see `Problem`).
    """

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True)
class Result:
    """What a solver returns; `solve` checks and simulates it.

    Args:
        schedule: within the budget, or None.
        cost_lower_bound: no schedule within the budget, in `bound_order`, costs less.
        bound_order: a "fixed" bound says nothing about free order; a "free" bound holds in both.
        infeasible_in: it is proved that none of these schedules keeps within the budget; None where nothing is.
        stats: figures of the run worth reporting.
    """

    schedule: Schedule | None
    cost_lower_bound: int = 0
    bound_order: Order = "free"
    infeasible_in: Scope | None = None
    stats: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scheduled:
    """A schedule, and what the simulator says of it."""

    schedule: Schedule
    simulation: Simulation


@dataclass(frozen=True)
class Solution:
    """The checked and simulated result of a solver.

    `best` is None where there is no schedule. `cost_lower_bound` is at least the cost of computing every node once.
    `stats` are figures of the solver, and these: `peak_memory_bytes` and `workers_peak_memory_bytes`, the most that
    this process, or one that it started to search, has held so far, where the system tells; `gave_up`, why a solver
    left out what would have taken too much memory or time.
    """

    status: Status
    best: Scheduled | None
    cost_lower_bound: int
    bound_order: Order
    solver: str
    solve_time_s: float
    stats: Mapping[str, float | int | str]

    @property
    def schedule(self) -> Schedule | None:
        """The schedule; None where there is none."""
        return None if self.best is None else self.best.schedule

    @property
    def simulation(self) -> Simulation | None:
        """What the simulator says of the schedule; None where there is none."""
        return None if self.best is None else self.best.simulation

    @property
    def scheduled(self) -> Scheduled:
        """The schedule and its simulation. Raises SolverError where there is none."""
        if self.best is None:
            raise SolverError(f"solver {self.solver} found no schedule within the budget: {self.status}")
        return self.best

    @property
    def gap(self) -> float | None:
        """Cost over its lower bound, minus 1; None without a schedule."""
        if self.best is None:
            return None
        return self.best.simulation.cost / self.cost_lower_bound - 1 if self.cost_lower_bound else 0.0


class Solver(ABC):
    """A method. Subclasses are frozen dataclasses of its options, each with a default.

    `shares`: its searches report recomputations as they find them, and poll for those of others.
    `offloads`: it takes graphs whose values have costs of transfers, and chooses which of them to offload, or none.
    """

    shares: ClassVar[bool] = False
    offloads: ClassVar[bool] = False

    @abstractmethod
    def search(self, search: Search) -> Result:
        """A schedule within the budget and, where the method has one, a bound on any such schedule's cost.

        The same seed gives the same schedule wherever the time limit does not cut the search short.
        """
