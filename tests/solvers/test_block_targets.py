"""Targets: what HiGHS finds below a cost, the optimum that targets come to, and the bounds told on the way."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers.mip import highs as mip_highs
from checkmate_tf.solvers.relaxation.cuts import add_path_cuts
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, Reach
from checkmate_tf.solvers.relaxation.programs import Relaxed, bound_with_cpsat, bound_with_highs
from checkmate_tf.solvers.relaxation.rows import build_block_model
from checkmate_tf.solvers.relaxation.targets import bound_by_targets
from tests.graphs import published
from tests.solvers.test_block_relaxation import any_blocks, tight_cases


def programs(case, data):
    """A program with path cuts, and its linear relaxation."""
    graph, budget = case
    reach = Reach.of(graph)
    bounded = add_path_cuts(graph, budget, data.draw(any_blocks(graph)), reach)
    return bounded, build_block_model(graph, budget, bounded.blocks, reach)


@settings(deadline=None, max_examples=100)
@given(tight_cases(), st.data(), st.integers(-2, 2))
def test_highs_finds_what_costs_no_more_and_nothing_else(case, data, more):
    _, model = programs(case, data)
    oracle = bound_with_cpsat(model)
    if oracle.point is None:
        return
    found = bound_with_highs(model, at_most=oracle.lower_bound + more)
    if more < 0 and model.num_columns:
        assert math.isinf(found.lower_bound)
    else:
        assert found.optimal
        assert found.lower_bound == pytest.approx(oracle.lower_bound, abs=1e-3)


@settings(deadline=None, max_examples=100)
@given(tight_cases(), st.data(), st.integers(0, 40))
def test_targets_come_to_the_optimum_by_bounds_below_it(case, data, more):
    bounded, model = programs(case, data)
    oracle = bound_with_cpsat(model)
    if oracle.point is None:
        return
    targets, told = [], []

    def solve(target: float, time_limit_s: float) -> Relaxed:
        targets.append(target)
        fixed = bounded.fix_columns(model, target)
        return bound_with_highs(fixed, at_most=target, time_limit_s=time_limit_s)

    most = oracle.lower_bound + more
    found = bound_by_targets(
        solve,
        bounded.bound,
        at_most=lambda: most,
        time_limit_s=60,
        on_bound=lambda bound: told.append(bound) or True,
    )
    assert found.optimal
    assert found.lower_bound == pytest.approx(oracle.lower_bound, abs=1e-3)
    assert targets == sorted(targets)
    assert told == targets[:-1]
    assert all(bound <= oracle.lower_bound + 1e-3 for bound in told)


def scripted(outcomes: dict[float, Relaxed], most: float, time_limit_s: float = 60):
    """Targets from the linear bound 0 on, at which a program ends as `outcomes` says; else nothing costs so little."""
    asked: list[float] = []

    def solve(target: float, _: float) -> Relaxed:
        asked.append(target)
        beyond = [outcome for at, outcome in outcomes.items() if target >= at]
        return beyond[0] if beyond else Relaxed(math.inf, None, optimal=False)

    found = bound_by_targets(solve, 0.0, at_most=lambda: most, time_limit_s=time_limit_s, on_bound=lambda _: True)
    return found, asked


def test_targets_rise_to_the_known_schedule():
    found, asked = scripted({}, 100.0)
    assert math.isinf(found.lower_bound)
    assert asked[0] == pytest.approx(15.0)
    assert asked == sorted(set(asked))
    assert asked[-1] == pytest.approx(100.0)


def test_a_search_that_ends_without_an_answer_ends_it_all():
    found, asked = scripted({30.0: Relaxed(22.0, None, optimal=False)}, 100.0)
    assert found == Relaxed(22.0, None, optimal=False)
    assert asked[-2] < 30.0 <= asked[-1]


def test_when_time_is_up_the_last_target_counts():
    found, asked = scripted({}, 100.0, time_limit_s=0.0)
    assert asked == [pytest.approx(15.0)]
    assert found == Relaxed(asked[0], None, optimal=False)


def test_bounds_are_told_and_the_search_ends_where_asked(monkeypatch):
    monkeypatch.setattr(mip_highs, "_TELL_EVERY_S", 0.0)
    model = hard_model()
    told: list[float] = []
    ended = bound_with_highs(model, on_bound=lambda bound: told.append(bound) or len(told) < 5)
    assert len(told) == 5
    assert not ended.optimal
    optimum = bound_with_highs(model, on_bound=lambda bound: told.append(bound) or True)
    assert optimum.optimal
    assert max(told) <= optimum.lower_bound + 1e-3


def hard_model() -> BlockModel:
    """rl-g2 at 80 % with five blocks."""
    graph = published("rl-g2-n250")
    budget = simulate_stock(graph).peak_bytes * 8 // 10
    return build_block_model(graph, budget, Blocks((0, 189, 219, 238, 244)), Reach.of(graph))
