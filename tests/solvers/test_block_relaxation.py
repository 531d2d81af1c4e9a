"""Block relaxation: every relaxation is a bound, and the end is the optimum of stage space."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.block_model import Blocks, Reach, build_model, cost_step
from checkmate_tf.solvers.block_relaxation import BlockRelaxation, solve_model
from checkmate_tf.solvers.exhaustive import Exhaustive
from tests.graphs import graph_of, graphs, published


@st.composite
def tight_cases(draw: st.DrawFn) -> tuple[Graph, int]:
    graph = draw(graphs(max_nodes=8))
    peak = simulate(graph, retain_all_schedule(graph)).peak_bytes
    least = max(1, least_step(graph).peak_bytes)
    assume(least < peak)
    return graph, draw(st.integers(least, peak - 1))


@settings(deadline=None, max_examples=120)
@given(tight_cases(), st.data())
def test_any_blocks_and_any_rows_give_a_lower_bound(case, data):
    graph, budget = case
    num_nodes = len(graph.nodes)
    cuts = data.draw(st.sets(st.integers(1, num_nodes - 1)))
    blocks = Blocks((0, *sorted(cuts)))
    events = [(t, k) for t in range(num_nodes) for k in range(t) if blocks.is_single(t, num_nodes)]
    rows = data.draw(st.sets(st.sampled_from(events))) if events else set()
    model = build_model(graph, budget, Blocks(blocks.starts, frozenset(rows)), Reach.of(graph))
    relaxed = solve_model(model, 0.0, 60.0, None)
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    if oracle.simulation is None:
        return
    assert not relaxed.infeasible
    bound = graph.baseline_cost + math.ceil(relaxed.lower_bound * model.cost_unit - 1e-4)
    assert bound <= oracle.simulation.cost


@settings(deadline=None, max_examples=60)
@given(tight_cases())
def test_every_block_single_and_every_row_is_exact(case):
    graph, budget = case
    num_nodes = len(graph.nodes)
    rows = frozenset((t, k) for t in range(num_nodes) for k in range(t))
    model = build_model(graph, budget, Blocks(tuple(range(num_nodes)), rows), Reach.of(graph))
    relaxed = solve_model(model, 0.0, 60.0, None)
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    assert relaxed.infeasible == (oracle.simulation is None)
    if oracle.simulation is not None:
        assert relaxed.lower_bound * model.cost_unit == pytest.approx(
            oracle.simulation.cost - graph.baseline_cost, abs=1e-4
        )


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.sampled_from([0, 50]))
def test_ends_with_a_proof_that_agrees_with_exhaustive_search(case, moves):
    graph, budget = case
    solution = solve(graph, budget, solver=BlockRelaxation(anneal_moves_per_node=moves))
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    assert solution.status is oracle.status
    assert solution.bound_order == "fixed" or solution.cost_lower_bound == graph.baseline_cost
    if oracle.simulation is not None and solution.simulation is not None:
        assert solution.simulation.cost == oracle.simulation.cost


def test_two_blocks_by_hand():
    # Only a (cost 1) and b (cost 50) are carried over c; one of them has to go, a is the cheaper.
    graph = graph_of(
        {"a": "", "b": "", "c": "", "d": "c", "e": "abd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 1, "e": 1},
        costs={"a": 1, "b": 50, "c": 5, "d": 5, "e": 5},
    )
    model = build_model(graph, 10, Blocks((0, 3)), Reach.of(graph))
    relaxed = solve_model(model, 0.0, 60.0, None)
    assert relaxed.lower_bound * model.cost_unit == pytest.approx(1)
    assert solve(graph, 10, solver="block_relaxation").status is Status.OPTIMAL


def test_cost_step_is_the_common_divisor_of_what_can_be_recomputed():
    assert cost_step(graph_of({"a": "", "b": "a"}, costs={"a": 6, "b": 9})) == 3


@pytest.mark.parametrize(("percent", "overhead_percent"), [(90, 0.108), (50, 1.50)])
def test_published_resnet_is_proved(percent, overhead_percent):
    # SOLVER_NOTES, section A: proved values.
    graph = published("resnet50-b256-train")
    solution = solve(graph, f"{percent}%", solver="block_relaxation")
    assert solution.status is Status.OPTIMAL
    assert solution.simulation is not None
    assert 100 * solution.simulation.overhead == pytest.approx(overhead_percent, abs=0.006)
