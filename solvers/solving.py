"""Runs a solver, and checks and simulates its schedule: `solve` is the only way to run one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_origin, get_type_hints

from checkmate_tf.arguments import check_callable, check_seed, check_time_limit, check_word
from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.errors import ScheduleError, SolverError
from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.patterns import Pattern, constrain_by_patterns
from checkmate_tf.process_memory import find_peak_bytes
from checkmate_tf.schedule import Order, Schedule, check_schedule
from checkmate_tf.simulator import Simulation, find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers.base import Result, Scheduled, Solution, Solver, Status
from checkmate_tf.solvers.offloading.choose import has_transfers
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.registry import SOLVER_NAMES, choose_solver, solver_name
from checkmate_tf.solvers.search import Search, Update


def solve(
    graph: Graph,
    budget: int | float | str,
    *,
    time_limit_s: float = 60.0,
    solver: str | Solver = "auto",
    order: Order = "fixed",
    seed: int = 0,
    on_progress: Callable[[Update], None] | None = None,
    keep: Sequence[Pattern] = (),
    recompute: Sequence[Pattern] = (),
) -> Solution:
    """Solves for the cheapest schedule within a budget, and returns it checked and simulated.

    The simulator computes the schedule's cost and memory, not the solver. The solver does not run if a single node
    exceeds the budget, nor if the input order without rematerialization stays within it, unless the solver is your own.

    Args:
        graph: the graph, for example from `load_graph`.
        budget: bytes, a size such as "6GiB", or a percentage such as "80%" of the peak without rematerialization in the
            input order.
        time_limit_s: seconds for the search and for importing and loading the solver, which takes longest the first
            time.
        solver: a name from SOLVER_NAMES, or a solver with options of your own.
        keep: patterns of nodes that are never computed again, such as ["*attention*"], or functions that take a node
            and return whether it is one of them.
        recompute: patterns of forward nodes whose results are not retained for the backward pass.
        order: "fixed" keeps first computations in the input order, and "free" lets the solver reorder them.
        seed: the same seed leads to the same schedule if the time limit does not end the search.
        on_progress: called with each better schedule or bound.

    Raises:
        GraphError: if `graph` is not a graph.
        BudgetError: if the budget cannot be read.
        PatternError: if a pattern matches nothing.
        SolverError: for an unknown solver, order or option, a seed that is not a whole number, a time limit that is not
            a number of seconds, and a solver that returns an invalid schedule or one above the budget.

    If no schedule exists or none was found, the solution's status says so.

    Example:

    The output of "a" is read at once and at the end. Within 170 bytes it cannot be retained in between, so "a" runs
    again:

    >>> from checkmate_tf import Graph, Node, Value
    >>> a, b = Node("a", "Relu", (), (0,), cost=2), Node("b", "Conv2D", (0,), (1,), cost=9)
    >>> c, d = Node("c", "Conv2D", (1,), (2,), cost=9), Node("d", "Add", (0, 2), (3,), cost=1)
    >>> values = (Value("of a", 40), Value("of b", 80), Value("of c", 80), Value("of d", 10))
    >>> solution = solve(Graph((a, b, c, d), values, outputs=(3,)), 170)
    >>> solution.status.name, solution.schedule.order, solution.simulation.peak_bytes
    ('OPTIMAL', (0, 1, 2, 0, 3), 160)
    """
    started_s = time.perf_counter()  # Importing the solver is part of its time.
    check_graph(graph)
    if keep or recompute:
        return _solve_steered(
            graph, budget, keep, recompute, time_limit_s, solver=solver, order=order, seed=seed, on_progress=on_progress
        )
    chosen = choose_solver(solver)
    check_word(order, "order", Order)
    for option, kind in get_type_hints(type(chosen)).items():
        if get_origin(kind) is Literal:
            check_word(getattr(chosen, option), f"{option} of {solver_name(chosen)}", kind)
    if has_transfers(graph) and not chosen.offloads:
        raise SolverError(
            f"solver {solver_name(chosen)} does not offload, and values of graph {graph.name!r} have costs of "
            "transfers: choose auto, stage_annealing, checkmate_milp, moccasin or fastsa, or take the costs out with "
            "drop_transfers(graph)"
        )
    time_limit_s, seed = check_time_limit(time_limit_s), check_seed(seed)
    if on_progress is not None:
        check_callable(on_progress, "on_progress")
    peak_bytes = simulate_stock(graph).peak_bytes
    problem = Problem(graph, parse_budget(budget, peak_bytes=peak_bytes), order)
    if find_peak_bound(graph).peak_bytes > problem.budget_bytes:
        found = Result(None, infeasible_in="free")
    elif peak_bytes <= problem.budget_bytes and solver_name(chosen) in SOLVER_NAMES:
        found = Result(make_retain_all_schedule(graph), stats={"won": "retain_all"})
    else:
        search = _search_without_resident(problem, time_limit_s, seed, on_progress, started_s)
        try:
            found = chosen.search(search)
        except MemoryError as error:  # from a solver that checks its limit, or from an allocation that failed
            found = Result(None, stats={"gave_up": str(error) or "it ran out of memory"})
    return _checked(problem, found, solver_name(chosen), time.perf_counter() - started_s)


def _solve_steered(
    graph: Graph,
    budget: int | float | str,
    keep: Sequence[Pattern],
    recompute: Sequence[Pattern],
    time_limit_s: float,
    **how: Any,
) -> Solution:
    """Solves the graph that the patterns constrain, and returns a solution of the graph itself."""
    constrained = constrain_by_patterns(graph, keep=keep, recompute=recompute)
    budget_bytes = parse_budget(budget, peak_bytes=simulate_stock(graph).peak_bytes)
    solution = solve(constrained.graph, budget_bytes, time_limit_s=time_limit_s, **how)
    if solution.schedule is None:
        return solution
    schedule = constrained.take_back(solution.schedule)
    return replace(solution, best=Scheduled(schedule, simulate(graph, schedule)))


def _search_without_resident(
    problem: Problem,
    time_limit_s: float,
    seed: int,
    on_progress: Callable[[Update], None] | None,
    started_s: float,
) -> Search:
    """Returns a search of the problem without resident bytes, which are subtracted from the graph and the budget.

    Some solvers work in fractions of the budget. They would overlook values that are tiny relative to the resident
    bytes.
    """
    resident_bytes = problem.graph.resident_bytes
    graph = replace(problem.graph, resident_bytes=0) if resident_bytes else problem.graph

    def tell(update: Update) -> None:
        assert on_progress is not None
        on_progress(replace(update, peak_bytes=update.peak_bytes + resident_bytes))

    inner = replace(problem, graph=graph, budget_bytes=problem.budget_bytes - resident_bytes)
    return Search(inner, time_limit_s, seed, on_progress and tell, started_s)


def _checked(problem: Problem, found: Result, name: str, solve_time_s: float) -> Solution:
    baseline = problem.graph.baseline_cost
    bound_order: Order = found.bound_order if found.cost_lower_bound > baseline else "free"
    bound = max(found.cost_lower_bound, baseline)
    best = None
    stats = dict(found.stats)
    peak_memory_bytes = find_peak_bytes()
    if peak_memory_bytes is not None:
        stats["peak_memory_bytes"] = peak_memory_bytes
    if found.schedule is None:
        status = Status.INFEASIBLE if found.infeasible_in in ("free", problem.order) else Status.NOT_FOUND
        stats |= {"infeasible_in": found.infeasible_in} if found.infeasible_in else {}
    else:
        best = Scheduled(found.schedule, _simulated(problem, found.schedule, name))
        proved = best.simulation.cost <= bound and bound_order in ("free", problem.order)
        status = Status.OPTIMAL if proved else Status.FEASIBLE
    return Solution(status, best, bound, bound_order, name, solve_time_s, stats)


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
