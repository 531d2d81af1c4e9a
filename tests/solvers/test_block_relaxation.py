"""Block relaxation: every relaxation is a bound, and the end is the optimum of stage space."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import Status, presolve, solve
from checkmate_tf.solvers.cost_units import cost_step
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.relaxation import solver
from checkmate_tf.solvers.relaxation.cuts import BoundedBlocks, add_path_cuts, drop_idle_memory_rows
from checkmate_tf.solvers.relaxation.memory import expected_memory_bytes
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, PathCut, Reach, point_of
from checkmate_tf.solvers.relaxation.programs import LinearRelaxation, Relaxed, bound_with_cpsat, bound_with_highs
from checkmate_tf.solvers.relaxation.rows import build_block_model
from checkmate_tf.solvers.relaxation.solver import BlockRelaxation, RelaxationRun
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.stages import events_of, held_at, rows_of, schedule_of_events, stages_of
from experiments.layered_graphs import layered_graph
from tests.graphs import graph_of, graphs, published, training_chain


@st.composite
def tight_cases(draw: st.DrawFn) -> tuple[Graph, int]:
    graph = draw(graphs(max_nodes=8))
    peak = simulate_stock(graph).peak_bytes
    least = max(1, find_peak_bound(graph).peak_bytes)
    assume(least < peak)
    return graph, draw(st.integers(least, peak - 1))


@st.composite
def any_blocks(draw: st.DrawFn, graph: Graph) -> Blocks:
    num_nodes = len(graph.nodes)
    starts = (0, *sorted(draw(st.sets(st.integers(1, num_nodes - 1)))))
    blocks = Blocks(starts)
    events = [(t, k) for t in range(num_nodes) for k in range(t) if blocks.is_single(t, num_nodes)]
    return Blocks(
        starts,
        rows=draw(st.frozensets(st.sampled_from(events))) if events else frozenset(),
        inner=draw(st.frozensets(st.integers(0, num_nodes - 1))),
        cuts=frozenset(draw(path_cuts(graph, starts)) for _ in range(3)) - {None},
    )


@st.composite
def path_cuts(draw: st.DrawFn, graph: Graph, starts: tuple[int, ...]) -> PathCut | None:
    ends = (*starts, len(graph.nodes))
    windows = [window for window in combinations(ends, 2) if window[0] > 0]
    if not windows:
        return None
    first, end = draw(st.sampled_from(windows))
    carried = end < len(graph.nodes) and draw(st.booleans())
    used = {value for node in graph.nodes[first:end] for value in node.inputs}
    used |= set(graph.outputs) if end == len(graph.nodes) else set()
    wanted = range(len(graph.values)) if carried else sorted(used)
    choice: Sequence[int] = [value for value in wanted if graph.producer[value] < first]
    path: tuple[int, ...] = ()
    while choice and (not path or draw(st.booleans())):
        path = (*path, draw(st.sampled_from(choice)))
        choice = graph.nodes[graph.producer[path[-1]]].inputs
    return PathCut(first, end, carried, path) if path else None


@settings(deadline=None, max_examples=150)
@given(tight_cases(), st.data())
def test_any_blocks_and_any_rows_give_a_lower_bound(case, data):
    graph, budget = case
    model = build_block_model(graph, budget, data.draw(any_blocks(graph)), Reach.of(graph))
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    if oracle.simulation is None:
        return
    for solve_model in (bound_with_highs, bound_with_cpsat):
        relaxed = solve_model(model)
        assert relaxed.point is not None
        assert graph.baseline_cost + math.ceil(relaxed.lower_bound - 1e-4) <= oracle.simulation.cost


@settings(deadline=None, max_examples=60)
@given(tight_cases())
def test_every_block_single_and_every_row_is_exact(case):
    graph, budget = case
    num_nodes = len(graph.nodes)
    rows = frozenset((t, k) for t in range(num_nodes) for k in range(t))
    model = build_block_model(graph, budget, Blocks(tuple(range(num_nodes)), rows), Reach.of(graph))
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    for solve_model in (bound_with_highs, bound_with_cpsat):
        relaxed = solve_model(model)
        assert (relaxed.point is None) == (oracle.simulation is None)
        if oracle.simulation is not None:
            assert relaxed.lower_bound == pytest.approx(oracle.simulation.cost - graph.baseline_cost, abs=1e-3)


@settings(deadline=None, max_examples=75)
@given(
    tight_cases(),
    st.sampled_from([0, 50]),
    st.sampled_from(["", "keeps_cutting", "exact", "alone", "begun"]),
    st.booleans(),
    st.data(),
)
def test_ends_with_a_proof_that_agrees_with_exhaustive_search(case, moves, mode, coarse, data):
    graph, budget = case
    blocks = replace(data.draw(any_blocks(graph)), cuts=frozenset()) if mode == "begun" else None
    exact, anneals = mode == "exact", mode != "alone"
    solver = BlockRelaxation(anneal_moves_per_node=moves, exact=exact, anneals=anneals, blocks=blocks)
    find = RelaxationRun.find_first_schedule
    with pytest.MonkeyPatch.context() as patch:
        if mode == "keeps_cutting":  # from the first, not from where a program stays open
            patch.setattr(
                RelaxationRun, "find_first_schedule", lambda run: (find(run), setattr(run, "keeps_cutting", True))
            )
        if coarse:  # first without up to a third of the budget
            patch.setattr(presolve, "_SMALL_SHARES", (0.33, 0.1))
            patch.setattr(presolve, "_MANY_LEFT", 0.99)
        solution = solve(graph, budget, solver=solver)
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    assert solution.status is oracle.status
    assert solution.bound_order == "fixed" or solution.cost_lower_bound == graph.baseline_cost
    if oracle.simulation is not None and solution.simulation is not None:
        assert solution.simulation.cost == oracle.simulation.cost


@settings(deadline=None, max_examples=60)
@given(tight_cases())
def test_the_memory_of_a_solution_with_blocks_of_one_stage_is_that_of_its_schedule(case):
    graph, budget = case
    graph = replace(graph, nodes=tuple(replace(node, inplace=False) for node in graph.nodes))
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    if oracle.schedule is None:
        return
    num_nodes = len(graph.nodes)
    model = build_block_model(graph, budget, Blocks(tuple(range(num_nodes))), Reach.of(graph))
    events = sorted(set(events_of(oracle.schedule)))
    schedule = schedule_of_events(num_nodes, rows_of(events))
    point = point_of(model, events, held_at(graph, schedule, model.blocks.starts))
    own = np.array(schedule.order) == stages_of(schedule)
    expected = expected_memory_bytes(model, graph, point)
    simulated = simulate(graph, schedule).memory_bytes[own]
    assert (expected >= simulated).all()
    alone = np.bincount(stages_of(schedule), minlength=num_nodes) <= 2  # what is recomputed feeds no other there
    assert expected[alone].tolist() == simulated[alone].tolist()


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.data())
def test_cuts_found_are_violated_and_the_bound_with_them_holds(case, data):
    graph, budget = case
    blocks = replace(data.draw(any_blocks(graph)), cuts=frozenset())
    reach = Reach.of(graph)
    model = build_block_model(graph, budget, blocks, reach)
    if not model.num_columns or model.infeasible:
        return
    linear = LinearRelaxation(model).solve()
    bounded = add_path_cuts(graph, budget, blocks, reach)
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    if oracle.simulation is None or linear is None:
        return
    after = LinearRelaxation(build_block_model(graph, budget, bounded.blocks, reach)).solve()
    assert after is not None
    assert linear.bound - 1e-3 <= bounded.bound <= after.bound + 1e-3
    assert after.bound <= oracle.simulation.cost - graph.baseline_cost + 1e-3


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.data())
def test_memory_rows_without_a_price_are_not_missed(case, data):
    graph, budget = case
    blocks, reach = data.draw(any_blocks(graph)), Reach.of(graph)
    blocks = replace(blocks, inner=frozenset(range(len(graph.nodes))))
    few = drop_idle_memory_rows(graph, budget, blocks, reach)
    assert few.inner <= blocks.inner
    linear = [_linear_bound(build_block_model(graph, budget, each, reach)) for each in (blocks, few)]
    assert linear[0] == pytest.approx(linear[1], abs=1e-2)


def test_when_time_is_up_the_last_linear_relaxation_counts(monkeypatch):
    graph = published("rl-g2-n250")
    budget = simulate_stock(graph).peak_bytes * 7 // 10
    reach, blocks = Reach.of(graph), Blocks((0, 189, 195, 218, 222, 237, 240, 245))
    solved = []
    solve_linear = LinearRelaxation.solve

    def twice(program, *_):
        solved.append(None if len(solved) == 2 else solve_linear(program))
        return solved[-1]

    monkeypatch.setattr(LinearRelaxation, "solve", twice)
    bounded = add_path_cuts(graph, budget, blocks, reach)
    assert len(solved) == 3
    assert bounded.bound == bounded.linear.bound == solved[1].bound
    assert set(bounded.worth_of_start) == {189, 195, 218, 222, 237, 240, 245}
    assert bounded.linear_of(build_block_model(graph, budget, bounded.blocks, reach)) is not None


@pytest.mark.parametrize(("found", "searches_by_targets", "at_least"), [(114, True, 94.0), (116, False, 98.0)])
def test_targets_are_for_where_the_bound_known_is_near_the_linear_one(
    monkeypatch, found, searches_by_targets, at_least
):
    graph = training_chain(12)
    budget = simulate_stock(graph).peak_bytes - 1
    run = RelaxationRun.of(Search(Problem(graph, budget, "fixed"), 10.0), BlockRelaxation(anneals=False))
    run.bound = graph.baseline_cost + found
    monkeypatch.setattr(RelaxationRun, "known_cost", 200.0)
    asked = []

    def join_blocks_down_to(_, full, bound, *__):
        asked.append(bound)
        return full

    monkeypatch.setattr(RelaxationRun, "join_blocks_down_to", join_blocks_down_to)
    run.reduce_blocks(BoundedBlocks(run.blocks, 100.0))
    assert run.searches_by_targets == searches_by_targets
    assert asked == [pytest.approx(at_least)]


def test_memory_rows_that_the_budget_cannot_break_have_no_price():
    graph = training_chain(12)
    peak = simulate_stock(graph).peak_bytes
    blocks = Blocks((0, 12), inner=frozenset(range(len(graph.nodes))))
    priced = drop_idle_memory_rows(graph, peak * 7 // 10, blocks, Reach.of(graph)).inner
    assert 0 < len(priced) < 6


def _linear_bound(model: BlockModel) -> float:
    if model.infeasible or not model.num_columns:
        return math.inf if model.infeasible else 0.0
    linear = LinearRelaxation(model).solve()
    return math.inf if linear is None else linear.bound


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.data())
def test_what_reduced_costs_fix_leaves_every_cheaper_point(case, data):
    graph, budget = case
    blocks, reach = replace(data.draw(any_blocks(graph)), cuts=frozenset()), Reach.of(graph)
    bounded = add_path_cuts(graph, budget, blocks, reach)
    model = build_block_model(graph, budget, bounded.blocks, reach)
    least = bound_with_cpsat(model)
    if least.point is None:
        return
    for room in (1e-3, 1.0):
        fixed = bounded.fix_columns(model, least.lower_bound + room)
        for solve_model in (bound_with_highs, bound_with_cpsat):
            assert solve_model(fixed).lower_bound == pytest.approx(least.lower_bound, abs=1e-3)


def test_reduced_costs_fix_what_is_dear():
    # At the peak b or the dear a has to go: with less than its cost to spend, a is not computed again.
    graph = graph_of(
        {"a": "", "b": "", "c": "", "d": "c", "e": "abd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 1, "e": 1},
        costs={"a": 50, "b": 1, "c": 5, "d": 5, "e": 5},
    )
    blocks, reach = Blocks((0, 3)), Reach.of(graph)
    bounded = add_path_cuts(graph, 10, blocks, reach)
    model = build_block_model(graph, 10, bounded.blocks, reach)
    decisions = {(model.recompute[1, 0], 0), (model.retain[1, 0], 1)}  # either says so
    assert not decisions & set(bounded.fix_columns(model, 60).fixed.items())
    assert decisions & set(bounded.fix_columns(model, 10).fixed.items())


def test_two_blocks_by_hand():
    # Only a (cost 1) and b (cost 50) are carried over c; one of them has to go, a is the cheaper.
    graph = graph_of(
        {"a": "", "b": "", "c": "", "d": "c", "e": "abd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 1, "e": 1},
        costs={"a": 1, "b": 50, "c": 5, "d": 5, "e": 5},
    )
    model = build_block_model(graph, 10, Blocks((0, 3)), Reach.of(graph))
    assert bound_with_highs(model).lower_bound == pytest.approx(1, abs=1e-4)
    assert bound_with_cpsat(model).lower_bound == 1
    assert solve(graph, 10, solver="block_relaxation").status is Status.OPTIMAL


def test_memory_inside_a_block_by_hand():
    # As above with one block: a and b, 4 bytes each, are read after c, which takes 4: one of the two is recomputed.
    graph = graph_of({"a": "", "b": "", "c": "", "d": "c", "e": "abd"}, sizes={"a": 4, "b": 4, "c": 4}, costs={"b": 50})
    for inner, extra in ((frozenset(), 0), (frozenset({2}), 1)):
        model = build_block_model(graph, 10, Blocks((0,), inner=inner), Reach.of(graph))
        assert bound_with_cpsat(model).lower_bound == extra


def test_path_cut_by_hand():
    # y is read in both of the last two blocks and made of x. Neither is held when these start: x is recomputed.
    graph = graph_of({"x": "", "y": "x", "c": "", "d": "cy", "e": "dy"}, costs={"x": 5, "y": 3})
    blocks = Blocks((0, 3, 4), cuts=frozenset({PathCut(3, 5, False, (1, 0))}))
    model = build_block_model(graph, 10, blocks, Reach.of(graph))
    start, end = model.rows.start[-2:].tolist()
    columns = {model.recompute[1, 0], model.recompute[2, 0], model.retain[1, 1], model.retain[1, 0]}
    assert set(model.rows.column[start:end].tolist()) == columns
    assert model.rows.coefficient[start:end].tolist() == [1, 1, 1, 1]
    assert model.rows.lower[-1] == 1


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


@settings(deadline=None, max_examples=40)
@given(tight_cases())
def test_bounds_told_while_a_program_runs_rise_to_its_optimum(case):
    graph, budget = case
    model = build_block_model(graph, budget, Blocks(tuple(range(len(graph.nodes)))), Reach.of(graph))
    least = bound_with_cpsat(model)
    told: list[float] = []
    again = bound_with_cpsat(model, on_bound=lambda bound: told.append(bound) or True)
    assert told == sorted(told)
    if least.point is not None:
        assert again.lower_bound == least.lower_bound
        assert all(bound <= least.lower_bound + 1e-3 for bound in told)
        assert not model.num_columns or told


def test_a_search_goes_on_with_the_blocks_of_another(monkeypatch):
    graph = layered_graph(40, seed=0)
    problem = Problem(graph, simulate_stock(graph).peak_bytes * 7 // 10)
    found = BlockRelaxation().search(Search(problem, 60))
    blocks = found.blocks
    begun_with = []
    refine = RelaxationRun.refine
    monkeypatch.setattr(RelaxationRun, "refine", lambda run: begun_with.append(run.blocks.starts) or refine(run))
    again = BlockRelaxation(blocks=blocks).search(Search(problem, 60))
    assert begun_with[0] == blocks.starts
    assert len(blocks.starts) > 2
    assert again.cost_lower_bound == found.cost_lower_bound == simulate(graph, found.schedule).cost


def test_no_program_is_begun_after_the_time_limit(monkeypatch):
    graph = layered_graph(20, seed=1)
    problem = Problem(graph, int(0.8 * simulate_stock(graph).peak_bytes))
    run = RelaxationRun.of(Search(problem, 60.0), BlockRelaxation(anneal_moves_per_node=0))

    def take_all_time(model: BlockModel, **_: object) -> Relaxed:
        run.context.time_limit_s = 0.0
        return Relaxed(0.0, None, optimal=False)

    monkeypatch.setattr(solver, "bound_with_highs", take_all_time)
    monkeypatch.setattr(solver, "bound_with_cpsat", lambda *_, **__: pytest.fail("begun after the time limit"))
    run.search()
    assert run.rounds == 1


def test_no_graph_is_cut_into_parts_after_the_time_limit(monkeypatch):
    run = RelaxationRun.of(Search(Problem(training_chain(6), 7), time_limit_s=0.0), BlockRelaxation())
    monkeypatch.setattr(solver, "cut_into_parts", lambda *_: pytest.fail("begun after the time limit"))
    assert run.search().schedule is not None
    assert run.rounds == 0


def test_no_part_is_solved_after_the_time_limit(monkeypatch):
    graph = training_chain(6)
    run = RelaxationRun.of(Search(Problem(graph, 7), time_limit_s=0.0), BlockRelaxation())
    monkeypatch.setattr(RelaxationRun, "search", lambda _: pytest.fail("begun after the time limit"))
    part = presolve.Part(graph, 0, None)
    assert run.solve_part(part).schedule is None
    assert run.solve_part(part).cost_lower_bound == graph.baseline_cost
