"""Solves exactly in stage space by block relaxation, and adds memory rows only where they are needed.

A few blocks of stages, without memory rows inside them, make a small mixed-integer program whose optimum is a lower
bound (`model.py`). Its solution is expanded to a schedule and simulated. If the schedule is within the budget, it is
optimal. Otherwise, a short annealing starts from it, and the blocks are cut, or memory rows added, where it exceeds the
budget. Refined to the end, the model is Checkmate's full one (section 4.7), so the loop ends with a proof.

Before each mixed-integer program, path cuts (`cuts.py`) and a block cut where it is short of memory (`growth.py`)
strengthen the linear one. Few blocks chosen in this way are worth more than many: with a block for every overloaded
stage, the bound is much lower. Each round therefore adds one cut where the linear solution is short of memory, and one
where the whole solution is.

If many values are small, as in op-level graphs, the search begins without these values (`list_finer_limits`) and with
very few blocks (`join_blocks`). There, the memory rows inside blocks on which the bound depends
(`drop_idle_memory_rows`) are worth more than cuts. Once a program stays open, blocks are cut as long as that raises the
linear bound, and then only a few of them are kept. If the linear bound is then close to the best one known, the search
proves lower bounds target by target (`targets.py`); otherwise, CP-SAT has much time. With `exact`, programs close to
the known cost are solved by branch and cut (`branching.py`).
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers.annealing.annealer import MOVES, Annealer
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.cost_units import cost_step
from checkmate_tf.solvers.loading import can_load
from checkmate_tf.solvers.presolve import (
    Part,
    cut_into_parts,
    leave_out_small_values,
    list_finer_limits,
    solve_parts_once,
)
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.relaxation.branching import bound_by_branching
from checkmate_tf.solvers.relaxation.cuts import BoundedBlocks, add_path_cuts, drop_idle_memory_rows
from checkmate_tf.solvers.relaxation.growth import Overshoots, cut_blocks, find_overshot_starts, join_blocks
from checkmate_tf.solvers.relaxation.kept_events import KeptEvents
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, Reach, expand, point_of
from checkmate_tf.solvers.relaxation.programs import Relaxed, bound_with_cpsat, bound_with_highs
from checkmate_tf.solvers.relaxation.rows import build_block_model
from checkmate_tf.solvers.relaxation.settings import SETTINGS
from checkmate_tf.solvers.relaxation.targets import bound_by_targets
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import Event, held_at, rows_of, schedule_of_events

_ROUNDING = 1e-9  # rounding error of a bound, in steps of cost


@dataclass(frozen=True)
class BlockRelaxation(Solver):
    """Solves ever finer relaxations of blocks of stages, until one of their solutions is a schedule: exact.

    Args:
        tolerance: the search ends when the schedule's cost exceeds its bound by at most this fraction of the baseline
            cost.
        anneal_moves_per_node: annealing before the first relaxation.
        start: recomputations (stage, node) known to stay within the budget or close to it.
        bound: a known lower bound in fixed order.
        exact: solve each program to its end, and cut blocks only where its solution exceeds the budget. That suits
            problems whose optimum is known and far above all linear bounds.
        anneals: if False, schedules come from solutions of relaxations only, and the annealing's moves need not be
            compiled. The same happens if compiling them takes longer than the time for annealing.
        num_threads: threads of branch and cut. With more than one, the result depends on chance.
        blocks: blocks of an earlier search to begin with.
    """

    tolerance: float = 1e-6
    anneal_moves_per_node: int = 40
    start: tuple[Event, ...] = ()
    bound: int = 0
    exact: bool = False
    anneals: bool = True
    num_threads: int = 1
    blocks: Blocks | None = None
    shares: ClassVar[bool] = True

    def search(self, search: Search) -> "RelaxationResult":
        can_anneal = self.anneals and MOVES.compile_within(SETTINGS.anneal_share * search.time_limit_s)
        run = RelaxationRun.of(search, replace(self, anneals=can_anneal))
        result = run.search()
        blocks = replace(run.blocks, cuts=frozenset()) if run.rounds > 1 else None
        return RelaxationResult(**vars(result), blocks=blocks)


@dataclass(frozen=True)
class RelaxationResult(Result):
    """A result with the `blocks` with which another search may begin, if they have been refined."""

    blocks: Blocks | None = None


@dataclass(frozen=True)
class Ground:
    """The facts about a problem that its whole search needs.

    Args:
        cost_step: costs of schedules differ by multiples of this.
        pressure_bytes: memory in use at each stage without recomputation, int64 [num_nodes].
        over: the stages at which that exceeds the budget, the highest first.
        finer_limits: limits of the bytes of values that are left out, from coarse to fine.
    """

    graph: Graph
    cost_step: int
    pressure_bytes: np.ndarray
    over: tuple[int, ...]
    finer_limits: tuple[int, ...]

    @staticmethod
    def of(problem: Problem) -> "Ground":
        pressure_bytes = simulate_stock(problem.graph).memory_bytes
        falling = np.argsort(-pressure_bytes, kind="stable").tolist()
        over = tuple(stage for stage in falling if pressure_bytes[stage] > problem.budget_bytes)
        limits = tuple(list_finer_limits(problem.graph, problem.budget_bytes))
        return Ground(problem.graph, cost_step(problem.graph), pressure_bytes, over, limits)

    @property
    def mostly_small(self) -> bool:
        """Whether many values are small."""
        return len(self.finer_limits) > 2

    def cut_at_peak(self) -> Blocks:
        """Returns two blocks, cut after the peak."""
        peak = int(self.pressure_bytes.argmax())
        return Blocks(tuple(sorted({0, min(peak + 1, len(self.graph.nodes) - 1)})))


@dataclass(frozen=True)
class Reduced:
    """A graph without its smallest values. `level` counts how often fewer were left out."""

    graph: Graph
    small_bytes: int
    reach: Reach
    level: int

    @staticmethod
    def of(ground: Ground, level: int) -> "Reduced":
        found = leave_out_small_values(ground.graph, ground.finer_limits[level])
        return Reduced(found.graph, found.small_bytes, Reach.of(found.graph), level)


@dataclass
class RelaxationRun:
    """One search: the incumbent (in `annealer`), the bound and the present blocks. Make one with `of`."""

    context: Search
    options: BlockRelaxation
    ground: Ground
    reduced: Reduced
    annealer: Annealer | KeptEvents
    bound: int
    blocks: Blocks
    rounds: int
    gap_fraction: float
    is_part: bool = False
    infeasible: bool = False
    overshoots: Overshoots = field(default_factory=Overshoots)
    work_limit: float = SETTINGS.little_work
    keeps_cutting: bool = False
    linear_bound: float = 0.0
    has_reduced: bool = False
    searches_by_targets: bool = False
    wanted_starts: set[int] = field(default_factory=set)

    @staticmethod
    def of(context: Search, options: BlockRelaxation, *, is_part: bool = False) -> "RelaxationRun":
        """Returns a run with the blocks and the schedule that it begins with, before any search."""
        problem, ground = context.problem, Ground.of(context.problem)
        annealer = (
            Annealer(problem.graph, problem.budget_bytes, context.seed) if options.anneals else KeptEvents(problem)
        )
        annealer.load(options.start)
        known = None if is_part else options.blocks
        return RelaxationRun(
            context,
            options,
            ground,
            Reduced.of(ground, 0),
            annealer,
            bound=max(problem.graph.baseline_cost, options.bound),
            blocks=ground.cut_at_peak() if known is None else known,
            rounds=0 if known is None else SETTINGS.easy_rounds,
            gap_fraction=SETTINGS.exact_gap_share if options.exact else SETTINGS.first_gap_share,
            is_part=is_part,
        )

    @property
    def graph(self) -> Graph:
        return self.ground.graph

    @property
    def problem(self) -> Problem:
        return self.context.problem

    @property
    def seed(self) -> int:
        return self.context.seed

    def search(self) -> Result:
        self.find_first_schedule()
        may_cut = not self.is_part and not self.is_closed() and self.remaining_s > 0
        if may_cut and self.annealer.best_cost is not None:
            cut = cut_into_parts(self.graph, self.annealer.best_cost - self.graph.baseline_cost)
            if max(len(part.graph.nodes) for part in cut) < SETTINGS.largest_part_share * len(self.graph.nodes):
                self.solve_parts(cut)
        while not self.is_closed() and self.remaining_s > 0 and not self.infeasible and self.refine():
            pass
        return self.result()

    def solve_parts(self, cut: Sequence[Part]) -> None:
        solved = solve_parts_once(cut, self.solve_part)
        if solved is None:  # The incumbent is optimal: it costs no more than the schedules that these cuts exclude.
            return self.raise_bound(self.gap + self.bound - self.graph.baseline_cost)
        events, extra = solved
        self.annealer.load(events)
        self.raise_bound(extra)

    def solve_part(self, part: Part) -> Result:
        if self.remaining_s <= 0:
            return Result(None, part.graph.baseline_cost)
        plain = make_retain_all_schedule(part.graph)
        if simulate(part.graph, plain).peak_bytes <= self.problem.budget_bytes:
            return Result(plain, part.graph.baseline_cost)
        problem, options = replace(self.problem, graph=part.graph), replace(self.options, start=(), bound=0)
        share_s = self.remaining_s * len(part.graph.nodes) / len(self.graph.nodes)
        return RelaxationRun.of(Search(problem, share_s, self.seed), options, is_part=True).search()

    def find_first_schedule(self) -> None:
        """Anneals before the first relaxation."""
        self.report()
        for share in SETTINGS.cooling_shares:
            if not self.is_closed():
                moves = int(share * self.options.anneal_moves_per_node * len(self.graph.nodes))
                self.anneal(moves, share * SETTINGS.anneal_share * self.context.time_limit_s)

    def use_finer_graph(self) -> bool:
        """Leaves fewer values out of the relaxations from now on. Returns whether there are any to add."""
        finer = self.reduced.level + 1
        if finer == len(self.ground.finer_limits):
            return False
        self.reduced = Reduced.of(self.ground, finer)
        return True

    def strengthen_blocks(self) -> BoundedBlocks:
        """Adds path cuts to the present blocks, and cuts these where the linear relaxation is short of memory."""
        found = self.bound - self.graph.baseline_cost
        lacking = found + self.gap - self.linear_bound
        nearly_closed = found - self.linear_bound > SETTINGS.nearly_closed_share * lacking
        keeps_cutting = self.keeps_cutting and not nearly_closed
        steps = SETTINGS.cut_steps if keeps_cutting else 1
        if self.rounds == 1 or self.options.exact or self.searches_by_targets:
            steps = 0
        best = cut_blocks(
            self.strengthen, self.blocks, budget_bytes=self.problem.budget_bytes,
            known_cost=self.known_cost, max_steps=steps, everywhere=self.ground.mostly_small,
            find_overshot=self.find_overshot,
            has_time=self.timer(SETTINGS.grow_share),
        )  # fmt: skip
        # This happens only once. Later starts are added because solutions need them.
        if keeps_cutting and not self.has_reduced and self.rounds > 1:
            self.has_reduced = True
            return self.reduce_blocks(best)
        if steps and not keeps_cutting and self.ground.mostly_small:
            at_least = SETTINGS.first_kept_share * best.bound
            return self.join_blocks_down_to(best, at_least, SETTINGS.shrink_share, self.wanted_starts)
        return best

    def find_overshot(self, bounded: BoundedBlocks) -> list[int]:
        return find_overshot_starts(bounded, self.graph, self.reduced.graph, self.problem.budget_bytes)

    def reduce_blocks(self, full: BoundedBlocks) -> BoundedBlocks:
        """Joins blocks and finds their path cuts again, because HiGHS works better with more cuts."""
        found = self.bound - self.graph.baseline_cost
        self.raise_bound(full.bound)
        lacking = max(0.0, self.known_cost - full.bound)
        self.searches_by_targets = found < full.bound + SETTINGS.first_target_share * lacking
        forgone, share = SETTINGS.forgone_share_of_cpsat, SETTINGS.shrink_share_of_cpsat
        if self.searches_by_targets:
            forgone, share = SETTINGS.forgone_share, SETTINGS.shrink_share
        few = self.join_blocks_down_to(full, full.bound - forgone * lacking, share)
        return self.strengthen(replace(few.blocks, cuts=frozenset()))

    def join_blocks_down_to(
        self, full: BoundedBlocks, bound: float, share: float, wanted: Collection[int] = ()
    ) -> BoundedBlocks:
        return join_blocks(self.strengthen, full, bound, wanted=wanted, has_time=self.timer(share))

    def timer(self, share: float) -> Callable[[], bool]:
        """Returns a function that returns True until this share of the remaining time is over."""
        until_s = time.perf_counter() + share * self.remaining_s
        return lambda: time.perf_counter() < until_s

    def strengthen(self, blocks: Blocks) -> BoundedBlocks:
        limit_s = SETTINGS.strengthen_share * self.remaining_s
        if self.ground.mostly_small and self.rounds > 1:
            blocks = replace(blocks, inner=frozenset(self.ground.over[: SETTINGS.inner_rows]))
            blocks = drop_idle_memory_rows(
                self.reduced.graph, self.problem.budget_bytes, blocks, self.reduced.reach, time_limit_s=limit_s
            )
        return add_path_cuts(
            self.reduced.graph, self.problem.budget_bytes, blocks, self.reduced.reach, time_limit_s=limit_s
        )

    @property
    def remaining_s(self) -> float:
        return self.context.remaining_s

    @property
    def gap(self) -> float:
        """The cost of the incumbent less the bound, in units of cost."""
        best = self.annealer.best_cost
        return math.inf if best is None else best - self.bound

    def is_closed(self) -> bool:
        return self.gap <= self.options.tolerance * max(self.graph.baseline_cost, 1)

    def anneal(self, num_moves: int, limit_s: float, *, gently: bool = False) -> None:
        until_s = time.perf_counter() + min(limit_s, self.remaining_s)
        for _ in self.annealer.cool(num_moves, gently=gently):
            if time.perf_counter() > until_s:
                break
        self.annealer.restart()
        self.report()

    def anneal_from(self, events: Iterable[Event]) -> None:
        """Anneals shortly from an expanded solution, which may be above the budget."""
        self.annealer.load(events)
        if not self.options.exact:
            limit_s = max(SETTINGS.least_gentle_s, SETTINGS.gentle_share * self.remaining_s)
            self.anneal(SETTINGS.gentle_moves_per_node * len(self.graph.nodes), limit_s, gently=True)

    def report(self) -> None:
        """Reports improvements to other searches, and takes over theirs."""
        self.context.report(self.annealer.best_cost, self.bound, events=self.annealer.best_events())
        update = self.context.poll()
        if update is not None:
            self.annealer.learn(update.events, update.cost)
            self.bound = max(self.bound, update.cost_lower_bound)

    def refine(self) -> bool:
        """Solves the relaxation of the present blocks, then refines them. Returns False if nothing is left to do."""
        self.rounds += 1
        bounded = self.strengthen_blocks()
        self.blocks, self.linear_bound = bounded.blocks, bounded.bound
        self.raise_bound(bounded.bound)
        if self.remaining_s <= 0:
            return False
        model = build_block_model(self.reduced.graph, self.problem.budget_bytes, self.blocks, self.reduced.reach)
        linear = bounded.linear_of(model)
        if linear is not None and not self.is_closed():
            self.anneal_from(expand(model, self.reduced.graph, linear.point, self.ground.pressure_bytes))
        if self.annealer.best_cost is not None:
            model = bounded.fix_columns(model, self.annealer.best_cost - self.graph.baseline_cost)
        relaxed = self.bound_model(model, bounded)
        if math.isinf(relaxed.lower_bound):
            self.infeasible = self.annealer.best_cost is None
            self.raise_bound(self.gap + self.bound - self.graph.baseline_cost)
            return False
        before = self.bound
        self.raise_bound(relaxed.lower_bound)
        if self.is_closed():
            return False
        if not relaxed.optimal and self.annealer.best_cost is not None:
            self.keeps_cutting, self.work_limit = True, max(self.work_limit, SETTINGS.much_work)
        if not relaxed.optimal and self.bound - before < SETTINGS.stall_share * self.gap:
            self.work_limit *= 2
        if relaxed.point is None:
            return self.tighten()
        events = expand(model, self.reduced.graph, relaxed.point, self.ground.pressure_bytes)
        schedule = schedule_of_events(len(self.graph.nodes), rows_of(events))
        simulation = simulate(self.graph, schedule)
        if simulation.peak_bytes <= self.problem.budget_bytes:
            self.annealer.load(events)
            self.annealer.learn(rows_of(events), simulation.cost)
            self.report()
            return not self.is_closed() and self.tighten()
        refined = self.overshoots.cut(self.blocks, schedule, simulation.memory_bytes, self.problem.budget_bytes)
        if self.rounds > 1:
            self.wanted_starts |= set(refined.starts) - set(self.blocks.starts)
            self.wanted_starts |= {
                start for stage, _ in refined.rows - self.blocks.rows for start in (stage, stage + 1)
            }
        self.anneal_from(events)
        if refined == self.blocks or simulation.peak_bytes <= self.problem.budget_bytes + self.reduced.small_bytes:
            if not self.use_finer_graph():
                return self.tighten()
            refined = replace(self.blocks, cuts=frozenset())
        self.blocks = refined
        return True

    def goes_on_with(self, extra: float) -> bool:
        self.raise_bound(extra)
        self.report()
        return not self.is_closed()

    def tighten(self) -> bool:
        """Reduces the gap for the same model, and allows more work. Returns False if the gap is small enough."""
        self.gap_fraction /= SETTINGS.tighten_ratio
        self.work_limit *= SETTINGS.tighten_ratio
        return self.gap_fraction > SETTINGS.least_gap_share

    def raise_bound(self, extra: float) -> None:
        """Raises the bound to the baseline cost plus `extra`, rounded up to a whole number of cost steps."""
        if not math.isfinite(extra):
            return
        bound = self.graph.baseline_cost + math.ceil(extra / self.ground.cost_step - _ROUNDING) * self.ground.cost_step
        if bound > self.bound:
            best = self.annealer.best_cost
            self.bound = bound if best is None else min(bound, best)
            self.report()

    def bound_model(self, model: BlockModel, bounded: BoundedBlocks) -> Relaxed:
        linear = bounded.linear_of(model)
        start = None if self.annealer.best_cost is None else self.point_of_best(model)
        open_gap = self.gap if start is not None else self.bound - self.graph.baseline_cost
        enough = SETTINGS.enough_share * self.options.tolerance * self.graph.baseline_cost
        gap = max(0.5 * self.ground.cost_step, enough, self.gap_fraction * open_gap)
        if model.num_columns > SETTINGS.many_columns:
            return bound_with_highs(model, gap=gap, time_limit_s=self.remaining_s, start=start)
        if self.options.exact:
            if linear is not None and linear.bound >= SETTINGS.near_share * self.better:
                return bound_by_branching(
                    model, self.reduced.graph, linear, at_most=lambda: self.better, time_limit_s=self.remaining_s,
                    on_bound=self.goes_on_with, num_threads=self.options.num_threads,
                )  # fmt: skip
            if start is not None:
                gap = max(gap, self.gap_fraction * (self.better - self.linear_bound))
            return bound_with_highs(model, gap=gap, time_limit_s=self.remaining_s)
        if self.rounds <= SETTINGS.easy_rounds or model.num_columns <= SETTINGS.easy_columns:
            limit_s = min(self.remaining_s, max(SETTINGS.least_easy_s, SETTINGS.easy_share * self.remaining_s))
            relaxed = bound_with_highs(model, gap=gap, time_limit_s=limit_s, max_nodes=SETTINGS.easy_nodes)
            if relaxed.optimal or math.isinf(relaxed.lower_bound):
                return relaxed
            self.raise_bound(relaxed.lower_bound)
            if self.remaining_s <= 0:
                return relaxed
        if self.searches_by_targets and linear is not None:
            return self.search_below_targets(model, bounded)
        if not can_load("mip.cpsat", self.remaining_s):
            return bound_with_highs(model, gap=gap, time_limit_s=self.remaining_s, start=start)
        is_very_near = self.linear_bound >= SETTINGS.very_near_share * self.better
        return bound_with_cpsat(
            model, gap=gap, time_limit_s=self.remaining_s, at_most=self.better, seed=self.seed,
            at_least=self.bound - self.graph.baseline_cost if model.cost_unit == self.ground.cost_step else 0.0,
            work_limit=max(self.work_limit, SETTINGS.near_work if is_very_near else 0.0),
            on_bound=self.goes_on_with,
        )  # fmt: skip

    def search_below_targets(self, model: BlockModel, bounded: BoundedBlocks) -> Relaxed:
        def solve(target: float, time_limit_s: float) -> Relaxed:
            return bound_with_highs(
                bounded.fix_columns(model, target), at_most=target, time_limit_s=time_limit_s,
                on_bound=lambda extra: self.goes_on_with(min(extra, target)),
            )  # fmt: skip

        return bound_by_targets(
            solve, bounded.bound, at_most=lambda: self.better, time_limit_s=self.remaining_s,
            on_bound=self.goes_on_with,
        )  # fmt: skip

    @property
    def known_cost(self) -> float:
        """The extra cost of the incumbent, or twice the proved extra cost if that is less: a guess."""
        found = self.bound - self.graph.baseline_cost
        return found + min(self.gap, found)

    @property
    def better(self) -> float:
        """The extra cost of the next better schedule."""
        return self.gap + self.bound - self.graph.baseline_cost - self.ground.cost_step

    def point_of_best(self, model: BlockModel) -> np.ndarray:
        events = self.annealer.best_events()
        assert events is not None
        schedule = schedule_of_events(len(self.graph.nodes), events)
        return point_of(model, map(tuple, events.tolist()), held_at(self.reduced.graph, schedule, model.blocks.starts))

    def result(self) -> Result:
        stats = {"relaxations": self.rounds, "blocks": len(self.blocks.starts), "memory_rows": len(self.blocks.rows)}
        schedule = self.annealer.best_schedule()
        infeasible = self.infeasible and schedule is None
        return Result(schedule, self.bound, "fixed", "stages" if infeasible else None, stats)
