"""Plans that keep or recompute what patterns name, on a graph whose emission and measurement are stood in for."""

import pytest

from checkmate_tf.constraints import Constraints, list_broken
from checkmate_tf.errors import InfeasibleBudgetError, PatternError, PlanError
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.plan_file import planned_from_json, planned_to_json
from checkmate_tf.planning.search import find_plan
from checkmate_tf.progress import show_planning
from checkmate_tf.reports.plan import Plan
from tests.planning.test_planning import CHAIN, STOCK, ChainStep


def plan(budget, *, known=(), exact=True, measure=True, plan=None, **options):
    step = ChainStep((lambda peak: peak) if exact else (lambda peak: int(1.2 * peak)))
    request = Request(budget, 20, Options(**options), measure, progress=False, plan=plan)
    with show_planning(shown=False) as bar:
        return find_plan(step, request, bar, known=known).planned


def test_what_is_kept_is_computed_once_and_what_is_recomputed_is_not_retained():
    planned = plan(8000, keep=["f1", "f2"], recompute=["f5"])
    wanted = Constraints(frozenset({1, 2}), frozenset({5}))
    assert list_broken(CHAIN, planned.schedule, wanted) == []
    assert planned.schedule.order.count(5) >= 2
    assert planned.peak_bytes <= 8000


def test_the_stock_step_is_no_plan_where_something_is_to_be_recomputed():
    assert plan(20000, keep=["f*"]).schedule == STOCK
    planned = plan(20000, recompute=["f5"], measure=False)
    assert [planned.schedule.order.count(node) for node in (4, 5, 6)] == [1, 2, 1]
    assert list_broken(CHAIN, planned.schedule, Constraints(recompute=frozenset({5}))) == []


def test_a_known_schedule_that_breaks_a_constraint_is_not_taken():
    again = plan(8000).schedule
    first = next(node for node in again.order if again.order.count(node) > 1)
    planned = plan(8000, known=[again], keep=[CHAIN.nodes[first].name])
    assert planned.schedule.order.count(first) == 1


def test_a_plan_says_what_each_pattern_costs():
    planned = plan(7000, recompute=["f6", "f5"], keep=["f1"])
    assert [(one.kind, one.pattern, one.num_nodes) for one in planned.patterns] == [
        ("keep", "f1", 1),
        ("recompute", "f6", 1),
        ("recompute", "f5", 1),
    ]
    assert all(one.overhead_without <= planned.overhead for one in planned.patterns)
    free = plan(7000)
    assert free.overhead <= min(one.overhead_without for one in planned.patterns)
    text = str(Plan(planned))
    assert "recompute 'f6', 1 node: " in text
    assert planned_from_json(planned_to_json(planned)).patterns == planned.patterns


def test_an_infeasible_budget_says_what_each_pattern_costs_in_bytes():
    message = r"As it is steered, it needs .* \(predicted\): .* without keep 'f\?'"
    with pytest.raises(InfeasibleBudgetError, match=message) as caught:
        plan(5000, keep=["f?"])
    assert caught.value.least_budget_bytes >= 9000
    assert plan(5000).peak_bytes <= 5000


def test_patterns_are_part_of_what_a_kept_plan_is_found_by():
    first, second = plan(8000, recompute=["f5"]), plan(8000, recompute=["f6"])
    assert [one.pattern for one in (*first.patterns, *second.patterns)] == ["f5", "f6"]
    assert plan(8000, recompute=[lambda node: node.name == "f6"]).schedule.order.count(6) > 1


def test_a_plan_out_of_a_file_must_meet_the_constraints():
    with pytest.raises(PlanError, match="contradicts keep or recompute: f6 is retained"):
        plan(8000, plan=plan(20000), recompute=["f6"])


def test_a_misspelt_pattern_is_refused_before_anything_is_solved():
    with pytest.raises(PatternError, match="Close to it: f0"):
        plan(8000, keep=["f00"])


def test_a_margin_is_a_share_of_the_budget_beside_the_state():
    planned = plan(10000, margin="20%")
    assert (planned.budget_bytes, planned.margin_bytes) == (8000, 2000)
    assert planned.peak_bytes <= 8000
    assert "beside a margin of 1.95 KiB" in str(Plan(planned))
    assert plan(10000).margin_bytes == 0
    auto = plan("auto")
    assert (auto.budget_bytes, auto.margin_bytes) == (12_345 - 1_234, 1_234)
    assert plan("auto", margin=0).budget_bytes == 12_345
