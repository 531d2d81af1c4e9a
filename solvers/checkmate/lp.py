"""Checkmate's approximation: the LP relaxation of (9), its bound, and two-phase rounding of its S.

Checkmate, section 5 and appendix D. The relaxation gets a smaller budget, (1 - epsilon) x budget, as an allowance for
rounding. The paper fixes epsilon at 0.1. Here the solver tries values from 0 upwards, until two in a row lead to no
cheaper schedule. The bound comes from epsilon 0 and its dual point (`safe_bound`), so it holds whether or not the LP
method converged.

Further departures: the LP has the tighter rows over the presolved stage space (model.py); it tries rounding thresholds
from 0 to 1, where the paper rounds at 0.5; and it removes recomputations that the budget does not need.
`CheckmateLp.paper()` is without these departures. No schedule above the budget is ever returned.
"""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.milp import find_space, pick_cheaper, proved_bound
from checkmate_tf.solvers.checkmate.model import StageModel, build_model
from checkmate_tf.solvers.checkmate.rounding import Rounding, rounded
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkmate.stage_space import own_events
from checkmate_tf.solvers.checkmate.starts import QUICK_SOLVERS, best_start
from checkmate_tf.solvers.mip.program import CvxpySolver
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import schedule_of_checkpoints


@dataclass(frozen=True)
class CheckmateLp(Solver):
    """Rounds the LP relaxation of (9), and returns the bound that the relaxation proves.

    Args:
        backend: "auto" is Gurobi if its licence allows the size, otherwise "simplex". "simplex" and "ipm" are methods
            of HiGHS, which experiments/checkmate/relaxation_methods.py compares. "cvxpy" is `cvxpy_solver`. HiGHS runs
            if a licence is too small.
        cvxpy_solver: the solver that CVXPY calls, for the back end "cvxpy".
        rounding: how to round S. "swept" tries thresholds from 0 to 1, and "deterministic" only 0.5.
        num_samples: number of thresholds or random draws for each allowance.
        allowances: the values of epsilon, in ascending order. The first should be 0, because the bound comes from it.
        start_from: solvers whose schedule limits the recomputations of the optimum. That schedule is not returned.
        presolve: drop entries and rows that no schedule at most as expensive as that one can use.
        most_events: if the budget can bind at more events than this, only the events of the stages' own nodes have a
            row. The LP is then several times faster, and its bound hardly lower.
        pruned: remove recomputations that the budget does not need from the best schedule.
        form: the rows that represent (9).
    """

    backend: backends.Relaxation = "auto"
    cvxpy_solver: CvxpySolver = "HIGHS"
    rounding: Rounding = "swept"
    num_samples: int = 40
    allowances: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
    start_from: tuple[Solver, ...] = QUICK_SOLVERS
    presolve: bool = True
    most_events: int = 5000
    pruned: bool = True
    form: Formulation = field(default_factory=Formulation)

    @staticmethod
    def paper() -> "CheckmateLp":
        """Returns the paper's solver: the relaxation of (9) by its own rows, rounded once, by Algorithm 2.

        Epsilon is 0.1. The solver proves no bound, because its only relaxation is that of a smaller budget.
        """
        return CheckmateLp(
            rounding="deterministic",
            allowances=(0.1,),
            start_from=(),
            presolve=False,
            pruned=False,
            form=Formulation(tight=False),
        )

    def search(self, search: Search) -> Result:
        problem, graph, seed = search.problem, search.problem.graph, search.seed
        limit_s = search.time_limit_s / SETTINGS.start_part
        start = best_start(problem, self.start_from, None, time_limit_s=limit_s, seed=seed)
        cost = None if start is None else simulate(graph, start).cost
        if cost == graph.baseline_cost:
            return Result(start, graph.baseline_cost, "free")
        most_extra = None if cost is None else cost - graph.baseline_cost
        best: Schedule | None = None
        told: dict[str, str] = {}
        bound, infeasible, idle, lps = graph.baseline_cost, False, 0, 0
        for allowance in self.allowances:
            if search.remaining_s <= 0 or idle == SETTINGS.idle_allowances:
                break
            reduced = replace(problem, budget_bytes=int((1 - allowance) * problem.budget_bytes))
            # A smaller budget may need more repeats than the schedule that set the cutoff.
            most = most_extra
            if allowance > 0 and most_extra is not None:
                most = SETTINGS.more_repeats_ratio * most_extra
            try:
                model = self._model(search, reduced, most)
            except (TimeoutError, MemoryError) as error:
                told["gave_up"] = str(error)
                break
            answer = backends.relax(
                model, self.backend, time_limit_s=search.remaining_s, seed=seed, cvxpy_solver=self.cvxpy_solver
            )
            lps += 1
            told |= {key: str(answer.stats[key]) for key in ("backend", "fallback") if key in answer.stats}
            if allowance == 0:
                bound = proved_bound(problem, model, answer, None, start)
                infeasible = answer.infeasible and start is None
            if answer.x is None:
                break
            before = best
            best = pick_cheaper(problem, best, self._rounded(problem, model, answer.x, search.deadline_s, seed))
            idle = idle + 1 if best is before and best is not None else 0
            _report(search, best, bound)
        if best is not None and self.pruned:
            best = prune(graph, best, problem.budget_bytes, deadline_s=search.deadline_s)
        return Result(best, bound, "fixed", "stages" if infeasible else None, {"relaxations": lps, **told})

    def _model(self, search: Search, problem: Problem, most_extra_cost: int | None) -> StageModel:
        space = find_space(search, problem, most_extra_cost, presolve=self.presolve)
        if self.form.tight and space.binding.sum() > self.most_events:
            space = replace(space, binding=own_events(space))
        return build_model(
            problem.graph,
            problem.budget_bytes,
            space,
            form=self.form,
            deadline_s=time.perf_counter() + SETTINGS.build_share * search.remaining_s,
            memory_limit_bytes=search.memory_limit_bytes,
        )

    def _rounded(
        self, problem: Problem, model: StageModel, point: np.ndarray, deadline_s: float, seed: int
    ) -> Schedule | None:
        """Returns the cheapest rounding within the budget. The first one is tried even after the deadline."""
        best: Schedule | None = None
        fractional = model.retain(point)
        for retain in rounded(fractional, self.rounding, num_samples=self.num_samples, seed=seed):
            best = pick_cheaper(problem, best, schedule_of_checkpoints(problem.graph, retain))
            if time.perf_counter() > deadline_s:
                break
        return best


def _report(search: Search, best: Schedule | None, bound: int) -> None:
    if search.on_update is not None and best is not None:
        simulation = simulate(search.problem.graph, best)
        search.report(simulation.cost, bound, peak_bytes=simulation.peak_bytes)
