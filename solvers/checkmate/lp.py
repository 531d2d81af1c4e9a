"""Checkmate's approximation: the LP relaxation of (9), its bound, and two-phase rounding of its S.

Checkmate, section 5 and appendix D. The relaxation leaves an allowance, (1 - epsilon) x budget; where the paper fixes
epsilon at 0.1, it is searched here from 0 upwards, until two values in a row lead to no cheaper schedule. The bound is
that of epsilon 0, from the dual point (`safe_bound`), so it holds whether or not the LP method converged. Departures:
the LP has the tighter rows over the presolved stage space (model.py); thresholds from 0 to 1 are tried where the paper
rounds at 0.5; recomputations that the budget does not need are removed from the schedule. `CheckmateLp.paper()` is
without these departures. No schedule above the budget is ever returned.
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
    """Rounds the LP relaxation of (9), which also gives the bound.

    Args:
        backend: "auto" is Gurobi where its licence allows the size, otherwise "simplex". That and "ipm" are HiGHS's;
            experiments/checkmate/relaxation_methods.py compares them. "cvxpy" is `cvxpy_solver`. Without a
            licence that is large enough HiGHS runs.
        cvxpy_solver: which CVXPY calls, for that back end.
        rounding: of S; "swept" tries thresholds from 0 to 1, "deterministic" only 0.5.
        num_samples: thresholds or random draws tried for each allowance.
        allowances: the values of epsilon, ascending; the first should be 0, as the bound comes from it.
        start_from: solvers whose schedule limits the recomputations of the optimum; it is not returned.
        presolve: drop entries and rows that a schedule no worse than that one cannot use.
        most_events: above this number of events at which the budget can bind, only those of the stages' own nodes have
            a row: the LP is several times faster and its bound hardly lower.
        pruned: remove recomputations that the budget does not need from the best schedule.
        form: the rows that stand for (9).
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
        """The paper's: the relaxation of (9) by its own rows with epsilon 0.1, rounded once, by Algorithm 2.

        As its only relaxation is that of a smaller budget, it proves no bound.
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
            # A smaller budget may take more repeats than the schedule that set the cutoff.
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
        """Finds the cheapest rounding within the budget; the first one is tried whatever the time."""
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
