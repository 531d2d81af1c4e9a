"""Checkmate's mixed integer linear program (9), solved to a proof where time allows.

Checkmate, section 4. Departures, all with the same optimum: rows tighter than (7b), (7c) (solvers/checkmate_model.py),
entries of R and S presolved away (solvers/stage_space.py), and a cutoff: a schedule found by quick methods bounds what
the optimum may repeat, so nodes that cost more are computed once. Separate values of a node, nodes that are not
recomputable, workspace and in-place outputs are respected.

Its proofs are about Checkmate's stages: between two first computations, other nodes in the input order, at most once.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from checkmate_tf.schedule import Schedule, from_stages
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import checkmate_backends as backends
from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.checkmate_model import Formulation, StageModel, build_model
from checkmate_tf.solvers.stage_space import full_space, presolved_space
from checkmate_tf.solvers.starts import QUICK_SOLVERS, best_start


@dataclass(frozen=True)
class CheckmateMilp(Solver):
    """(9) on a back end.

    Args:
        backend: of these, "gurobi" needs the extra of that name and a licence; without a large enough one HiGHS runs.
        warm_start: any schedule of the graph; used where it is within the budget.
        start_from: solvers asked for a first schedule; none for a cold start.
        presolve: drop entries and rows that a schedule no worse than the first one cannot use.
        form: the rows that stand for (9).
    """

    backend: Literal["highs", "gurobi", "cpsat"] = "highs"
    warm_start: Schedule | None = None
    start_from: tuple[str, ...] = QUICK_SOLVERS
    presolve: bool = True
    form: Formulation = field(default_factory=Formulation)

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        started = time.perf_counter()
        graph = problem.graph
        start = best_start(problem, self.start_from, self.warm_start, time_limit_s=time_limit_s / 10, seed=seed)
        begun = time.perf_counter()
        most_extra = None if start is None else simulate(graph, start).cost - graph.baseline_cost
        if most_extra == 0:
            return Found(start, graph.baseline_cost, "free", stats={"columns": 0, "rows": 0})
        space = (
            presolved_space(graph, problem.budget_bytes, most_extra_cost=most_extra)
            if self.presolve
            else full_space(graph)
        )
        model = build_model(graph, problem.budget_bytes, space, form=self.form)
        built = time.perf_counter()
        report = None if on_progress is None else _reporter(problem, model, started, on_progress)
        answer = backends.solve(
            model,
            self.backend,
            time_limit_s=time_limit_s - (built - started),
            seed=seed,
            start=None if start is None else model.point(graph, start),
            on_improved=report,
        )
        found = schedule_of(problem, model, answer)
        schedule = cheaper(problem, start, found)
        cost = None if schedule is None else simulate(graph, schedule).cost
        if found is None:
            answer = replace(answer, optimal=False)
        bound = proved_bound(problem, model, answer, cost)
        stats = {
            "columns": len(model.cost),
            "rows": model.matrix.shape[0],
            "nonzeros": model.matrix.nnz,
            "start_time_s": round(begun - started, 3),
            "build_time_s": round(built - begun, 3),
            **answer.stats,
        }
        return Found(schedule, bound, "fixed", answer.infeasible and start is None and problem.order == "fixed", stats)


def schedule_of(problem: Problem, model: StageModel, answer: backends.Answer) -> Schedule | None:
    """The schedule of a back end's point, None without one or when the solver's tolerance let it exceed the budget."""
    if answer.x is None:
        return None
    schedule = from_stages(problem.graph, model.recompute(answer.x) > 0.5)
    return schedule if simulate(problem.graph, schedule).peak_bytes <= problem.budget_bytes else None


def cheaper(problem: Problem, first: Schedule | None, second: Schedule | None) -> Schedule | None:
    """The schedule that costs less, the first when equal."""
    if first is None or second is None:
        return first if second is None else second
    return min(first, second, key=lambda schedule: simulate(problem.graph, schedule).cost)


def proved_bound(problem: Problem, model: StageModel, answer: backends.Answer, cost: int | None) -> int:
    """A lower bound on cost in stages, in whole steps of cost; at most `cost`, the cutoff under which it holds."""
    baseline = problem.graph.baseline_cost
    if answer.infeasible or answer.optimal:
        return baseline if cost is None else cost
    if not math.isfinite(answer.bound):
        return baseline
    step = backends.cost_step(model)
    tolerance = 1e-6 * (backends.cost_scale(model) + answer.bound - baseline)
    bound = baseline + max(0, math.ceil((answer.bound - tolerance - baseline) / step)) * step
    return bound if cost is None else min(bound, cost)


def _reporter(
    problem: Problem, model: StageModel, started: float, on_progress: Callable[[Progress], None]
) -> Callable[[np.ndarray, float], None]:
    def report(x: np.ndarray, bound: float) -> None:
        simulation = simulate(problem.graph, from_stages(problem.graph, model.recompute(x) > 0.5))
        proved = proved_bound(problem, model, backends.Answer(x, bound), simulation.cost)
        on_progress(Progress(time.perf_counter() - started, simulation.cost, simulation.peak_bytes, proved))

    return report
