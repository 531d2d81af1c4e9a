"""MOCCASIN (Bartan et al., ICML 2023): retention intervals on CP-SAT, with neighbourhoods and a proof of the bound.

Section 2's formulation is in `model` and `builder`. Fixed order uses section 2.3's stages, and free order on small
graphs uses section 2.1's sequence of sum C_v positions. `Moccasin.paper()` is that. The default departs from it:

- It starts from a heuristic schedule (annealing) instead of phase 1 (2.4). Phase 1 is an option, and the fallback if
  the heuristic finds nothing.
- Neighbourhoods around the peak improve the schedule. The paper's whole model is an option.
- The paper fixes C_v = 2, and proves nothing about schedules that compute a node more often. Here, the cost of the
  incumbent limits how often a node can be computed in a better schedule, and a node with fewer computations in the
  model has a last one that stands for all further ones. `cost_lower_bound` therefore holds however often a node is
  computed: in fixed order, for every schedule in stages (the first models of the ladder allow any order within a stage,
  too).
- In free order, larger graphs keep one good topological order. That leads to a schedule, but to no bound other than the
  baseline.
- Values with costs of transfers may be offloaded, which the paper leaves to future research: a fetch from host memory
  begins a retention interval as a computation does, and events have times (lanes.py). The models of the bound then are
  those in stages, so `cost_lower_bound` is about schedules in stages that fetch anywhere and any number of times, or it
  is the bound of offloading/bound.py, about all schedules in fixed order. The simulator computes the cost of schedules.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from checkmate_tf.errors import SolverError
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.mip.cpsat import CpSatSettings
from checkmate_tf.solvers.moccasin.builder import Precedence, build
from checkmate_tf.solvers.moccasin.candidates import (
    Limits,
    Window,
    all_windows,
    bound_candidates,
    fetch_candidates,
    fetch_windows,
    repeat_limits,
    repeat_windows,
    sequence_candidates,
    stage_candidates,
)
from checkmate_tf.solvers.moccasin.model import Candidates, IntervalModel
from checkmate_tf.solvers.moccasin.scaling import scaled
from checkmate_tf.solvers.moccasin.search import (
    Incumbent,
    Neighbourhoods,
    event_times,
    fetch_events,
    offer_hidden,
    run_cpsat,
    schedule_in_stages,
    stage_repeats,
)
from checkmate_tf.solvers.moccasin.settings import SETTINGS, Rung
from checkmate_tf.solvers.offloading.bound import bound_cost
from checkmate_tf.solvers.offloading.choose import has_transfers
from checkmate_tf.solvers.ordering.topological_order import in_input_order, reordered, search_order
from checkmate_tf.solvers.registry import get_solver
from checkmate_tf.solvers.search import Search, Update


@dataclass(frozen=True)
class Moccasin(Solver):
    """Solves with retention intervals in CP-SAT: neighbourhoods of a schedule, and then models that prove a bound.

    Args:
        max_computations: C_v, how often the model computes a node at most, including the first time. The starting
            schedule may exceed it.
        node_computations: (node, C_v) for nodes with another limit.
        precedence: "cover" writes (5) as a disjunction of covering intervals; "reservoir" as the paper's (10).
        start: the solver, or its name, whose schedule to begin with, or "two_phases" (section 2.4).
        strategy: "neighbourhoods", or "whole", the paper's one model of all nodes: in stages in fixed order (section
            2.3), over a sequence in free order (2.1).
        presolve: leave events at which a computation cannot help out of the whole model.
        workers: threads of CP-SAT. With one, the same seed leads to the same schedule.
        max_fruitless: number of neighbourhoods in a row without gain after which the search turns to the bound.
    """

    max_computations: int = 2
    node_computations: tuple[tuple[int, int], ...] = ()
    precedence: Precedence = "cover"
    start: str | Solver = "stage_annealing"
    strategy: Literal["neighbourhoods", "whole"] = "neighbourhoods"
    presolve: bool = True
    workers: int = 1
    max_fruitless: int = 30
    offloads: ClassVar[bool] = True

    @staticmethod
    def paper() -> "Moccasin":
        """Returns the paper's solver: one model of all nodes, each computed at most twice, in two phases (section 2.4).

        Precedence is the reservoir (10), every event may be chosen, and CP-SAT has one thread instead of the paper's
        16.
        """
        return Moccasin(precedence="reservoir", start="two_phases", strategy="whole", presolve=False)

    def search(self, search: Search) -> Result:
        in_stages = search.problem.order == "fixed" or self.strategy == "neighbourhoods"
        if has_transfers(search.problem.graph) and not (self.precedence == "cover" and in_stages):
            raise SolverError(
                'the paper\'s models do not offload: choose precedence="cover", with strategy="neighbourhoods" or the '
                "fixed order, or drop_transfers(graph)"
            )
        attempt = _Attempt(self, Incumbent(search), search.deadline_s, search.seed)
        return attempt.free() if search.problem.order == "free" else attempt.fixed()


@dataclass(frozen=True)
class _WholeModel:
    """The candidates of the model of all nodes, and how often each node may be computed in it."""

    limits: Limits
    candidates: Candidates


def _num_events(windows: Sequence[Window]) -> int:
    return sum(len(window.stages) for window in windows)


@dataclass
class _Attempt:
    """One run of the solver on one problem."""

    options: Moccasin
    incumbent: Incumbent
    deadline_s: float
    seed: int
    proves: bool = True
    infeasible: bool = False
    neighbourhoods: int = 0
    rung: str = ""
    size: dict[str, int] = field(default_factory=dict)
    gave_up: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = self.incumbent.problem
        self.graph = self.problem.graph
        self.scaled = scaled(self.problem)
        self.repeatable = [node.recomputable for node in self.graph.nodes]
        self.offloads = has_transfers(self.graph)
        # Without the order in a stage, no event is the one after a fetch.
        self.rungs = [rung for rung in SETTINGS.rungs if not (self.offloads and rung.stages_only)]

    # -- fixed order: stages

    def fixed(self) -> Result:
        with contextlib.suppress(TimeoutError):  # A model that is not built in time is abandoned.
            if self.offloads and self.proves:
                deadline_s = self.deadline_s - (1 - SETTINGS.copies_share) * self._left_s()
                self.incumbent.raise_bound(bound_cost(self.graph, self.problem.budget_bytes, deadline_s=deadline_s))
            self._start()
            if self.options.strategy == "whole":
                self._whole()
            else:
                self._search()
        return Result(
            self.incumbent.schedule,
            self.incumbent.bound,
            "fixed",
            "stages" if self.infeasible and self.incumbent.schedule is None else None,
            stats=self._stats(),
        )

    def _start(self) -> None:
        start = self.options.start
        if start != "two_phases":
            problem = replace(self.problem, order="fixed")
            share_s = SETTINGS.start_share * self._left_s()
            solver = get_solver(start) if isinstance(start, str) else start
            schedule = solver.search(Search(problem, share_s, self.seed, self._pass_on)).schedule
            if schedule is not None:
                in_stages = schedule_in_stages(self.graph, stage_repeats(self.graph, schedule))
                _ = self.incumbent.offer(in_stages) or self.incumbent.offer(schedule)
                return
            if self.proves:
                self._bound(self.rungs[0])
        if not self.infeasible:
            self._first_phase()

    def _pass_on(self, update: Update) -> None:
        """Passes on the costs and bounds of the solver that finds the start. Its schedule comes when it ends."""
        if self.incumbent.schedule is None:
            self.incumbent.reported = update.cost, update.cost_lower_bound
            self.incumbent.search.send(update)

    def _first_phase(self) -> None:
        """Minimizes max(M_var, M), from the input order, until it is within the budget (section 2.4)."""
        if self._left_s() <= 0:
            return
        whole = self._whole_model()
        if whole is None:
            return
        formulation = self._build(whole.candidates, least_peak=True)
        formulation.hint(self._times_of(make_retain_all_schedule(self.graph)))
        how = self._run(self._left_s())
        run_cpsat(formulation, how, on_schedule=self._offer, stop_above=self.scaled.budget)

    def _whole(self) -> None:
        """Solves the paper's model of all nodes, with at most C_v computations of each."""
        whole = self._whole_model()
        if whole is None:
            return
        formulation = self._build(whole.candidates)
        if self.incumbent.schedule is not None:
            fetched = fetch_events(self.graph, self.incumbent.schedule)
            formulation.hint(
                self._times_of(self.incumbent.schedule), {value: times for value, (times, _) in fetched.items()}
            )
        beyond = self._beyond(whole.limits)
        answer = run_cpsat(
            formulation,
            self._run(self._left_s()),
            on_schedule=self._offer,
            on_bound=lambda bound: self._raise(min(bound, beyond)),
        )
        if answer.closed and not answer.infeasible:
            self._raise(min(answer.objective_bound, beyond))
        where = "sequence" if self.problem.order == "free" else "stages"
        self.rung = f"{where}, at most {max(whole.limits.computations)} computations"

    def _whole_model(self) -> "_WholeModel | None":
        """Returns the candidates of the model of all nodes; None if it would take more memory than the search may."""
        if self.problem.order == "free":
            options = self.options
            limits = repeat_limits(self.graph, options.max_computations, options.node_computations)
            if not self._has_memory(sum(limits.computations)):
                return None
            return _WholeModel(limits, sequence_candidates(self.graph, limits, presolve=options.presolve))
        limits, windows = self._limits_and_windows(None)
        if not self._has_memory(_num_events(windows)):
            return None
        return _WholeModel(limits, self._with_fetches(stage_candidates(self.graph, limits, windows), windows))

    def _with_fetches(
        self, candidates: Candidates, windows: Sequence[Window], *, max_fetches: int | None = None
    ) -> Candidates:
        """Adds the fetches that may help. With a limit, the last one of a value stands for all beyond it."""
        fetches = fetch_candidates(
            self.graph, candidates, self._fetch_windows(windows), max_fetches=max_fetches or len(self.graph.nodes),
            relax=max_fetches is not None,
        )  # fmt: skip
        return replace(candidates, fetches=fetches)

    def _fetch_windows(self, windows: Sequence[Window]) -> tuple[Window, ...]:
        return fetch_windows(self.graph, self.problem.budget_bytes, windows, presolve=self.options.presolve)

    def _times_of(self, schedule: Schedule) -> list[list[int]]:
        """Lists the events at which a schedule computes each node, in the form of the whole model's hint."""
        if self.problem.order == "fixed":
            return event_times(stage_repeats(self.graph, schedule))
        times: list[list[int]] = [[] for _ in self.graph.nodes]
        for position, node in enumerate(schedule.order):
            times[node].append(position)
        return times

    def _search(self) -> None:
        """Searches neighbourhoods and proves bounds in turn, each from the other's results."""
        random = np.random.default_rng(self.seed)
        rungs = list(self.rungs) if self.proves else []
        searched: int | None = -1  # the cost at which neighbourhoods last gained nothing
        while self._left_s() > 0 and not self.incumbent.is_closed() and not self.infeasible:
            cost = self.incumbent.cost
            if self.incumbent.schedule is not None and (cost != searched or not rungs):
                self._improve(random, SETTINGS.improve_share * self._left_s())
                searched = self.incumbent.cost
            if rungs and not self.incumbent.is_closed():
                self._bound(rungs.pop(0))
            elif not rungs and self.incumbent.cost == cost:
                return

    def _improve(self, random: np.random.Generator, limit_s: float) -> None:
        limits, windows = self._limits_and_windows(self._extra_units())
        loop = Neighbourhoods(
            self.scaled, limits, windows, self._fetch_windows(windows), self.options.precedence, self.options.workers
        )
        until_s = time.perf_counter() + limit_s
        self.neighbourhoods += loop.improve(
            self.incumbent, until_s=until_s, random=random, max_fruitless=self.options.max_fruitless
        )

    def _bound(self, rung: Rung) -> None:
        """Asks for a schedule that costs less than the incumbent. Either finds one, or raises the bound."""
        extra = self._extra_units()
        limits, windows = self._limits_and_windows(extra, rung.max_computations, tail=rung.stages_only)
        num_events = _num_events(windows)
        small = num_events <= (SETTINGS.max_timed_events if self.offloads else SETTINGS.max_events)
        if not (small or rung.stages_only) or not self._has_memory(num_events):
            return
        if rung.stages_only:
            candidates = bound_candidates(self.graph, limits, windows)
        else:
            candidates = stage_candidates(self.graph, limits, windows, relax=True)
            candidates = self._with_fetches(candidates, windows, max_fetches=SETTINGS.max_fetches)
        formulation = build(self.graph, self.scaled, candidates, max_rows=rung.max_rows, deadline_s=self.deadline_s)
        known = (self.incumbent.bound - self.graph.baseline_cost) // self.scaled.cost_unit
        formulation.model.add(formulation.extra() >= known)
        if extra is not None:
            formulation.model.add(formulation.extra() <= extra - 1)
        share = SETTINGS.bound_share if small else SETTINGS.large_bound_share
        how = self._run(share * self._left_s())
        answer = run_cpsat(formulation, how, on_schedule=self._offer, on_bound=self._raise)
        self.rung = f"{'first computations' if rung.stages_only else 'stages'}, C_v {rung.max_computations}"
        if not self.scaled.lossless:
            return
        if answer.infeasible and extra is None:
            self.infeasible = True
        elif answer.infeasible and extra is not None:
            self._raise(extra)
        elif answer.closed:
            self._raise(answer.objective_bound)

    # -- free order: a good topological order, then stages; the whole sequence where it is short

    def free(self) -> Result:
        with contextlib.suppress(TimeoutError):
            if self.options.strategy == "whole":
                self.proves = False  # Proofs about stages do not hold in free order.
                self._start()
                self._whole()
            else:
                self._search_freely()
        return Result(
            self.incumbent.schedule,
            self.incumbent.bound,
            "free",
            "free" if self.infeasible and self.incumbent.schedule is None else None,
            stats=self._stats(),
        )

    def _search_freely(self) -> None:
        limit_s = SETTINGS.order_share * self._left_s()
        found = search_order(self.graph, time_limit_s=limit_s, seed=self.seed, budget_bytes=self.problem.budget_bytes)
        if not self.incumbent.offer(Schedule(found.order)) and self._left_s() > 0:
            self._in_order(found.order)
            if not self.offloads:
                self._sequence()

    def _in_order(self, order: tuple[int, ...]) -> None:
        """Solves the graph in this topological order by stages. That leads to a schedule, but to no bound."""
        problem = replace(self.problem, graph=reordered(self.graph, order), order="fixed")
        staged_incumbent = Incumbent(replace(self.incumbent.search, problem=problem))
        attempt = replace(self, incumbent=staged_incumbent, proves=False)
        attempt.fixed()
        self.neighbourhoods, self.gave_up = attempt.neighbourhoods, attempt.gave_up
        self.incumbent.reported = staged_incumbent.reported
        if staged_incumbent.schedule is not None:
            self.incumbent.offer(in_input_order(order, staged_incumbent.schedule))

    def _sequence(self) -> None:
        """Solves for one sequence of sum C_v positions (section 2.1). It is exact if the limits are enough."""
        if self._left_s() <= 0:
            return
        extra = self._extra_units()
        most = SETTINGS.sequence_computations
        limits = repeat_limits(self.graph, most, extra_units=extra, costs=self.scaled.costs)
        if sum(limits.computations) > SETTINGS.max_positions or self._left_s() <= 0:
            return
        candidates = sequence_candidates(self.graph, limits)
        formulation = build(self.graph, self.scaled, candidates, deadline_s=self.deadline_s)
        if extra is not None:
            formulation.model.add(formulation.extra() <= extra - 1)
        answer = run_cpsat(formulation, self._run(self._left_s()), on_schedule=self._offer)
        self.rung = f"sequence, C_v {max(limits.computations)}"
        bound = extra if answer.infeasible else answer.objective_bound
        if answer.infeasible and extra is None:
            self.infeasible = self.scaled.lossless and all(limits.enough)
        elif bound is not None:
            self._raise(min(bound, self._beyond(limits)))

    # -- shared

    def _stats(self) -> dict[str, int | str]:
        return {"neighbourhoods": self.neighbourhoods, "bound_model": self.rung, **self.size, **self.gave_up}

    def _has_memory(self, num_events: int) -> bool:
        try:
            self.incumbent.search.check_memory(SETTINGS.event_bytes * num_events)
        except MemoryError as error:
            self.gave_up = {"gave_up": str(error)}
            return False
        return True

    def _build(self, candidates: Candidates, *, least_peak: bool = False) -> IntervalModel:
        formulation = build(
            self.graph,
            self.scaled,
            candidates,
            precedence=self.options.precedence,
            least_peak=least_peak,
            deadline_s=self.deadline_s,
        )
        self.size = formulation.size()
        return formulation

    def _limits_and_windows(
        self, extra_units: int | None, max_computations: int | None = None, *, tail: bool = False
    ) -> tuple[Limits, tuple[Window, ...]]:
        options, costs = self.options, self.scaled.costs
        repeatable = [
            can and (extra_units is None or cost < extra_units)
            for can, cost in zip(self.repeatable, costs, strict=True)
        ]
        if options.presolve:
            windows = repeat_windows(self.graph, self.problem.budget_bytes, repeatable, tail=tail)
        else:
            windows = all_windows(repeatable)
        limits = repeat_limits(
            self.graph,
            max_computations or options.max_computations,
            () if max_computations else options.node_computations,
            extra_units=extra_units,
            costs=costs,
            windows=windows,
        )
        return limits, windows

    def _extra_units(self) -> int | None:
        if self.incumbent.cost is None:
            return None
        return (self.incumbent.cost - self.graph.baseline_cost) // self.scaled.cost_unit

    def _beyond(self, limits: Limits) -> int:
        """Returns the least extra cost, in units, of a schedule that computes some node more often than its limit."""
        extras = [
            limit * cost
            for limit, enough, cost in zip(limits.computations, limits.enough, self.scaled.costs, strict=True)
            if not enough
        ]
        return min(extras, default=2**62)

    def _offer(self, schedule: Schedule) -> None:
        offer_hidden(self.incumbent, schedule)

    def _raise(self, extra_units: int) -> None:
        if self.scaled.lossless:
            self.incumbent.raise_bound(self.graph.baseline_cost + extra_units * self.scaled.cost_unit)

    def _run(self, limit_s: float) -> CpSatSettings:
        return CpSatSettings(limit_s, self.seed, num_workers=self.options.workers)

    def _left_s(self) -> float:
        return self.deadline_s - time.perf_counter()
