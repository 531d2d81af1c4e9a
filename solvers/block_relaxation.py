"""Exact solving in stage space by block relaxation with lazily added memory rows.

A few blocks of stages and no memory inside them give a small mixed-integer program whose optimum is a lower bound
(`block_model.py`). Its solution is expanded to a schedule and simulated: within the budget it is optimal; else it is
the start of a short annealing, and the blocks are cut, or memory rows added, where it overshot. Refined to the end the
model is Checkmate's full one (section 4.7), so the loop ends with a proof; cut short it has a bound and a schedule.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, retention
from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.block_model import BlockModel, Blocks, Event, Reach, build_model, cost_step, expand, point_of
from checkmate_tf.solvers.exchange import Exchange, News
from checkmate_tf.solvers.stage_annealing import Annealer, schedule_of

_MAX_CUTS = 3
_ANNEAL_SHARE = 0.4


@dataclass(frozen=True)
class BlockRelaxation(Solver):
    """Args:
    tolerance: ends when the schedule's cost is within this fraction of the baseline cost of its bound.
    anneal_moves_per_node: annealing before the first relaxation.
    start: recomputations (stage, node) known to keep within the budget or close to it.
    bound: a lower bound in fixed order that is known already.
    """

    tolerance: float = 0.0
    anneal_moves_per_node: int = 200
    start: tuple[Event, ...] = ()
    bound: int = 0

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        exchange = Exchange(on_progress, problem.budget_bytes)
        return self.search_with(problem, time_limit_s=time_limit_s, seed=seed, exchange=exchange)

    def search_with(self, problem: Problem, *, time_limit_s: float, seed: int, exchange: Exchange) -> Found:
        """`search` that shares what it finds."""
        run = _Run(problem, self, time_limit_s, seed, exchange)
        run.prepare()
        while not run.is_closed() and run.remaining_s > 0 and not run.infeasible:
            if not run.refine():
                break
        return run.found()


@dataclass(frozen=True)
class Relaxed:
    """What the MIP solver found: a bound on the extra cost and a point, or that there is none."""

    lower_bound: float
    point: np.ndarray | None
    infeasible: bool
    optimal: bool


@dataclass
class _Run:
    """One search: the incumbent (in `annealer`), the bound and the present blocks."""

    problem: Problem
    options: BlockRelaxation
    time_limit_s: float
    seed: int
    exchange: Exchange
    infeasible: bool = False
    rounds: int = 0
    gap_fraction: float = 0.15
    overshoots: dict[int, int] = field(default_factory=dict)
    hot: set[int] = field(default_factory=set)

    def prepare(self) -> None:
        self.started = time.perf_counter()
        graph = self.problem.graph
        self.graph = graph
        self.reach = Reach.of(graph)
        self.step = cost_step(graph)
        self.bound = max(graph.baseline_cost, self.options.bound)
        self.annealer = Annealer(graph, self.problem.budget_bytes, self.seed)
        self.annealer.load(self.options.start)
        self.report()
        for share in (0.1, 0.3, 0.6):
            if not self.is_closed():
                moves = int(share * self.options.anneal_moves_per_node * len(graph.nodes))
                self.anneal(moves, share * _ANNEAL_SHARE * self.time_limit_s)
        peak = simulate(graph, retain_all_schedule(graph)).peak_step
        self.blocks = Blocks(tuple(sorted({0, min(peak + 1, len(graph.nodes) - 1)})))

    @property
    def remaining_s(self) -> float:
        return self.time_limit_s - (time.perf_counter() - self.started)

    @property
    def gap(self) -> float:
        """Incumbent less bound, in units of cost."""
        best = self.annealer.best_cost
        return math.inf if best is None else best - self.bound

    def is_closed(self) -> bool:
        return self.gap <= self.options.tolerance * max(self.graph.baseline_cost, 1)

    def anneal(self, num_moves: int, limit_s: float) -> None:
        until = time.perf_counter() + min(limit_s, self.remaining_s)
        for _ in self.annealer.cooling(num_moves):
            if time.perf_counter() > until:
                break
        self.annealer.restart()
        self.report()

    def report(self) -> None:
        """Tells and hears what is new."""
        self.exchange.tell(News(self.annealer.best_events(), self.annealer.best_cost, self.bound))
        news = self.exchange.hear()
        if news is not None:
            self.annealer.learn(news)
            self.bound = max(self.bound, news.bound)

    def refine(self) -> bool:
        """Solves the relaxation of the present blocks, then refines them. False when nothing is left to refine."""
        self.rounds += 1
        model = build_model(self.graph, self.problem.budget_bytes, self.blocks, self.reach)
        relaxed = self.solve(model)
        if relaxed.infeasible:
            self.infeasible = self.annealer.best_cost is None
            return False
        self.raise_bound(relaxed.lower_bound * model.cost_unit, model)
        if self.is_closed() or relaxed.point is None:
            return False
        events = expand(model, self.graph, relaxed.point)
        schedule = schedule_of(len(self.graph.nodes), _rows(events))
        simulation = simulate(self.graph, schedule)
        if simulation.peak_bytes <= self.problem.budget_bytes:
            self.annealer.load(events)
            self.annealer.learn(News(_rows(events), simulation.cost, self.bound))
            self.report()
            if relaxed.optimal:
                return not self.is_closed() and self.tighten()
            return self.tighten()
        refined = self.cut(schedule, simulation.memory_bytes)
        self.annealer.load(events)
        self.anneal(40 * len(self.graph.nodes), 0.5)
        if refined == self.blocks:
            return self.tighten()
        self.blocks = refined
        return True

    def tighten(self) -> bool:
        """Asks for a smaller gap of the same model."""
        self.gap_fraction /= 4
        return self.gap_fraction > 1e-4

    def raise_bound(self, extra: float, model: BlockModel) -> None:
        """Extra cost is a multiple of `step`; what the solver's tolerances may have added is taken off first."""
        slack = model.cost_unit * (1e-6 + 1e-9 * model.num_columns) + 1e-9 * abs(extra)
        steps = math.ceil((extra - slack) / self.step)
        bound = self.graph.baseline_cost + steps * self.step
        if bound > self.bound:
            best = self.annealer.best_cost
            self.bound = bound if best is None else min(bound, best)
            self.report()

    def solve(self, model: BlockModel) -> Relaxed:
        best = self.annealer.best_cost
        absolute_gap = 0.5 * self.step
        start = None
        if best is not None:
            absolute_gap = max(absolute_gap, self.gap_fraction * self.gap)
            start = self.point_of_best(model)
        return solve_model(model, absolute_gap / model.cost_unit, self.remaining_s, start)

    def point_of_best(self, model: BlockModel) -> np.ndarray:
        events = self.annealer.best_events()
        assert events is not None
        schedule = schedule_of(len(self.graph.nodes), events)
        return point_of(model, map(tuple, events.tolist()), _held(self.graph, schedule, model.blocks.starts))

    def cut(self, schedule: Schedule, memory_bytes: np.ndarray) -> Blocks:
        """Cuts blocks, or adds rows, at the worst overshoots of a schedule."""
        num_stages = len(self.graph.nodes)
        starts, rows = set(self.blocks.starts), set(self.blocks.rows)
        worst = np.argsort(-memory_bytes, kind="stable")
        stages = _stages(schedule, num_stages)
        cuts = 0
        for step in worst.tolist():
            if cuts == _MAX_CUTS or memory_bytes[step] <= self.problem.budget_bytes:
                break
            stage, node = int(stages[step]), schedule.order[step]
            before = len(starts) + len(rows)
            if node == stage:
                starts |= {stage + 1}
            elif self.blocks.is_single(stage, num_stages):
                rows.add((stage, node))
                self.hot.add(node)
            else:
                again = self.overshoots.get(node, 0)
                self.overshoots[node] = again + 1
                first = max(stage + 1 - 2**again, node + 1)
                starts |= set(range(first, stage + 2))
            cuts += len(starts) + len(rows) > before
        starts.discard(num_stages)
        blocks = Blocks(tuple(sorted(starts)))
        rows |= {(stage, node) for stage in starts for node in self.hot
                 if node < stage and blocks.is_single(stage, num_stages)}  # fmt: skip
        return replace(blocks, rows=frozenset(row for row in rows if blocks.is_single(row[0], num_stages)))

    def found(self) -> Found:
        stats = {"relaxations": self.rounds, "blocks": len(self.blocks.starts), "memory_rows": len(self.blocks.rows)}
        schedule = self.annealer.best_schedule()
        return Found(schedule, self.bound, "fixed", infeasible=self.infeasible and schedule is None, stats=stats)


def solve_model(model: BlockModel, absolute_gap: float, time_limit_s: float, start: np.ndarray | None) -> Relaxed:
    """Solves the mixed-integer program with HiGHS; costs and the gap are in units of `model.cost_unit`."""
    import highspy

    if model.infeasible:
        return Relaxed(math.inf, None, infeasible=True, optimal=False)
    highs = highspy.Highs()
    options = {
        "output_flag": False, "threads": 1, "parallel": "off", "mip_heuristic_effort": 0.0, "mip_allow_restart": False,
        "mip_rel_gap": 0.0, "mip_abs_gap": max(absolute_gap, 1e-6), "time_limit": max(time_limit_s, 0.01),
    }  # fmt: skip
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(_highs_lp(model))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Relaxed(math.inf, None, infeasible=True, optimal=False)
    has_point = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    point = np.array(highs.getSolution().col_value) if has_point else None
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0
    return Relaxed(bound, point, infeasible=False, optimal=status == highspy.HighsModelStatus.kOptimal)


def _highs_lp(model: BlockModel):
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.num_columns, len(model.rows.lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.costs, np.zeros(model.num_columns), np.ones(model.num_columns)
    lp.row_lower_ = np.where(np.isfinite(model.rows.lower), model.rows.lower, -highspy.kHighsInf)
    lp.row_upper_ = np.where(np.isfinite(model.rows.upper), model.rows.upper, highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_, lp.a_matrix_.index_ = model.rows.start, model.rows.column
    lp.a_matrix_.value_ = model.rows.coefficient
    integrality = [highspy.HighsVarType.kContinuous] * model.num_columns
    for column in model.integers.tolist():
        integrality[column] = highspy.HighsVarType.kInteger
    lp.integrality_ = integrality
    return lp


def _rows(events: Iterable[Event]) -> np.ndarray:
    return np.array(sorted(events), dtype=np.int64).reshape(-1, 2)


def _stages(schedule: Schedule, num_stages: int) -> np.ndarray:
    """The stage of each step, int64."""
    order = np.asarray(schedule.order, dtype=np.int64)
    first = np.zeros(len(order), dtype=np.int64)
    first[1:] = np.maximum.accumulate(order)[:-1] + 1
    return np.minimum(first, num_stages - 1)


def _held(graph: Graph, schedule: Schedule, starts: Iterable[int]) -> list[set[int]]:
    """The values held at the entry of each block."""
    intervals = retention(graph, schedule)
    stages = _stages(schedule, len(graph.nodes))
    start, end = stages[intervals.start], stages[intervals.end]
    return [set(intervals.value[(start < first) & (end >= first)].tolist()) for first in starts]
