"""make_plan: the loop of planning, measuring and planning tighter, on a graph whose emission is stood in for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.plan import Options, Planned, ResidentBytes, make_plan
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import Solver
from checkmate_tf.solvers.base import Found, Problem
from tests.graphs import training_chain

# Eight layers of 1000 bytes: 10000 hold everything (eight outputs, the loss, the first gradient), and 4000 are what any
# gradient needs; they do, where each gradient's inputs are computed from the start.
CHAIN = training_chain(8, size=1000)


@dataclass(frozen=True)
class FindsNothing(Solver):
    def search(self, problem: Problem, **_: Any) -> Found:
        return Found(None)


def planned(
    budget: int,
    above: Callable[[int], int],
    asked: list[int] | None = None,
    solver: str | Solver = "checkmate_milp",
) -> Planned:
    """Plans where a step of a predicted peak measures `above(peak)`; `asked` gets the predicted peaks."""

    def measure(schedule: Any) -> int:
        peak_bytes = simulate(CHAIN, schedule).peak_bytes
        if asked is not None:
            asked.append(peak_bytes)
        return above(peak_bytes)

    options = Options(budget, solver, time_limit_s=20, progress=False)
    return make_plan(CHAIN, options, emit=lambda schedule, _: schedule, resident=ResidentBytes(), measure=measure)


def test_plans_tighter_by_what_the_step_took_too_much() -> None:
    asked: list[int] = []
    plan = planned(8000, lambda peak: peak * 11 // 10, asked).plan
    assert asked == [8000, 7000]
    assert (plan.predicted_peak_bytes, plan.measured_peak_bytes) == (7000, 7700)


def test_a_step_within_the_budget_is_measured_once() -> None:
    asked: list[int] = []
    assert planned(8000, lambda peak: peak, asked).plan.measured_peak_bytes == 8000
    assert asked == [8000]


def test_between_what_is_too_much_and_what_is_too_little() -> None:
    """8000 measures 5000 too much; no schedule needs as little as 3000, so it goes on halfway between the two.

    Then up again, as long as more than a little of the budget is unused.
    """
    asked: list[int] = []
    plan = planned(8000, lambda peak: peak + (5000 if peak > 7000 else 1000), asked).plan
    assert asked == [8000, 5000, 7000]
    assert plan.measured_peak_bytes == 8000


def test_least_budget_that_is_named_works() -> None:
    with pytest.raises(InfeasibleBudgetError, match="cannot be met") as raised:
        planned(7000, lambda peak: peak + 4000)
    least = raised.value.least_budget_bytes
    assert least is not None
    plan = planned(least, lambda peak: peak + 4000).plan
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= least


def test_least_budget_is_measured_where_no_schedule_fits() -> None:
    with pytest.raises(InfeasibleBudgetError, match="cannot be met") as raised:
        planned(3000, lambda peak: 2 * peak)
    least = raised.value.least_budget_bytes
    assert least is not None
    assert planned(least, lambda peak: 2 * peak).plan.measured_peak_bytes is not None


def test_the_schedule_of_least_memory_where_the_solver_finds_none() -> None:
    plan = planned(8000, lambda peak: peak + 1000, solver=FindsNothing()).plan
    assert plan.peak_bytes == plan.predicted_peak_bytes + 1000 <= 8000


@pytest.mark.parametrize(("spread_bytes", "expected"), [(500, [8000, 7000, 7000]), (9000, None)])
def test_a_free_order_leaves_room_for_its_spread(spread_bytes: int, expected: list[int] | None) -> None:
    """Of 8000 measured in 8000, 4 % are missing; where no schedule leaves enough, steps wait for one another.

    Above 7000, which leaves more than a little unused, there is none but that again.
    """
    tried: list[tuple[str, int]] = []

    def measure(emitted: Any) -> int:
        schedule, ordering = emitted
        peak_bytes = simulate(CHAIN, schedule).peak_bytes
        tried.append((ordering, peak_bytes))
        return peak_bytes + (spread_bytes - 500 if ordering == "overlap" else 0)

    plan = make_plan(
        CHAIN,
        Options(8000, "checkmate_milp", time_limit_s=20, progress=False),
        emit=lambda schedule, ordering: (schedule, ordering),
        resident=ResidentBytes(),
        measure=measure,
        spread=0.04,
    ).plan
    if expected:
        assert tried == [("overlap", peak_bytes) for peak_bytes in expected]
    else:
        assert tried[-1] == ("chain", 8000) == (tried[-1][0], plan.measured_peak_bytes)
