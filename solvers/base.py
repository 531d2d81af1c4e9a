"""What every solver takes and gives, and `solve`, the one way to run one."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.errors import ScheduleError, SolverError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order, Schedule, check_schedule
from checkmate_tf.simulator import Simulation, least_step, retain_all_schedule, simulate

# One name a method: `NAME` is the file solvers/NAME.py and the class Name in it.
SOLVER_NAMES = (
    "retain_all",
    "twremat",
    "xla_greedy",
    "exhaustive",
    "stage_annealing",
    "block_relaxation",
    "auto",
    "checkmate_milp",
    "chen_sqrt",
    "chen_greedy",
    "ap_sqrt",
    "ap_greedy",
    "linearized_sqrt",
    "linearized_greedy",
    "griewank",
    "checkmate_lp",
    "moccasin",
    "fastsa",
)


class Status(StrEnum):
    """OPTIMAL and INFEASIBLE are proofs within the problem's order mode."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True)
class Problem:
    """Find the schedule of least cost whose peak memory is at most `budget_bytes`.

    `order`: "fixed" keeps first computations in the graph's input order (Checkmate; MOCCASIN with
    stages); "free" lets a solver reorder (FastSA, TWRemat, MOCCASIN without stages). Proofs in fixed order are
    about Checkmate's stages, section 4.2: between two first computations other nodes run in the input order, each
    at most once. A schedule outside them can, rarely, cost less than such a bound.
    """

    graph: Graph
    budget_bytes: int
    order: Order = "fixed"


@dataclass(frozen=True)
class Progress:
    """A solver's state when its schedule or its bound improved."""

    time_s: float
    cost: int
    peak_bytes: int
    cost_lower_bound: int


@dataclass(frozen=True)
class Found:
    """What a solver returns; `solve` checks and simulates it.

    Args:
        schedule: within the budget, or None.
        cost_lower_bound: no schedule within the budget, in `bound_order`, costs less.
        bound_order: a "fixed" bound says nothing about free order; a "free" bound holds in both.
        infeasible: it is proved, in the problem's order, that no schedule keeps within the budget.
        stats: figures of the run worth reporting.
    """

    schedule: Schedule | None
    cost_lower_bound: int = 0
    bound_order: Order = "free"
    infeasible: bool = False
    stats: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """The checked and simulated result of a solver.

    `simulation` is None exactly when `schedule` is. `cost_lower_bound` is at least the cost of
    computing every node once.
    """

    status: Status
    schedule: Schedule | None
    simulation: Simulation | None
    cost_lower_bound: int
    bound_order: Order
    solver: str
    solve_time_s: float
    stats: Mapping[str, float | int | str]

    @property
    def gap(self) -> float | None:
        """Cost over its lower bound, minus 1; None without a schedule."""
        if self.simulation is None:
            return None
        return self.simulation.cost / self.cost_lower_bound - 1 if self.cost_lower_bound else 0.0


class Solver(ABC):
    """A method. Subclasses are frozen dataclasses of its options, each with a default."""

    @abstractmethod
    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        """A schedule within the budget and, where the method has one, a bound on any such schedule's cost.

        The same seed gives the same schedule wherever the time limit does not cut the search short.
        """


def get_solver(name: str) -> Solver:
    """The solver of that name with its default options. Raises SolverError for an unknown name."""
    if name not in SOLVER_NAMES:
        raise SolverError(f"there is no solver {name!r}; choose one of {', '.join(SOLVER_NAMES)}")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return getattr(import_module(f"checkmate_tf.solvers.{name}"), class_name)()


def solver_name(solver: Solver) -> str:
    """The one name of a solver: that of its file."""
    return type(solver).__module__.rpartition(".")[2]


def solve(
    graph: Graph,
    budget: int | float | str,
    *,
    solver: str | Solver = "auto",
    order: Order = "fixed",
    time_limit_s: float = 60.0,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The solver's schedule for a budget, checked and simulated: no solver reports its own cost or memory.

    Args:
        budget: bytes, a size such as "6GiB", or a percentage such as "80%" of the peak without
            rematerialization in the input order.
        solver: a name from SOLVER_NAMES, or a solver with options of your own.

    Raises BudgetError for a budget that cannot be read, and SolverError for an unknown solver or one
    that returns an invalid schedule, or one above the budget. That no schedule exists or none was
    found is no error but the solution's status.
    """
    chosen = get_solver(solver) if isinstance(solver, str) else solver
    peak_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes
    problem = Problem(graph, parse_budget(budget, peak_bytes=peak_bytes), order)
    started = time.perf_counter()
    if least_step(graph).peak_bytes > problem.budget_bytes:
        found = Found(None, infeasible=True)
    else:
        found = chosen.search(problem, time_limit_s=time_limit_s, seed=seed, on_progress=on_progress)
    return _checked(problem, found, solver_name(chosen), time.perf_counter() - started)


def _checked(problem: Problem, found: Found, name: str, solve_time_s: float) -> Solution:
    baseline = problem.graph.baseline_cost
    bound_order: Order = found.bound_order if found.cost_lower_bound > baseline else "free"
    bound = max(found.cost_lower_bound, baseline)
    simulation = None
    if found.schedule is None:
        status = Status.INFEASIBLE if found.infeasible else Status.NOT_FOUND
    else:
        simulation = _simulated(problem, found.schedule, name)
        proved = simulation.cost <= bound and bound_order in ("free", problem.order)
        status = Status.OPTIMAL if proved else Status.FEASIBLE
    return Solution(status, found.schedule, simulation, bound, bound_order, name, solve_time_s, dict(found.stats))


def _simulated(problem: Problem, schedule: Schedule, name: str) -> Simulation:
    try:
        check_schedule(problem.graph, schedule, order=problem.order)
    except ScheduleError as error:
        raise SolverError(f"solver {name} returned an invalid schedule: {error}") from error
    simulation = simulate(problem.graph, schedule)
    if simulation.peak_bytes > problem.budget_bytes:
        raise SolverError(
            f"solver {name} returned a schedule that needs {format_bytes(simulation.peak_bytes)} "
            f"for a budget of {format_bytes(problem.budget_bytes)}"
        )
    return simulation
