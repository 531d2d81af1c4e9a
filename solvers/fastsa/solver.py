"""FastSA: simulated annealing over sequences of nodes (Imanishi et al., NeurIPS 2023).

The paper's method anneals a sequence with empty slots. Its mutations add, remove and rotate single nodes, and a segment
tree keeps the peak (sections 2.1, 2.2). It anneals grouped nodes first, and then single ones (2.2.2, appendix D.4).
`Fastsa.paper()` is that method.

The default departs from it where that measured better (experiments/fastsa). It starts from the order of least peak
(topological_order.py), mutates by whole recompute chains and prunings (sequence_moves.py), and minimizes the cost plus
a penalty on the excess over the budget, which rises until the schedule fits. If that does not meet the budget in a
quarter of the time, a descent follows: it begins hot and with a high penalty, and cools slowly until the schedule fits.
FastSA is made for free order. In fixed order, every sequence that it visits keeps first computations in the input
order.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import Simulation, make_retain_all_schedule, simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.compiling import Kernel
from checkmate_tf.solvers.fastsa.node_grouping import group_nodes, ungroup
from checkmate_tf.solvers.fastsa.settings import SETTINGS
from checkmate_tf.solvers.ordering.topological_order import in_input_order, reordered, search_order
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search

Objective = Literal["product", "elu", "penalty"]
_OBJECTIVES = ("product", "elu", "penalty")
_LEAST_BYTES = 1e-9  # least weight of a value that is drawn by size, so that the sum is never 0


@dataclass(frozen=True)
class Moves:
    """How often each mutation is drawn, relative to the others (sequence_moves.py).

    Flips need offloading. A flip adds a fetch or removes one, so flips are drawn as often as additions and removals
    together.

    The default is as good as mostly compound mutations in the same time, and tries twice as many (experiments/fastsa,
    "moves"). Separate prunings make no difference there, because every exchange begins with one.
    """

    add: int = 8
    remove: int = 8
    rotate: int = 4
    flip: int = 16
    chain: int = 4
    prune: int = 0
    shift: int = 2
    exchange: int = 6


# For a search for an order only, in which no mutation adds or removes recomputations.
_ORDER_MOVES = Moves(add=0, remove=0, rotate=1, flip=0, chain=0, prune=0, shift=3, exchange=0)


@dataclass(frozen=True)
class Annealing:
    """Options of one annealing.

    Temperatures are relative to the cost of computing every node once and, with the paper's objectives, also to the
    objective of the sequence that the search begins with.

    Args:
        iterations: largest number of mutations tried.
        iterations_per_node: largest number for each node. Small graphs have long converged by then.
        penalty: penalty of the first round, per budget's worth of excess. After each round that has not met the budget,
            it is multiplied by `growth`. Only for the objective "penalty".
        slowest_cooling: while the budget is not met, no round cools below this times its first temperature. Otherwise
            each round cools by the same factor, so that the last ends at `last_temperature`.
        rounds: number of rounds. Before each, the sequence is spread evenly over its slots again. If time is short,
            later rounds have fewer iterations, so that the annealing still cools down.
        slots_per_node: slots for each position of the sequence, rounded up to a power of two in total, at most 2^20.
            Longer sequences get only enough slots to leave every other one free.
        logaddexp: the objective uses the LogAddExp of the memory of all slots instead of its maximum (C.2), with the
            largest value as 10 doublings.
    """

    iterations: int = 8_000_000
    iterations_per_node: float = 40_000
    first_temperature: float = 1e-3
    last_temperature: float = 1e-6
    objective: Objective = "penalty"
    penalty: float = 4.0
    growth: float = 2.0
    slowest_cooling: float = 0.0
    rounds: int = 20
    moves: Moves = Moves()
    slots_per_node: int = 5
    logaddexp: bool = False


@dataclass(frozen=True)
class Annealed:
    """The best schedule found, and counts of mutations. `anneal_s` is the thread time of the compiled loop.

    `tried` counts draws, and `singles` the nodes added or removed in them. A chain is one draw with several nodes.
    """

    schedule: Schedule
    tried: int
    singles: int
    valid: int
    accepted: int
    anneal_s: float


@dataclass(frozen=True)
class Fastsa(Solver):
    """Anneals sequences of nodes, by FastSA.

    Args:
        annealing: options of the annealing of single nodes; with `grouping`, of the ungrouped schedule.
        grouping: options of a first annealing of nodes grouped by Algorithm 1, which ends when the budget is met. None
            leaves it out. Only in free order.
        reorder: whether to start from the order of least peak. Only in free order.
        first_order: an order to start from instead. Only in free order.
        recompute: False searches for an order only (appendix B.2).
        offload: whether the search may fetch values from host memory (appendix B.3), if they have transfer costs.
        num_seeds: seed, seed + 1, ... run side by side in threads, because the compiled loop releases Python's lock.
            The best result is kept.
    """

    annealing: Annealing = Annealing()
    grouping: Annealing | None = None
    reorder: bool = True
    first_order: tuple[int, ...] = ()
    recompute: bool = True
    offload: bool = False
    num_seeds: int = 1
    offloads: ClassVar[bool] = True

    @staticmethod
    def paper(objective: Objective = "product") -> "Fastsa":
        """Returns a solver with the paper's settings (appendix D.4).

        From the input order, on a sequence of 2^20 slots, it tries 20 million mutations of groups, until the budget is
        met, and then 2 million of single nodes. Both counts are reached if the time allows it; otherwise each part gets
        its share of the time. A sequence that meets the budget is kept even though the objective may leave it again.
        """
        moves = Moves(add=1, remove=1, rotate=1, chain=0, prune=0, shift=0, exchange=0)
        first = Annealing(
            20_000_000, math.inf, 1e-3, 1e-7, objective, rounds=1, moves=moves, slots_per_node=SETTINGS.max_slots
        )
        second = replace(first, iterations=2_000_000, first_temperature=1e-7, last_temperature=1e-11)
        return Fastsa(second, grouping=first, reorder=False)

    def search(self, search: Search) -> Result:
        """Returns a schedule within the budget, or none. Its bound is never above the baseline cost."""
        problem, seed, time_limit_s = search.problem, search.seed, search.time_limit_s
        if not MOVES.load(search, "fastsa"):
            return Result(None)
        deadline_s = search.deadline_s
        graph, free = problem.graph, problem.order == "free"
        order = make_retain_all_schedule(graph).order
        if free and self.first_order:
            order = self.first_order
        elif free and self.reorder:
            limit_s = SETTINGS.order_share * time_limit_s
            found = search_order(graph, time_limit_s=limit_s, seed=seed, budget_bytes=problem.budget_bytes)
            order = found.order
            if found.peak_bytes <= problem.budget_bytes:
                return Result(Schedule(order), stats={"order_peak_bytes": found.peak_bytes})
        inner = replace(problem, graph=reordered(graph, order))
        seeds = range(seed, seed + self.num_seeds)
        anneal = partial(self._anneal, inner, deadline_s=deadline_s)
        # One seed needs no thread. A process may be unable to start one.
        with ThreadPoolExecutor(self.num_seeds) if self.num_seeds > 1 else nullcontext() as threads:
            tries = map(anneal, seeds) if threads is None else threads.map(anneal, seeds)
            runs = [run for of_seed in tries for run in of_seed]
        simulations = [simulate(inner.graph, run.schedule) for run in runs]
        best = min(range(len(runs)), key=lambda index: _rank(problem, simulations[index], index))
        stats = _stats(runs, simulations[best])
        if simulations[best].peak_bytes > problem.budget_bytes:
            return Result(None, stats=stats)
        search.report(simulations[best].cost, graph.baseline_cost, peak_bytes=simulations[best].peak_bytes)
        return Result(in_input_order(order, runs[best].schedule), stats=stats)

    def _anneal(self, problem: Problem, seed: int, *, deadline_s: float) -> list[Annealed]:
        graph, schedule = problem.graph, make_retain_all_schedule(problem.graph)
        options = self.annealing if self.recompute else replace(self.annealing, moves=_ORDER_MOVES)
        if not self.offload or not any(value.fetch_cost is not None for value in graph.values):
            graph = _without_transfers(graph)
            options = replace(options, moves=replace(options.moves, flip=0))
        inner = replace(problem, graph=graph)
        heat = _first_objective(inner, options)
        runs: list[Annealed] = []
        if self.grouping is not None and problem.order == "free":
            grouping = group_nodes(_without_transfers(graph))
            grouped = replace(problem, graph=grouping.graph)
            first_options = replace(self.grouping, moves=replace(self.grouping.moves, flip=0))
            heat = _first_objective(grouped, first_options)
            now_s = time.perf_counter()
            share = first_options.iterations / (first_options.iterations + options.iterations)
            first = anneal_sequences(
                grouped,
                make_retain_all_schedule(grouping.graph),
                options=_heated(first_options, heat),
                seed=seed,
                deadline_s=now_s + share * (deadline_s - now_s),
                stop_at_budget=True,
            )
            schedule = ungroup(grouping, first.schedule)
            runs.append(replace(first, schedule=schedule))
            heat *= grouping.graph.baseline_cost / max(1, graph.baseline_cost)
        options = _heated(options, heat)
        if self.annealing.objective != "penalty" or not self.recompute:
            return [*runs, anneal_sequences(inner, schedule, options=options, seed=seed, deadline_s=deadline_s)]
        now_s = time.perf_counter()
        give_up_s = now_s + SETTINGS.patience_share * (deadline_s - now_s)
        run = anneal_sequences(inner, schedule, options=options, seed=seed, deadline_s=deadline_s, give_up_s=give_up_s)
        if simulate(graph, run.schedule).peak_bytes <= problem.budget_bytes or time.perf_counter() > deadline_s:
            return [*runs, run]
        options = _descent(options, len(graph.nodes))
        return [*runs, run, anneal_sequences(inner, schedule, options=options, seed=seed, deadline_s=deadline_s)]


def compile_moves() -> None:
    """Compiles or loads the moves. Importing their module does that."""
    from checkmate_tf.solvers.fastsa import kernel, sequence_state  # noqa: F401


MOVES = Kernel(
    compile_moves,
    last=(
        "memory_tree.multiply_range",
        "fastsa.sequence_events.fill",
        "fastsa.sequence_moves.exchange",
        "fastsa.kernel.anneal",
    ),
)


def anneal_sequences(
    problem: Problem,
    schedule: Schedule,
    *,
    options: Annealing,
    seed: int,
    deadline_s: float = float("inf"),
    give_up_s: float = float("inf"),
    stop_at_budget: bool = False,
) -> Annealed:
    """Anneals from a valid schedule. The best schedule found may still be above the budget.

    Both limits are times of `time.perf_counter()`. At `deadline_s`, the annealing ends, even within a round. At
    `give_up_s`, it ends after a round if the schedule is above the budget. With `stop_at_budget`, it ends as soon as a
    sequence is within the budget. If the iterations do not fit into the time, later rounds have fewer. Long sequences
    have a short first round, to estimate how many fit.
    """
    from checkmate_tf.solvers.fastsa import kernel

    graph, num_rounds = problem.graph, options.rounds
    shared = _SharedByRounds.of(problem, options, seed=seed, deadline_s=deadline_s, stop_at_budget=stop_at_budget)
    figures = np.array([kernel.UNKNOWN, kernel.UNKNOWN, 0, 0, 0, 0, 0], dtype=np.int64)
    best = current = schedule
    temperature, penalty, within_budget, anneal_s = options.first_temperature, options.penalty, False, 0.0
    most_iterations = int(min(options.iterations, options.iterations_per_node * len(graph.nodes))) // num_rounds
    large = len(graph.nodes) > SETTINGS.large_nodes or options.slots_per_node * len(current) > SETTINGS.large_slots
    iterations = min(most_iterations, SETTINGS.first_iterations) if large and num_rounds > 1 else most_iterations
    for index in range(num_rounds):
        cooling = (options.last_temperature / temperature) ** (1 / (num_rounds - index))
        if not within_budget:
            cooling = max(cooling, options.slowest_cooling)
        one = shared.anneal(
            current, index, temperature=temperature, cooling=cooling, penalty=penalty, iterations=iterations,
            figures=figures,
        )  # fmt: skip
        best = best if one.improved is None else one.improved
        current, anneal_s = one.last, anneal_s + one.anneal_s
        temperature *= cooling
        within_budget = figures[kernel.BEST_PEAK] <= shared.budget_units
        penalty *= 1 if within_budget else options.growth
        now_s = time.perf_counter()
        if (within_budget and stop_at_budget) or now_s > (deadline_s if within_budget else min(deadline_s, give_up_s)):
            break
        round_limit_s = (deadline_s - now_s) / max(1, num_rounds - 1 - index)
        iterations = max(1, int(min(most_iterations, iterations * round_limit_s / (now_s - one.began_s))))
    return Annealed(
        schedule=best,
        tried=int(figures[kernel.TRIED]),
        singles=int(figures[kernel.SINGLES]),
        valid=int(figures[kernel.VALID]),
        accepted=int(figures[kernel.ACCEPTED]),
        anneal_s=anneal_s,
    )


@dataclass(frozen=True)
class _Round:
    """The result of one round of an annealing.

    Args:
        improved: the best schedule found, if it is better than any before.
        last: the sequence at the end of the round.
        anneal_s: time in the compiled loop, of its thread.
        began_s: start of the round, by `time.perf_counter()`.
    """

    improved: Schedule | None
    last: Schedule
    anneal_s: float
    began_s: float


@dataclass(frozen=True)
class _SharedByRounds:
    """The arguments that all rounds of an annealing share.

    Args:
        deadline_s: a time of `time.perf_counter()`.
        unit_bytes: the unit in which memory is counted.
        budget_units: limit of the memory of values.
        soft_unit_bytes: bytes that double a weight of LogAddExp; 0 without it.
        shares: chances of the moves, in the order of `kernel.MOVE_NAMES`.
        likely: values from which chains take theirs.
    """

    problem: Problem
    options: Annealing
    seed: int
    deadline_s: float
    stop_at_budget: bool
    unit_bytes: int
    budget_units: int
    soft_unit_bytes: float
    shares: np.ndarray
    likely: np.ndarray

    @staticmethod
    def of(
        problem: Problem, options: Annealing, *, seed: int, deadline_s: float, stop_at_budget: bool
    ) -> "_SharedByRounds":
        from checkmate_tf.solvers.fastsa.kernel import MOVE_NAMES
        from checkmate_tf.solvers.fastsa.sequence_state import unit_bytes

        graph = problem.graph
        unit = unit_bytes(graph)
        largest_bytes = max(value.size_bytes for value in graph.values) if graph.values else 0
        return _SharedByRounds(
            problem,
            options,
            seed,
            deadline_s,
            stop_at_budget,
            unit_bytes=unit,
            budget_units=max(0, problem.budget_bytes - graph.resident_bytes) // unit,
            soft_unit_bytes=max(1, largest_bytes) / SETTINGS.largest_doublings if options.logaddexp else 0.0,
            shares=np.array([getattr(options.moves, name) for name in MOVE_NAMES], dtype=np.int64),
            likely=_likely_values(graph, seed),
        )

    def anneal(
        self,
        schedule: Schedule,
        index: int,
        *,
        temperature: float,
        cooling: float,
        penalty: float,
        iterations: int,
        figures: np.ndarray,
    ) -> _Round:
        """Anneals one round from a schedule, and adds its counts to those of all rounds."""
        from checkmate_tf.solvers.fastsa import kernel
        from checkmate_tf.solvers.fastsa.sequence_state import build, fetches_of, to_schedule

        graph, options = self.problem.graph, self.options
        slots = num_slots(options, max(len(graph.nodes), len(schedule)))
        state = build(
            graph,
            schedule,
            num_slots=slots,
            seed=self.seed * options.rounds + index,
            fixed_order=self.problem.order == "fixed",
            soft_unit_bytes=self.soft_unit_bytes,
        )
        # objective, budget, baseline cost, penalty, first and last temperature, bytes that double a weight, stop
        settings = np.array(
            [_OBJECTIVES.index(options.objective), max(1, self.budget_units), max(1, graph.baseline_cost), penalty,
             0.0, 0.0, self.soft_unit_bytes / self.unit_bytes, self.stop_at_budget]
        )  # fmt: skip
        best_nodes = np.zeros(slots, dtype=np.int32)
        best_fetches = np.zeros((SETTINGS.max_fetches, 2), dtype=np.int32)
        before = figures[:2].copy()
        thread_began_s, began_s = time.thread_time(), time.perf_counter()
        turns = max(SETTINGS.turns, -(-iterations // SETTINGS.turn_iterations))
        for turn in range(turns):
            settings[kernel.FIRST_TEMPERATURE] = temperature * cooling ** (turn / turns)
            settings[kernel.LAST_TEMPERATURE] = temperature * cooling ** ((turn + 1) / turns)
            kernel.anneal(
                state.addresses, settings, self.shares, self.likely, -(-iterations // turns), self.budget_units,
                best_nodes, best_fetches, figures,
            )  # fmt: skip
            is_met = self.stop_at_budget and figures[kernel.BEST_PEAK] <= self.budget_units
            if is_met or time.perf_counter() > self.deadline_s:
                break
        anneal_s = time.thread_time() - thread_began_s
        is_better = (figures[:2] != before).any()
        improved = to_schedule(best_nodes, best_fetches[: figures[kernel.BEST_FETCHES]]) if is_better else None
        last = to_schedule(np.ascontiguousarray(state.slots[:, 0]), fetches_of(state))
        return _Round(improved, last, anneal_s, began_s)


def _first_objective(problem: Problem, options: Annealing) -> float:
    """Returns the paper's objective of the order that the search begins with; 1 for the objective "penalty".

    It is relative to the budget and the cost of computing every node once.
    """
    if options.objective == "penalty":
        return 1.0
    peak_bytes = simulate(problem.graph, make_retain_all_schedule(problem.graph)).peak_bytes
    return max(1.0, peak_bytes / max(1, problem.budget_bytes))


def _heated(options: Annealing, heat: float) -> Annealing:
    return replace(
        options,
        first_temperature=heat * options.first_temperature,
        last_temperature=heat * options.last_temperature,
    )


def _descent(options: Annealing, num_nodes: int) -> Annealing:
    """Returns an annealing that begins so hot that a few values of mean size more or less do not matter at first."""
    hot = SETTINGS.descent_values * SETTINGS.descent_penalty / num_nodes
    first = min(SETTINGS.max_descent_temperature, hot)
    return replace(
        options,
        first_temperature=first,
        last_temperature=min(first, options.last_temperature),
        slowest_cooling=SETTINGS.descent_cooling,
        penalty=SETTINGS.descent_penalty,
        growth=1.0,
    )


def num_slots(options: Annealing, num_positions: int) -> int:
    """Returns the number of slots of a sequence with so many positions."""
    wanted = max(min(options.slots_per_node * num_positions, SETTINGS.max_slots - 1), 2 * num_positions)
    return 1 << max(SETTINGS.least_slots_bits, wanted.bit_length())


def _likely_values(graph: Graph, seed: int) -> np.ndarray:
    """Draws the values from which chains take theirs, large ones more often, int32 [drawn_values]."""
    sizes = graph.sizes_bytes.astype(float) + _LEAST_BYTES
    by_size = SETTINGS.by_size_share
    chance = by_size * sizes / sizes.sum() + (1 - by_size) / len(sizes)
    return np.random.default_rng(seed).choice(len(sizes), size=SETTINGS.drawn_values, p=chance).astype(np.int32)


def _without_transfers(graph: Graph) -> Graph:
    if all(value.fetch_cost is None for value in graph.values):
        return graph
    return replace(graph, values=tuple(replace(value, offload_cost=None, fetch_cost=None) for value in graph.values))


def _rank(problem: Problem, simulation: Simulation, index: int) -> tuple[int, int, int]:
    excess_bytes = max(0, simulation.peak_bytes - problem.budget_bytes)
    return excess_bytes, simulation.cost, index


def _stats(runs: list[Annealed], simulation: Simulation) -> dict[str, float | int | str]:
    tried = sum(run.tried for run in runs)
    return {
        "peak_bytes": simulation.peak_bytes,
        "mutations_tried": tried,
        "single_mutations_tried": sum(run.singles for run in runs),
        "mutations_valid": sum(run.valid for run in runs),
        "mutations_accepted": sum(run.accepted for run in runs),
        "mutations_per_s": tried / max(1e-9, sum(run.anneal_s for run in runs)),
    }
