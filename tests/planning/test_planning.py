"""find_plan: solving, measuring and solving again, on a graph whose emission and measurement are stood in for."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from checkmate_tf.errors import EmissionError, InfeasibleBudgetError, PlanError
from checkmate_tf.executors.step import Chunks, ResidentBytes, Step
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.measurement.difference import StepDifference, UpdateDifference
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins, guess_origins
from checkmate_tf.planning import plan_cache, search
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.planned_step import ReadyStep
from checkmate_tf.planning.search import adopt_plan, find_plan
from checkmate_tf.profiling.costs import CostModel
from checkmate_tf.progress import show_planning
from checkmate_tf.reports.plan import Plan
from checkmate_tf.schedule import Schedule, drop_unread
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Search, Solver, get_solver
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.portfolio import kernels
from tests.graphs import training_chain

# Eight layers of 1000 bytes: 10000 hold everything (eight outputs, the loss, the first gradient), and 4000 are what any
# gradient needs; they do, where each gradient's inputs are computed from the start.
CHAIN = training_chain(8, size=1000)
STOCK = make_retain_all_schedule(CHAIN)
ORIGINS = guess_origins(CHAIN)


@dataclass(frozen=True)
class FindsNothing(Solver):
    def search(self, search: Any) -> Result:
        return Result(None)


@dataclass(frozen=True)
class NeedsTime(Solver):
    def search(self, search: Search) -> Result:
        return get_solver("checkmate_milp").search(search) if search.time_limit_s > 4 else Result(None)


@dataclass
class ChainStep:
    """A step that takes `above(peak)` bytes where `peak` are predicted."""

    above: Callable[[int], int]
    refused: tuple[str, ...] = ()
    held_bytes: int = 0
    slowdown: float = 1.0
    orderings: Any = ("chain",)
    exceeds_as_stock: bool = True
    graph: Graph = CHAIN
    resident: ResidentBytes = field(default_factory=ResidentBytes)
    origins: Origins = ORIGINS
    stock: Any = (STOCK, "stock")
    stock_peak_bytes: int = simulate_stock(CHAIN).peak_bytes
    tried: list[tuple[str, int]] = field(default_factory=list)
    difference: StepDifference | None = None
    is_compiled: bool = False

    uses_xla: bool = False
    device: None = None
    signature: str = "float32[1]"
    chunks: tuple[Chunks, ...] = ()
    movable_bytes: int = 0
    state_cost: int = 0

    def move_state(self, size_bytes: int) -> "ChainStep":
        return self

    def add_costs(self, costs: CostModel, *, on_node: Any = None) -> "ChainStep":
        return self

    def arrange(self, schedule: Schedule) -> Schedule:
        return drop_unread(self.graph, schedule)

    def emit(self, schedule: Schedule, ordering: str) -> Any:
        if ordering in self.refused:
            raise EmissionError("a circle")
        return schedule, ordering

    def measure(self, function: Any, predicted_bytes: int, budget_bytes: int | None = None) -> StepRun:
        schedule, ordering = function
        peak_bytes = simulate(self.graph, schedule).peak_bytes
        assert peak_bytes == predicted_bytes
        if ordering != "stock":
            self.tried.append((ordering, peak_bytes))
        difference = None if ordering == "stock" else self.difference
        return StepRun(
            self.above(peak_bytes), held_bytes=self.held_bytes, difference=difference, is_compiled=self.is_compiled
        )

    def time_in_turn(self, *functions: Any) -> list[float]:
        return [
            simulate(self.graph, schedule).cost * (self.slowdown if ordering == "chain" else 1.0)
            for schedule, ordering in functions
        ]

    def find_auto_budget(self) -> int:
        return 12_345


def planned(
    step: Step, budget: int | str, solver: str | Solver = "checkmate_milp", known: Any = (), **given: Any
) -> ReadyStep:
    with show_planning(shown=False) as bar:
        return find_plan(step, Request(budget, 20, Options(solver), **given), bar, known=known)


def test_the_first_schedule_is_planned_for_what_the_stock_step_takes_too_much() -> None:
    """A tenth more than is asked for, in each step: 7000 are planned for, and take 7700."""
    step = ChainStep(lambda peak: peak * 11 // 10)
    plan = planned(step, 8000).planned
    assert step.tried == [("chain", 7000)]
    assert (plan.predicted_peak_bytes, plan.measured_peak_bytes) == (7000, 7700)
    assert (plan.stock.predicted_bytes, plan.stock.peak_bytes) == (10000, 11000)


def test_what_the_stock_step_takes_too_much_may_say_nothing_of_rewritten_steps() -> None:
    step = ChainStep(lambda peak: 2 * peak if not step.tried else peak, exceeds_as_stock=False)
    planned(step, 8300)
    assert step.tried == [("chain", 8000)]


def test_plans_tighter_by_what_the_step_took_too_much() -> None:
    """Rewritten steps take a third more than the stock step lets expect."""
    step = ChainStep(lambda peak: peak if peak == 10000 else peak * 4 // 3)
    plan = planned(step, 8300).planned
    assert step.tried == [("chain", 8000), ("chain", 6000)]
    assert plan.measured_peak_bytes == 8000


def test_what_steps_leave_behind_does_not_grow_with_the_target() -> None:
    """6000 of 16000 are left behind; in proportion to all of it, 8000 would be planned for, and take 14000."""
    step = ChainStep(lambda peak: peak + 6000, held_bytes=6000)
    assert planned(step, 13200).planned.measured_peak_bytes == 13000
    assert step.tried[:2] == [("chain", 10000), ("chain", 6000)]


def test_no_schedule_is_tried_in_line_that_cannot_fit_so() -> None:
    def step(held_bytes: int) -> ChainStep:
        above = {10000: 10000, 8000: 9000, 7000: 8500}
        return ChainStep(lambda peak: above.get(peak, peak), (), held_bytes, orderings=("overlap", "chain"))

    for held_bytes, in_line in ((0, True), (1500, False)):
        tried = step(held_bytes)
        planned(tried, 8200)
        assert (("chain", 7000) in tried.tried) == in_line


def test_a_round_that_found_nothing_gives_the_next_more_time() -> None:
    step = ChainStep(lambda peak: peak)
    assert planned(step, 8000, NeedsTime()).planned.measured_peak_bytes == 7000
    assert step.tried == [("chain", 7000)]


def test_no_budget_is_refused_before_solvers_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers find nothing until all is compiled, which planning waits for before it gives up."""
    compiled = False

    def compile_all() -> None:
        nonlocal compiled
        compiled = True

    class NeedsKernels(Solver):
        def search(self, search: Search) -> Result:
            return get_solver("checkmate_milp").search(search) if compiled else Result(None)

    monkeypatch.setattr(kernels, "are_compiled", lambda: compiled)
    monkeypatch.setattr(kernels, "compile_all", compile_all)
    step = ChainStep(lambda peak: peak)
    assert planned(step, 8000, NeedsKernels()).planned.measured_peak_bytes == 7000
    assert compiled


def test_plans_for_more_where_much_of_the_budget_is_unused() -> None:
    """8000 take 9000, above the budget; 6000 take 5000; between the two 7000 take 8000."""
    step = ChainStep(lambda peak: {10000: 10000, 8000: 9000, 7000: 8000}.get(peak, peak - 1000))
    plan = planned(step, 8300).planned
    assert plan.measured_peak_bytes == 8000
    assert step.tried[0] == ("chain", 8000)
    assert step.tried[-1] == ("chain", 7000)


def test_no_headroom_is_left_once_a_compiled_step_has_fitted() -> None:
    """A measured peak varies, so that 7000 of 8000 stay in use; a compiled one does not."""
    for is_compiled, peak_bytes in ((False, 7000), (True, 8000)):
        step = ChainStep(lambda peak: peak, is_compiled=is_compiled)
        assert planned(step, 8000).planned.peak_bytes == peak_bytes
        assert step.tried[0] == ("chain", 7000)


def test_a_schedule_within_the_budget_is_planned_even_if_it_is_found_last() -> None:
    """For targets within the budget, the solver finds the schedule of 4000 bytes, which takes 7600."""

    class SavesTooMuch(Solver):
        def search(self, search: Search) -> Result:
            problem = search.problem
            least = replace(problem, budget_bytes=4000) if problem.budget_bytes <= 5000 else problem
            return get_solver("checkmate_milp").search(replace(search, problem=least))

    step = ChainStep({10000: 10000, 6000: 7400, 5000: 5000, 4000: 7600}.get)
    assert planned(step, 5000, SavesTooMuch()).planned.peak_bytes == 5000
    assert [peak_bytes for _, peak_bytes in step.tried] == [4000, 4000, 5000]


def test_a_compiled_peak_counts_even_if_the_predicted_one_is_larger() -> None:
    """Without a run, one operation alone needs 4000; compiled, the schedule of 4000 takes 3500."""
    step = ChainStep(lambda peak: peak - 500, is_compiled=True)
    assert planned(step, 3600).planned.peak_bytes == 3500
    with pytest.raises(InfeasibleBudgetError):
        planned(ChainStep(lambda peak: peak - 500), 3600)


def test_a_schedule_that_costs_next_to_nothing_ends_the_search() -> None:
    """Gradients cost so much that to recompute a layer is worth no other schedule, whatever is left of the budget."""
    nodes = tuple(replace(node, cost=1000 if node.is_backward else 1) for node in CHAIN.nodes)
    for graph, is_cheap in ((replace(CHAIN, nodes=nodes), True), (CHAIN, False)):
        step = ChainStep(lambda peak: peak - 2000, graph=graph)
        planned(step, 8200)
        assert (len(step.tried) == 1) == is_cheap


def test_the_stock_step_is_used_where_it_fits() -> None:
    step = ChainStep(lambda peak: peak + 500)
    for budget in ("100%", 10500, 11000):
        found = planned(step, budget, "auto")
        assert found.function is step.stock
        assert found.planned.ordering is None
        assert found.planned.overhead == 0
    assert step.tried == []


def test_a_percentage_is_of_what_the_stock_step_measures() -> None:
    assert planned(ChainStep(lambda peak: peak + 2000), "75%").planned.budget_bytes == 9000
    assert planned(ChainStep(lambda peak: peak + 2000), "75%", measure=False).planned.budget_bytes == 7500
    assert planned(ChainStep(lambda peak: peak), "auto").planned.budget_bytes == 12_345 - 1_234


def test_unmeasured_plans_are_solved_once_for_the_budget_itself() -> None:
    step = ChainStep(lambda peak: 2 * peak)
    plan = planned(step, 8000, measure=False).planned
    assert (plan.predicted_peak_bytes, plan.measured_peak_bytes) == (8000, None)
    assert step.tried == []


@pytest.mark.parametrize("budget", [7000, 3000])
def test_the_least_budget_that_is_named_works(budget: int) -> None:
    with pytest.raises(InfeasibleBudgetError, match="cannot be met") as raised:
        planned(ChainStep(lambda peak: peak + 4000), budget)
    least = raised.value.least_budget_bytes
    assert least is not None
    plan = planned(ChainStep(lambda peak: peak + 4000), least).planned
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= least
    assert raised.value.closest is not None
    assert raised.value.proved == (budget == 3000)


def test_the_least_budget_that_is_named_is_never_above_the_stock_step() -> None:
    """Whatever is rewritten takes 11000 or more here, and the stock step 10000."""

    def above(peak: int) -> int:
        return peak if peak == 10000 else peak + 7000

    for budget in (9000, 3000):
        with pytest.raises(InfeasibleBudgetError) as raised:
            planned(ChainStep(above), budget, "auto")
        assert raised.value.least_budget_bytes == 10000
    assert planned(ChainStep(above), 10000, "auto").planned.overhead == 0


@pytest.mark.parametrize("budget", [3000, 4500])
def test_the_least_budget_that_is_named_is_not_that_of_the_least_memory_predicted(budget: int) -> None:
    """Its schedule takes 9000 here, others their prediction. The larger budget is above the need of any one node."""

    def step() -> ChainStep:
        return ChainStep(lambda peak: {4000: 9000}.get(peak, peak))

    with pytest.raises(InfeasibleBudgetError) as raised:
        planned(step(), budget)
    least = raised.value.least_budget_bytes
    assert least is not None
    assert 5100 < least < 5200
    assert planned(step(), least).planned.measured_peak_bytes == 5000


def test_the_least_budget_that_is_named_works_where_solvers_find_nothing_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)

    def step() -> ChainStep:
        return ChainStep(lambda peak: {4000: 9000}.get(peak, peak))

    with pytest.raises(InfeasibleBudgetError) as raised:
        planned(step(), 4500)
    least = raised.value.least_budget_bytes
    assert least is not None
    monkeypatch.setattr(search._Search, "try_solver", lambda self: None)
    assert planned(step(), least).planned.measured_peak_bytes == 5000
    with pytest.raises(InfeasibleBudgetError):
        planned(step(), 4500)


def test_the_message_of_a_hopeless_budget_does_not_contradict_itself() -> None:
    with pytest.raises(
        InfeasibleBudgetError,
        match=r"operation \S+ alone needs 3.91 KiB\. The least budget .* of the stock",
    ) as raised:
        planned(ChainStep(lambda peak: peak // 2), 1000)
    assert raised.value.least_budget_bytes is not None
    assert raised.value.least_budget_bytes >= 4000


def test_the_schedule_of_least_memory_where_the_solver_finds_none() -> None:
    plan = planned(ChainStep(lambda peak: peak + 1000), 8000, FindsNothing()).planned
    assert plan.peak_bytes == plan.predicted_peak_bytes + 1000 <= 8000


def test_nodes_wait_for_one_another_where_side_by_side_they_take_too_much() -> None:
    """Of 8000 measured side by side later steps may take 2 % more; one after the other they take what they took."""
    step = ChainStep(lambda peak: peak, orderings=("overlap", "chain"))
    assert planned(step, 8200).planned.ordering == "overlap"
    step = ChainStep(lambda peak: peak, orderings=("overlap", "chain"))
    found = planned(step, 4000)
    assert found.planned.ordering == "chain"
    assert found.planned.measured_peak_bytes == 4000


def test_a_plan_and_the_stock_step_are_timed_in_turn() -> None:
    """They were measured at different times, between which the machine may have become busier."""
    found = planned(ChainStep(lambda peak: peak, slowdown=1.5), 4000).planned
    assert found.measured_overhead == pytest.approx(1.5 * (1 + found.overhead) - 1)
    assert found.stock.run.step_s == CHAIN.baseline_cost
    assert planned(ChainStep(lambda peak: peak), 100_000).planned.measured_overhead is None


def test_a_plan_is_confirmed_by_a_step_that_takes_up_to_the_spread_more() -> None:
    """The plan has 8160 of 8200 bytes with the spread of 2 %. Later the same step measures 8100, then 8300."""
    found = planned(ChainStep(lambda peak: peak, orderings=("overlap", "chain")), 8200).planned
    assert (found.ordering, found.peak_bytes) == ("overlap", 8160)
    request = Request(8200, 20, Options())
    with show_planning(shown=False) as bar:
        step = ChainStep(lambda peak: peak + 100, orderings=("overlap", "chain"))
        assert adopt_plan(step, found, request, bar).planned.peak_bytes == 8100
        # Its time stays that of planning, when the stock step was timed, too.
        stock = replace(found.stock, run=replace(found.stock.run, step_s=1.0))
        timed = replace(found, run=replace(found.run, step_s=1.1), stock=stock)
        assert adopt_plan(step, timed, request, bar).planned.measured_overhead == pytest.approx(0.1)
        with pytest.raises(PlanError, match="above its budget"):
            adopt_plan(ChainStep(lambda peak: peak + 300, orderings=("overlap", "chain")), found, request, bar)


def test_nodes_wait_for_one_another_where_that_is_much_cheaper_than_another_schedule() -> None:
    step = ChainStep(lambda peak: peak if peak == 10000 else peak + 150, orderings=("overlap", "chain"))
    assert planned(step, 8300).planned.ordering == "chain"
    assert step.tried == [("overlap", 8000), ("chain", 8000)]


def test_nodes_run_in_parallel_where_that_is_faster_although_more_is_computed_again() -> None:
    """The first schedule fits one node after the other, in 1.5 times the time; the next one fits in parallel."""
    step = ChainStep(lambda peak: peak if peak == 10000 else peak + 150, orderings=("overlap", "chain"), slowdown=1.5)
    found = planned(step, 8300).planned
    assert step.tried[:2] == [("overlap", 8000), ("chain", 8000)]
    assert found.ordering == "overlap"
    assert 0 < found.overhead < 0.5


def test_another_ordering_where_tensorflow_finds_a_circle() -> None:
    step = ChainStep(lambda peak: peak, refused=("overlap",), orderings=("overlap", "chain"))
    assert planned(step, 8200).planned.ordering == "chain"
    with pytest.raises(EmissionError):
        planned(ChainStep(lambda peak: peak, refused=("chain",)), 8000)


def test_another_schedule_where_tensorflow_refuses_one_in_every_ordering() -> None:
    class Refused(ChainStep):
        def emit(self, schedule: Schedule, ordering: str) -> Any:
            if simulate(CHAIN, schedule).peak_bytes == 8000:
                raise EmissionError("a circle")
            return super().emit(schedule, ordering)

    found = planned(Refused(lambda peak: peak), 8300).planned
    assert found.predicted_peak_bytes == 7000


def test_a_schedule_of_least_memory_that_tensorflow_refuses_does_not_hide_what_others_take() -> None:
    class Refused(ChainStep):
        def emit(self, schedule: Schedule, ordering: str) -> Any:
            if simulate(CHAIN, schedule).peak_bytes < 5000:
                raise EmissionError("a circle")
            return super().emit(schedule, ordering)

    step = Refused(lambda peak: peak if peak == 10000 else peak * 3 // 2)
    with pytest.raises(InfeasibleBudgetError, match=r"\(7650 bytes, 77% of the stock step's peak\)"):
        planned(step, 5500)
    assert min(step.tried) == ("chain", 5000)  # which takes 7500, and errors add 2 % to that


def test_the_stock_step_is_predicted_with_its_workspace_once_nodes_are_timed() -> None:
    class Timed(ChainStep):
        def add_costs(self, costs: CostModel, *, on_node: Any = None) -> "Timed":
            return replace(self, stock_peak_bytes=10700)

    stock = planned(Timed(lambda peak: peak), 8300).planned.stock
    assert (stock.predicted_bytes, stock.peak_bytes) == (10700, 10000)


def test_a_schedule_of_another_size_needs_no_solver() -> None:
    known = planned(ChainStep(lambda peak: peak), 8000).planned.schedule
    step = ChainStep(lambda peak: peak)
    found = planned(step, 8500, FindsNothing(), known=[known, Schedule((0,))])
    assert found.planned.schedule == known


def test_a_plan_says_how_far_a_step_ends_from_the_stock_step() -> None:
    step = ChainStep(lambda peak: peak, difference=StepDifference(2e-7, "conv/kernel", 3e-4))
    plan = Plan(planned(step, 8000).planned)
    assert (plan.difference, plan.differs_most) == (2e-7, "conv/kernel")
    assert "at most 2.0e-07 of what it changes (measured, conv/kernel)" in plan.summary()
    equal = planned(ChainStep(lambda peak: peak, difference=StepDifference(0.0)), 8000).planned
    assert "up to their last bit" in Plan(equal).summary()
    assert Plan(planned(ChainStep(lambda peak: peak), 8000).planned).difference is None


def test_a_plan_names_the_weights_whose_updates_rounding_decides(recwarn) -> None:
    updates = (UpdateDifference("key/bias", 2.0, 1.5), UpdateDifference("conv/kernel", 0.3, 1e-5))
    plan = Plan(
        planned(ChainStep(lambda peak: peak, difference=StepDifference(2e-7, "conv", 3e-4, updates)), 8000).planned
    )
    assert plan.differing_updates == updates
    assert not recwarn.list
    decided = (
        "rounding changes the updates of 1 weight: that of key/bias differs .* by 2.0e\\+00 of itself, and by 1.5e"
    )
    assert re.search(decided, plan.summary())
    assert re.search(
        "Updates of 1 weight differ .*that of conv/kernel differs .* by 3.0e-01 of itself, and by 1.0e-05",
        plan.summary(),
    )


def test_planning_warns_of_a_step_that_differs_by_more_than_rounding() -> None:
    step = ChainStep(lambda peak: peak, difference=StepDifference(0.02, "conv/kernel", 3e-4))
    with pytest.warns(RuntimeWarning, match=r"differs from the stock step by 2.0e-02.*'conv/kernel'"):
        planned(step, 8000)


def make_branches(number: int) -> Graph:
    """Branches whose nodes the trace makes in turn: all large values first, then what reads each of them."""
    large = [Node(f"large{i}", "Conv2D", (), (i,), cost=10, is_backward=True) for i in range(number)]
    small = [Node(f"small{i}", "Sum", (i,), (number + i,), cost=1, is_backward=True) for i in range(number)]
    values = [Value(f"v{i}", 1000 if i < number else 10) for i in range(2 * number)]
    return Graph((*large, *small), tuple(values), tuple(range(number, 2 * number)))


@pytest.mark.parametrize("measure", [True, False])
def test_nothing_is_computed_that_nothing_reads(measure: bool) -> None:
    """In the order of the trace two of three large values would be computed twice; branch by branch none is."""
    graph = make_branches(3)
    order = make_retain_all_schedule(graph)
    peak_bytes = simulate_stock(graph).peak_bytes
    assert peak_bytes == 3010
    step = ChainStep(
        lambda peak: peak,
        graph=graph,
        origins=guess_origins(graph),
        stock=(order, "stock"),
        stock_peak_bytes=peak_bytes,
    )
    plan = planned(step, 1200, "auto", measure=measure).planned
    assert plan.overhead == 0
    assert plan.predicted_peak_bytes <= 1200
    assert sorted(plan.schedule.order) == list(range(6))


def test_later_rounds_keep_to_the_order_in_which_values_are_needed() -> None:
    asked: list[tuple[str, ...]] = []

    @dataclass(frozen=True)
    class Watched(Solver):
        def search(self, search: Search) -> Result:
            asked.append(tuple(node.name for node in search.problem.graph.nodes))
            return get_solver("checkmate_milp").search(search)

    graph = make_branches(3)
    step = ChainStep(lambda peak: peak + 100, graph=graph, stock=(make_retain_all_schedule(graph), "stock"))
    step.origins = guess_origins(graph)
    planned(step, 1300, Watched())
    assert asked[0] == tuple(node.name for node in graph.nodes)
    assert len(asked) > 1
    for names in asked[1:]:
        places = {name: place for place, name in enumerate(names)}
        assert all(places[f"small{i}"] < places[f"large{i + 1}"] for i in range(2))
