"""The LP relaxation, its bound, and two-phase rounding."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.schedule import from_stages, to_stages
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.rounding import rounded
from checkmate_tf.solvers.checkmate.stage_space import full_space
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.stages import cheapest_recompute, schedule_of_checkpoints
from tests.graphs import graph_of, graphs, training_chain
from tests.solvers.test_checkmate_milp import draw_budget


@pytest.mark.parametrize("backend", get_args(backends.Relaxation))
def test_bound_of_every_back_end_is_at_most_the_optimum(backend):
    @settings(deadline=None, max_examples=8)
    @given(graphs(max_nodes=7), st.data())
    def check(graph, data):
        budget = draw_budget(graph, data)
        oracle = solve(graph, budget, solver=Exhaustive(stages=True))
        assume(oracle.simulation is not None)
        answer = backends.relax(build_model(graph, budget, full_space(graph)), backend, time_limit_s=10)
        assert answer.bound <= oracle.simulation.cost + 1e-4

    check()


def test_any_duals_give_a_valid_bound():
    graph = training_chain(4)
    model = build_model(graph, 4, full_space(graph))
    optimum = solve(graph, 4, solver="exhaustive").simulation.cost
    random = np.random.default_rng(0)
    for _ in range(50):
        assert backends.safe_bound(model, random.normal(size=len(model.row_lower))) <= optimum


def test_unconverged_pdlp_has_a_valid_bound():
    graph = training_chain(10)
    model = build_model(graph, 6, full_space(graph))
    converged = backends.relax(model, "simplex", time_limit_s=30).bound
    assert backends.relax(model, "pdlp", time_limit_s=0.0).bound <= converged


def test_relaxation_of_the_chain_by_hand():
    # With the budget at the peak nothing needs to be repeated.
    graph = training_chain(4)
    peak = simulate_stock(graph).peak_bytes
    answer = backends.relax(build_model(graph, peak, full_space(graph)), "simplex", time_limit_s=10)
    assert answer.bound == pytest.approx(graph.baseline_cost)


@pytest.mark.parametrize(
    ("backend", "cvxpy_solver"), [("ipm", "HIGHS"), ("gurobi", "HIGHS"), ("cvxpy", "HIGHS"), ("cvxpy", "SCIPY")]
)
def test_every_exact_back_end_has_the_bound_of_simplex(backend, cvxpy_solver):
    model = build_model(training_chain(6), 6, full_space(training_chain(6)))
    expected = backends.relax(model, "simplex", time_limit_s=10)
    found = backends.relax(model, backend, time_limit_s=10, cvxpy_solver=cvxpy_solver)
    assert expected.bound > training_chain(6).baseline_cost
    assert found.optimal
    assert found.bound == pytest.approx(expected.bound, rel=1e-5)


@pytest.mark.parametrize("rounding", ["deterministic", "swept", "randomized"])
def test_no_rounding_exceeds_the_budget_or_beats_its_bound(rounding):
    @settings(deadline=None, max_examples=8)
    @given(graphs(max_nodes=8), st.data())
    def check(graph, data):
        budget = draw_budget(graph, data)
        solution = solve(graph, budget, solver=CheckmateLp(rounding=rounding, start_from=()))
        if solution.simulation is not None:
            assert solution.simulation.peak_bytes <= budget
            assert solution.cost_lower_bound <= solution.simulation.cost

    check()


def test_roundings_keep_near_the_optimum_of_a_chain():
    # Table 2: ratios of at most 1.06 on the published networks. Budgets from two thirds of the peak up.
    graph = training_chain(12)
    peak = simulate_stock(graph).peak_bytes
    for budget in (2 * peak // 3, 5 * peak // 6):
        optimum = solve(graph, budget, solver="block_relaxation", time_limit_s=20)
        assert optimum.status is Status.OPTIMAL
        rounded_cost = solve(graph, budget, solver="checkmate_lp", time_limit_s=20).simulation.cost
        assert rounded_cost <= 1.06 * optimum.simulation.cost


def test_algorithm_2_by_hand():
    # a -> b -> c -> d reads a and c. Retained: a into stage 1 only; b and c to their next use.
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"})
    retain = np.zeros((4, 4), dtype=bool)
    retain[1, 0] = retain[2, 1] = retain[3, 2] = True
    assert schedule_of_checkpoints(graph, retain).order == (0, 1, 2, 0, 3)


@settings(deadline=None, max_examples=10)
@given(graphs(max_nodes=4, plain=True), st.data())
def test_recompute_is_the_cheapest_for_what_is_retained(graph, data):
    """Against every R whose own retention is within S."""
    num_nodes, num_values = len(graph.nodes), len(graph.values)
    bits = data.draw(st.lists(st.booleans(), min_size=num_nodes * num_values, max_size=num_nodes * num_values))
    retain = np.array(bits).reshape(num_nodes, num_values)
    retain[:, list(graph.outputs)] = True
    found = cheapest_recompute(graph, retain)
    below = [(t, i) for t in range(num_nodes) for i in range(t)]
    for choice in product([False, True], repeat=len(below)):
        recompute = np.eye(num_nodes, dtype=bool)
        for (t, i), chosen in zip(below, choice, strict=True):
            recompute[t, i] = chosen
        needed = to_stages(graph, from_stages(graph, recompute)).retain
        if not (needed & ~retain).any():
            # (1c) asks R to make what S retains, so more than what is needed; compare where S is what is needed.
            own = cheapest_recompute(graph, needed)
            assert (graph.costs * own).sum() <= (graph.costs * recompute).sum()
    assert (found & ~np.tril(np.ones_like(found))).sum() == 0


def test_randomized_rounding_depends_on_its_seed_only():
    fractional = np.linspace(0, 1, 64).reshape(8, 8)
    first, again, other = (list(rounded(fractional, "randomized", num_samples=3, seed=seed)) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
