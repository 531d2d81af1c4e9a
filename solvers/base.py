"""Defines the input and output of every solver: Problem, Solver, Result and Solution."""

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
"""The schedules that a proof covers: "free" means all, "fixed" those whose first computations are in the input order,
and "stages" those of these that lie in Checkmate's stages (see `Problem`)."""


class Status(StrEnum):
    """The status of a solution. OPTIMAL and INFEASIBLE are proofs.

    INFEASIBLE means that no schedule in the problem's order stays within the budget. OPTIMAL means that no schedule in
    that order costs less. In fixed order, the latter proof covers the schedules in Checkmate's stages (see `Problem`).

    Example:

    >>> [status.name for status in Status]
    ['OPTIMAL', 'FEASIBLE', 'INFEASIBLE', 'NOT_FOUND']
    """

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True)
class Result:
    """The result of a search, before `solve` checks and simulates it.

    Args:
        schedule: a schedule within the budget, or None.
        cost_lower_bound: lower bound on the cost of every schedule within the budget, in `bound_order`.
        bound_order: a "fixed" bound says nothing about free order; a "free" bound holds in both.
        infeasible_in: the schedules that the search proved to exceed the budget; None without a proof.
        stats: figures about the run.
    """

    schedule: Schedule | None
    cost_lower_bound: int = 0
    bound_order: Order = "free"
    infeasible_in: Scope | None = None
    stats: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scheduled:
    """A schedule and its simulation.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> solve(graph, "100%").scheduled.simulation.peak_bytes
    400
    """

    schedule: Schedule
    simulation: Simulation


@dataclass(frozen=True)
class Solution:
    """The checked and simulated result of a solver.

    `best` is None if no schedule was found. `cost_lower_bound` is at least the cost of computing every node once.
    `stats` are figures from the solver. They include `peak_memory_bytes` and `workers_peak_memory_bytes`, the most
    memory that this process, or a process that it started, has held so far, if the operating system reports it. If a
    solver skipped a part that would have taken too much memory or time, its `stats` include the reason as `gave_up`.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> solution = solve(graph, "100%")
    >>> solution.status.name, solution.schedule.order, solution.gap
    ('OPTIMAL', (0,), 0.0)
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
        """Returns the schedule, or None if none was found."""
        return None if self.best is None else self.best.schedule

    @property
    def simulation(self) -> Simulation | None:
        """Returns the simulation of the schedule, or None if none was found."""
        return None if self.best is None else self.best.simulation

    @property
    def scheduled(self) -> Scheduled:
        """Returns the schedule and its simulation. Raises SolverError if none was found."""
        if self.best is None:
            raise SolverError(f"solver {self.solver} found no schedule within the budget: {self.status}")
        return self.best

    @property
    def gap(self) -> float | None:
        """Returns the cost divided by its lower bound, minus 1; None without a schedule."""
        if self.best is None:
            return None
        return self.best.simulation.cost / self.cost_lower_bound - 1 if self.cost_lower_bound else 0.0


class Solver(ABC):
    """A method for finding schedules. Subclasses are frozen dataclasses of its options, each with a default.

    `shares` means that its searches report recomputations as they find them, and poll for those of other searches.
    `offloads` means that it accepts graphs whose values have transfer costs, and chooses which values to offload.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> from checkmate_tf.simulator import make_retain_all_schedule
    >>> @dataclass(frozen=True)
    ... class InOrder(Solver):
    ...     def search(self, search):
    ...         return Result(make_retain_all_schedule(search.problem.graph))
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> solve(graph, "100%", solver=InOrder()).schedule.order
    (0,)
    """

    shares: ClassVar[bool] = False
    offloads: ClassVar[bool] = False

    @abstractmethod
    def search(self, search: Search) -> Result:
        """Returns a schedule within the budget and, if the method proves one, a lower bound on the cost.

        The same seed leads to the same schedule, unless the time limit ends the search.
        """
