"""Solves Checkmate's mixed-integer linear program (9), to a proof if time allows.

Checkmate, section 4. The departures keep the optimum: rows tighter than (7b) and (7c) (model.py); entries of R and S
that presolve removes (stage_space.py); a cutoff, because a schedule from quick methods limits the cost of the repeats
of an optimum, so nodes that cost more are computed once; and budget rows that are added only where a solution breaks
them. The program also covers separate values of a node, nodes that are not recomputable, workspace, and in-place
outputs. If values have costs of transfers, the program offloads them, too (transfers.py). It is then a relaxation: its
schedule may take longer than its optimum.

`CheckmateMilp.paper()` is without these departures.

Proofs are about Checkmate's stages: between two first computations, other nodes run in the input order, each at most
once.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from checkmate_tf.errors import SolverError
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import StageModel, build_model
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkmate.stage_space import StageSpace, full_space, own_events, presolved_space
from checkmate_tf.solvers.checkmate.starts import QUICK_SOLVERS, best_start
from checkmate_tf.solvers.mip.program import CvxpySolver
from checkmate_tf.solvers.offloading.bound import bound_cost
from checkmate_tf.solvers.offloading.choose import has_transfers
from checkmate_tf.solvers.offloading.transfers import hide_transfers
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search

_ROUNDING = 1e-6  # relative error of a bound that the libraries' tolerances allow


@dataclass(frozen=True)
class CheckmateMilp(Solver):
    """Solves (9) with a library for mixed-integer programs.

    Args:
        backend: "auto" is Gurobi if its licence allows the size, otherwise HiGHS. "cvxpy" is `cvxpy_solver`, which
            reports no bound before its end. HiGHS runs if a licence is too small.
        cvxpy_solver: the solver that CVXPY calls, for the back end "cvxpy".
        warm_start: any schedule of the graph. It is used if it stays within the budget.
        start_from: solvers that are asked for a first schedule; none for a cold start.
        presolve: drop entries and rows that no schedule at most as expensive as the first one can use.
        lazy_rows: begin with the budget rows of the stages' own nodes, and add those of a stage's recomputations when a
            solution breaks them. The bound of every round holds.
        form: the rows that represent (9).
    """

    backend: backends.Backend = "auto"
    cvxpy_solver: CvxpySolver = "HIGHS"
    warm_start: Schedule | None = None
    start_from: tuple[Solver, ...] = QUICK_SOLVERS
    presolve: bool = True
    lazy_rows: bool = True
    form: Formulation = field(default_factory=Formulation)
    offloads: ClassVar[bool] = True

    @staticmethod
    def paper() -> "CheckmateMilp":
        """Returns the paper's solver: (9) by its own rows, all at once, over the whole triangle of stages."""
        return CheckmateMilp(start_from=(), presolve=False, lazy_rows=False, form=Formulation(tight=False))

    def search(self, search: Search) -> Result:
        problem, graph = search.problem, search.problem.graph
        if has_transfers(graph) and not self.form.tight:
            raise SolverError(
                "the paper's rows do not offload: choose Formulation(tight=True), or drop_transfers(graph)"
            )
        limit_s = search.time_limit_s / SETTINGS.start_part
        start = best_start(problem, self.start_from, self.warm_start, time_limit_s=limit_s, seed=search.seed)
        start_time_s = time.perf_counter() - search.started_s
        most_extra = None if start is None else simulate(graph, start).cost - graph.baseline_cost
        if most_extra == 0:
            return Result(start, graph.baseline_cost, "free", stats={"columns": 0, "rows": 0})
        try:
            space = find_space(search, problem, most_extra, presolve=self.presolve)
        except (TimeoutError, MemoryError) as error:
            return Result(start, stats={"gave_up": str(error)})
        rows = own_events(space) if self.lazy_rows and self.form.tight else space.binding
        best, bound, num_rounds, build_time_s = start, graph.baseline_cost, 0, 0.0
        if has_transfers(graph):
            deadline_s = time.perf_counter() + SETTINGS.build_share * search.remaining_s
            bound = bound_cost(graph, problem.budget_bytes, deadline_s=deadline_s)
        while True:
            began_s = time.perf_counter()
            try:
                model = self._build(search, replace(space, binding=rows))
            except (TimeoutError, MemoryError) as error:
                return Result(best, bound, "fixed", stats={"rounds": num_rounds, "gave_up": str(error)})
            num_rounds += 1
            built_s = time.perf_counter() - began_s
            build_time_s += built_s
            hints = built_s <= SETTINGS.hint_share * search.remaining_s
            answer = self._answer(search, model, best if hints else None)
            schedule = None if answer.x is None else model.schedule(graph, answer.x)
            best = pick_cheaper(problem, best, schedule)
            if schedule is not None and schedule.fetches:
                best = pick_cheaper(problem, best, hide_transfers(graph, schedule, problem.budget_bytes))
            bound = max(bound, proved_bound(problem, model, answer, schedule, best))
            more = None if schedule is None else _exceeded(problem, schedule, space.binding) & ~rows
            if more is None or not more.any() or search.remaining_s < 0:
                break
            rows = rows | more
        infeasible = answer.infeasible and best is None
        stats = {
            "columns": len(model.cost),
            "booleans": int(model.integer.sum()),
            "rows": model.matrix.shape[0],
            "nonzeros": model.matrix.nnz,
            "rounds": num_rounds,
            "start_time_s": round(start_time_s, 3),
            "build_time_s": round(build_time_s, 3),
            **answer.stats,
        }
        return Result(best, bound, "fixed", "stages" if infeasible else None, stats)

    def _build(self, search: Search, space: StageSpace) -> StageModel:
        return build_model(
            search.problem.graph,
            search.problem.budget_bytes,
            space,
            form=self.form,
            deadline_s=time.perf_counter() + SETTINGS.build_share * search.remaining_s,
            memory_limit_bytes=search.memory_limit_bytes,
        )

    def _answer(self, search: Search, model: StageModel, start: Schedule | None) -> backends.Answer:
        return backends.solve_milp(
            model,
            self.backend,
            time_limit_s=search.remaining_s,
            seed=search.seed,
            start=None if start is None else model.point(search.problem.graph, start),
            on_improved=None if search.on_update is None else _reporter(search, model),
            cvxpy_solver=self.cvxpy_solver,
        )


def find_space(search: Search, problem: Problem, most_extra_cost: int | None, *, presolve: bool) -> StageSpace:
    """Returns the stage space of a search's problem, or of the same problem with a smaller budget.

    Raises TimeoutError or MemoryError if that takes more time or memory than the search may use.
    """
    graph = problem.graph
    num_nodes, num_values = len(graph.nodes), len(graph.values)
    search.check_memory(SETTINGS.space_bytes * num_nodes * (num_nodes + num_values))
    if not presolve:
        return full_space(graph)
    return presolved_space(graph, problem.budget_bytes, most_extra_cost=most_extra_cost, deadline_s=search.deadline_s)


def _exceeded(problem: Problem, schedule: Schedule, binding: np.ndarray) -> np.ndarray:
    """Returns the events, among `binding`, of the stages in which a schedule in stages exceeds the budget."""
    first = np.zeros(len(schedule), dtype=np.int64)
    first[np.unique(np.array(schedule.order), return_index=True)[1]] = 1
    stage = np.cumsum(first) - first
    over = simulate(problem.graph, schedule).memory_bytes > problem.budget_bytes
    exceeded = np.zeros_like(binding)
    exceeded[np.unique(stage[over])] = True
    return exceeded & binding


def pick_cheaper(problem: Problem, first: Schedule | None, second: Schedule | None) -> Schedule | None:
    """Returns the cheaper of two schedules among those within the budget; the first one if they cost the same."""
    simulated = [(schedule, simulate(problem.graph, schedule)) for schedule in (first, second) if schedule is not None]
    fitting = [(result.cost, schedule) for schedule, result in simulated if result.peak_bytes <= problem.budget_bytes]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


def proved_bound(
    problem: Problem, model: StageModel, answer: backends.Answer, schedule: Schedule | None, best: Schedule | None
) -> int:
    """Returns a lower bound on the cost in stages, rounded up to whole cost steps.

    Args:
        schedule: the schedule of the answer, within the budget or not.
        best: a schedule within the budget. It costs at least as much as the cutoff under which the model was built, so
            the bound is at most its cost.

    If values can be offloaded, the model's optimum may be below the cost of its schedule.
    """
    baseline = problem.graph.baseline_cost
    limit = np.inf if best is None else simulate(problem.graph, best).cost
    if answer.infeasible:
        return baseline if best is None else int(limit)
    if answer.optimal and schedule is not None and not len(model.fetched.column):
        return int(min(limit, simulate(problem.graph, schedule).cost))
    if not math.isfinite(answer.bound):
        return baseline
    step = model.cost_step
    tolerance = _ROUNDING * (backends.model_cost_scale(model) + answer.bound - baseline + model.most_time)
    return int(min(limit, baseline + max(0, math.ceil((answer.bound - tolerance - baseline) / step)) * step))


def _reporter(search: Search, model: StageModel) -> Callable[[np.ndarray, float], None]:
    problem = search.problem

    def report(x: np.ndarray, bound: float) -> None:
        simulation = simulate(problem.graph, model.schedule(problem.graph, x))
        if simulation.peak_bytes > problem.budget_bytes:
            return
        proved = proved_bound(problem, model, backends.Answer(x, bound), None, None)
        search.report(simulation.cost, proved, peak_bytes=simulation.peak_bytes)

    return report
