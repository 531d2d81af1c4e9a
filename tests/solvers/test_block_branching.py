"""Branch and cut: the optimum of the mixed-integer program, and bounds that hold all the way."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from checkmate_tf.solvers.mip import lazy_program
from checkmate_tf.solvers.mip.lazy_program import LazyProgram, LazySolution
from checkmate_tf.solvers.mip.program import MixedIntegerProgram
from checkmate_tf.solvers.relaxation import branching as block_branching
from checkmate_tf.solvers.relaxation.branching import _Bounds, bound_by_branching
from checkmate_tf.solvers.relaxation.cuts import add_path_cuts
from checkmate_tf.solvers.relaxation.model import Blocks, Reach
from checkmate_tf.solvers.relaxation.programs import bound_with_cpsat
from checkmate_tf.solvers.relaxation.rows import build_block_model
from tests.solvers.test_block_relaxation import any_blocks, tight_cases


def branched(case, blocks: Blocks, at_most: float = math.inf, num_threads: int = 1):
    """What branching finds, what CP-SAT finds, and the bounds told; None where there is nothing to branch on."""
    graph, budget = case
    reach = Reach.of(graph)
    bounded = add_path_cuts(graph, budget, blocks, reach)
    model = build_block_model(graph, budget, bounded.blocks, reach)
    linear = bounded.linear_of(model)
    if linear is None:
        return None
    told: list[float] = []

    def tell(bound: float) -> bool:
        told.append(bound)
        return True

    found = bound_by_branching(
        model,
        graph,
        linear,
        at_most=lambda: at_most,
        time_limit_s=60,
        on_bound=lambda bound: told.append(bound) or True,
        num_threads=num_threads,
    )
    return found, bound_with_cpsat(model), told


@settings(deadline=None, max_examples=150)
@given(tight_cases(), st.data(), st.integers(1, 3))
def test_finds_the_optimum_and_tells_bounds_below_it(case, data, num_threads):
    result = branched(case, data.draw(any_blocks(case[0])), num_threads=num_threads)
    if result is None:
        return
    found, oracle, told = result
    if oracle.point is None:
        assert math.isinf(found.lower_bound)
        return
    assert found.optimal
    assert found.lower_bound == pytest.approx(oracle.lower_bound, abs=1e-3)
    assert told == sorted(told)
    assert all(bound <= oracle.lower_bound + 1e-3 for bound in told)


@settings(deadline=None, max_examples=80)
@given(tight_cases(), st.data(), st.integers(-2, 2))
def test_nothing_is_left_above_what_is_of_interest(case, data, more):
    blocks = data.draw(any_blocks(case[0]))
    result = branched(case, blocks)
    if result is None or result[1].point is None:
        return
    optimum = result[1].lower_bound
    limited = branched(case, blocks, at_most=optimum + more)
    assert limited is not None
    assert limited[0].lower_bound == (pytest.approx(optimum, abs=1e-3) if more >= 0 else math.inf)


@pytest.mark.parametrize("trials", [0, 1])
def test_holds_without_trials_and_when_rows_are_dropped_at_once(monkeypatch, trials):
    monkeypatch.setattr(lazy_program, "_OLD", 0)
    monkeypatch.setattr(lazy_program, "_MANY_OLD", 0.0)
    chosen = replace(block_branching.SETTINGS, reliable_trials=trials)
    monkeypatch.setattr(block_branching, "SETTINGS", chosen)

    @settings(deadline=None, max_examples=40)
    @given(tight_cases(), st.data())
    def check(case, data):
        result = branched(case, data.draw(any_blocks(case[0])))
        if result is not None and result[1].point is not None:
            assert result[0].lower_bound == pytest.approx(result[1].lower_bound, abs=1e-3)

    check()


def test_rows_are_added_where_they_are_violated():
    # The most of x + y with x + 2 y <= 2 and 3 x + y <= 3: x = 0.8, y = 0.6.
    rows = sparse.csr_matrix(np.array([[1.0, 2.0], [3.0, 1.0]]))
    upper = np.array([2.0, 3.0])
    none, least = np.zeros(2, dtype=bool), np.full(2, -math.inf)
    linear = MixedIntegerProgram(np.array([-1.0, -1.0]), np.zeros(2), np.ones(2), none, rows, least, upper)
    program = LazyProgram(linear, needed=np.array([], dtype=int))
    free = program.solve(np.zeros(2), np.full(2, 5.0))
    assert free.complete
    assert free.point == pytest.approx([0.8, 0.6])
    assert free.bound == pytest.approx(-1.4, abs=1e-5)
    assert program.solve(np.array([1.0, 0.0]), np.full(2, 5.0)).bound == pytest.approx(-1.0, abs=1e-5)
    assert program.solve(np.array([1.0, 1.0]), np.full(2, 5.0)).bound == math.inf
    assert program.bound_within(0, np.zeros(2), np.full(2, 5.0)) <= -1.4


def test_reduced_costs_leave_what_is_of_interest():
    # 7 more may be spent: at most two of the first column, at least one of the second, any number of the third.
    solution = LazySolution(10.0, np.zeros(3), np.array([3.0, -2.0, 0.0]))
    tightened = _Bounds(np.zeros(3), np.full(3, 4.0)).tighten(solution, at_most=17.0)
    assert tightened.lower.tolist() == [0, 1, 0]
    assert tightened.upper.tolist() == [2, 4, 4]
