"""Anneals in stage space and merges the schedules that it finds: the general heuristic.

Each round anneals (`annealer.py`) twice: once from nothing, and once from the best schedule, where gentle coolings
alternate with full ones. Then CP-SAT finds the best schedule whose recomputations all occur in these or earlier results
(`merging.py`).
"""

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from checkmate_tf.solvers.annealing.annealer import MOVES, Annealer
from checkmate_tf.solvers.annealing.merging import merge_schedules
from checkmate_tf.solvers.annealing.settings import SETTINGS
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.offloading.choose import choose_transfers, has_transfers
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import Event, schedule_of_events


@dataclass(frozen=True)
class StageAnnealing(Solver):
    """Anneals sets of recomputations in stages, and merges the schedules that it finds. It proves no bound but
    that of copies, where values can be offloaded (offloading/bound.py).

    Args:
        moves_per_node: the search ends after this many moves for each node of the graph, or at the time limit.
        round_moves_per_node: moves of each cooling of the first round, per node; later coolings are longer.
        start: recomputations (stage, node) known to stay within the budget or close to it.
        patience: the search ends after this many rounds without a better schedule, but not before it has run as many
            rounds as the best schedule took.
    """

    moves_per_node: int = 4000
    round_moves_per_node: int = 30
    start: tuple[Event, ...] = ()
    patience: int | None = None
    shares: ClassVar[bool] = True
    offloads: ClassVar[bool] = True

    def search(self, search: Search) -> Result:
        if has_transfers(search.problem.graph):
            return choose_transfers(self.search, search)
        if not MOVES.load(search, "stage_annealing"):
            return Result(None)
        run = AnnealingRun(self, search)
        while not run.is_over() and not run.is_settled():
            run.run_round()
        return run.result()


class AnnealingRun:
    """The state of one search. Its `annealer` holds the best schedule found here or received from another search."""

    def __init__(self, options: StageAnnealing, search: Search) -> None:
        problem, seed = search.problem, search.seed
        self.options = options
        self.problem = problem
        self.context = search
        self.annealer = Annealer(problem.graph, problem.budget_bytes, seed)
        self.random = random.Random(seed)
        self.bound = problem.graph.baseline_cost
        self.told: int | None = None  # the least cost that the other searches know
        self.moves = self.rounds = self.best_round = 0
        self.max_moves = options.moves_per_node * len(problem.graph.nodes)
        self.round_moves: float = options.round_moves_per_node * len(problem.graph.nodes)
        self.annealed_now: list[set[Event]] = []  # annealed since the last merging
        self.annealed_before: list[set[Event]] = []
        self.pool_size = SETTINGS.first_pool_events
        if options.start:
            self.annealer.load(options.start)
            self.share()

    def result(self) -> Result:
        events = self.annealer.best_events()
        schedule = None if events is None else schedule_of_events(len(self.problem.graph.nodes), events)
        return Result(schedule, stats={"moves": self.moves, "rounds": self.rounds})

    def is_over(self) -> bool:
        cost = self.annealer.best_cost
        proved = cost is not None and cost <= self.bound
        return proved or self.moves >= self.max_moves or self.context.remaining_s < 0

    def is_settled(self) -> bool:
        if self.options.patience is None or self.annealer.best_cost is None:
            return False
        return self.rounds - self.best_round >= max(self.options.patience, self.best_round)

    def find_first(self) -> None:
        """Cools until a schedule is known. Each cooling is longer, and begins where the one before it ended."""
        while self.annealer.best_cost is None and not self.is_over():
            self.cool_once(gently=False)
            self.rounds += 1
            self.round_moves *= SETTINGS.longer_in_vain_ratio

    def run_round(self) -> None:
        """Anneals and merges. While no schedule is known, it only cools, and begins where the last cooling ended."""
        self.anneal_anew()
        self.rounds += 1
        if self.annealer.best_cost is None:
            self.round_moves *= SETTINGS.longer_in_vain_ratio
            return
        self.annealer.restart()
        self.cool_once(gently=self.rounds % 2 == 0)
        self.merge()
        self.round_moves *= SETTINGS.longer_round_ratio

    def anneal_anew(self) -> None:
        """Anneals from nothing, and then gently from the result."""
        if self.annealer.best_cost is None:
            self.cool_once(gently=False)
        else:
            self.annealer.load(())
            self.cool_once(gently=False)
            self.cool_once(gently=True)

    def cool_once(self, *, gently: bool) -> None:
        """Cools once, from hot to cold.

        The cooling ends early if many moves above the budget have changed nothing, because such moves are the slowest.
        It does not end early while no schedule within the budget is known, because the price of overflow is still
        rising.
        """
        annealer = self.annealer
        still, before = 0, (0, 0)
        num_moves = min(int(self.round_moves), self.max_moves - self.moves)
        for made in annealer.cool(num_moves, gently=gently, steadily=True):
            self.moves += made
            self.share()
            now = annealer.cost, annealer.overflow
            still = still + made if annealer.overflow and now == before else 0
            before = now
            if self.is_over() or (still > SETTINGS.still_moves and annealer.best_cost is not None):
                break
        self.annealed_now.append(_events(annealer.events()))

    def merge(self) -> None:
        """Finds the best schedule whose recomputations all come from a pool of known schedules.

        The pool consists of the best schedule, the annealed sets of this round, and random earlier ones. As long as
        CP-SAT proves the optimum, the pool grows.
        """
        best = _events(self.annealer.best_events())
        if self.is_over():
            return
        pool = set(best)
        earlier = self.random.sample(self.annealed_before, len(self.annealed_before))
        for annealed in [*reversed(self.annealed_now), *earlier]:
            if len(pool | annealed) <= self.pool_size:
                pool |= annealed
        events, proved = merge_schedules(
            self.problem.graph, self.problem.budget_bytes, pool, best,
            time_limit_s=self.context.remaining_s, work_limit=SETTINGS.merge_work, seed=self.rounds,
        )  # fmt: skip
        larger, smaller = SETTINGS.pool_step
        if not proved:
            self.pool_size = max(self.pool_size * smaller // larger, SETTINGS.least_pool_events)
        elif len(pool) > SETTINGS.full_pool_share * self.pool_size:
            self.pool_size = self.pool_size * larger // smaller
        self.annealer.load(map(tuple, events.tolist()))
        self.annealer.restart()
        self.share()
        known = [*self.annealed_before, *self.annealed_now, _events(self.annealer.best_events())]
        self.annealed_before = known[-SETTINGS.kept_sets :]
        self.annealed_now = []

    def share(self) -> None:
        """Reports improvements to other searches, and takes over theirs."""
        cost = self.annealer.best_cost
        if cost is not None and (self.told is None or cost < self.told):
            self.told, self.best_round = cost, self.rounds
            self.context.report(cost, self.bound, events=self.annealer.best_events())
        update = self.context.poll()
        if update is not None:
            self.bound = max(self.bound, update.cost_lower_bound)
            self.annealer.learn(update.events, update.cost)
            if update.cost is not None and (self.told is None or update.cost < self.told):
                self.told, self.best_round = update.cost, self.rounds


def _events(rows: np.ndarray | None) -> set[Event]:
    return set() if rows is None else {(stage, node) for stage, node in rows.tolist()}
