"""MOCCASIN's model against the simulator and exhaustive search; limits, bounds, scaling, neighbourhoods."""

import dataclasses
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import Problem, Status, Update, solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.mip.cpsat import CpSatSettings
from checkmate_tf.solvers.moccasin import solver
from checkmate_tf.solvers.moccasin.builder import build
from checkmate_tf.solvers.moccasin.candidates import (
    all_windows,
    bound_candidates,
    fetch_windows,
    neighbourhood_candidates,
    repeat_limits,
    repeat_windows,
    sequence_candidates,
    stage_candidates,
)
from checkmate_tf.solvers.moccasin.model import Candidates
from checkmate_tf.solvers.moccasin.scaling import scaled
from checkmate_tf.solvers.moccasin.search import (
    Incumbent,
    Neighbourhoods,
    event_times,
    run_cpsat,
    schedule_in_stages,
    stage_repeats,
)
from checkmate_tf.solvers.moccasin.solver import Moccasin
from checkmate_tf.solvers.search import Search
from tests.graphs import SLIDES, graph_of, graphs, published, tight_problem, training_chain

HARD = settings(deadline=None, max_examples=25, database=None, suppress_health_check=[HealthCheck.filter_too_much])


@st.composite
def tight_problems(draw: st.DrawFn, *, max_nodes: int = 7) -> Problem:
    """Budgets that the input order without recomputation exceeds and that are no less than the largest node needs."""
    graph = draw(graphs(max_nodes=max_nodes, plain=draw(st.booleans())))
    least, peak = find_peak_bound(graph).peak_bytes, simulate_stock(graph).peak_bytes
    assume(least < peak)
    order = draw(st.sampled_from(["fixed", "free"]))
    return Problem(graph, draw(st.integers(max(least, 1), peak - 1)), order)


@st.composite
def staged_schedules(draw: st.DrawFn) -> tuple[Graph, Schedule]:
    graph = draw(graphs(max_nodes=8))
    possible = [(t, v) for t in range(len(graph.nodes)) for v in range(t) if graph.nodes[v].recomputable]
    events = draw(st.lists(st.sampled_from(possible), max_size=8, unique=True)) if possible else []
    repeats = [sorted(t for t, v in events if v == node) for node in range(len(graph.nodes))]
    return graph, schedule_in_stages(graph, repeats)


def _run(seconds: float = 20.0) -> CpSatSettings:
    return CpSatSettings(seconds, seed=0)


# -- the model is the simulator


@settings(deadline=None, max_examples=60, database=None)
@given(staged_schedules())
def test_least_capacity_of_a_schedule_in_stages_is_its_simulated_peak(case):
    """Unread recomputations included only where something reads them: the model leaves the others out."""
    graph, schedule = case
    repeats = stage_repeats(graph, schedule)
    problem = Problem(graph, graph.resident_bytes)  # room 0: the least capacity is the peak
    candidates = neighbourhood_candidates(
        graph, repeats, (), repeat_limits(graph, 9), repeat_windows(graph, 0, [True] * len(graph.nodes))
    )
    answer = run_cpsat(build(graph, scaled(problem), candidates, least_peak=True), _run())
    assert answer.closed
    assert answer.schedule == schedule
    peak = simulate(graph, schedule).peak_bytes
    assert graph.resident_bytes + answer.objective_bound * scaled(problem).size_unit_bytes == peak


@settings(deadline=None, max_examples=60, database=None)
@given(staged_schedules())
def test_least_capacity_of_a_sequence_is_its_simulated_peak(case):
    graph, schedule = case
    positions = [
        [position for position, node in enumerate(schedule.order) if node == v] for v in range(len(graph.nodes))
    ]
    candidates = Candidates(
        tuple(tuple((position,) for position in own) for own in positions),
        tuple(len(own) for own in positions),
        distinct=True,
    )
    problem = Problem(graph, graph.resident_bytes)
    answer = run_cpsat(build(graph, scaled(problem), candidates, least_peak=True), _run())
    peak = simulate(graph, schedule).peak_bytes
    assert graph.resident_bytes + answer.objective_bound * scaled(problem).size_unit_bytes == peak


@settings(deadline=None, max_examples=30, database=None)
@given(staged_schedules())
def test_a_hinted_schedule_is_the_first_solution(case):
    graph, schedule = case
    repeats = stage_repeats(graph, schedule)
    problem = Problem(graph, simulate(graph, schedule).peak_bytes)
    most = 1 + max(len(stages) for stages in repeats)
    windows = repeat_windows(graph, 0, [node.recomputable for node in graph.nodes])
    assume(all(stage in window.stages for stages, window in zip(repeats, windows, strict=True) for stage in stages))
    assume(_read_everywhere(graph, schedule))
    candidates = stage_candidates(graph, repeat_limits(graph, most, windows=windows), windows)
    limits = [len(times) for times in candidates.times]
    assume(all(1 + len(stages) <= limit for stages, limit in zip(repeats, limits, strict=True)))
    formulation = build(graph, scaled(problem), candidates)
    formulation.hint(event_times(repeats))
    found: list[Schedule] = []
    run_cpsat(formulation, CpSatSettings(5, seed=0), on_schedule=found.append)
    costs = [simulate(graph, one).cost for one in found]
    assert costs[0] <= simulate(graph, schedule).cost


def _read_everywhere(graph: Graph, schedule: Schedule) -> bool:
    """Whether leaving out any repeat would change what is read."""
    for position, node in enumerate(schedule.order):
        if node in schedule.order[:position]:
            rest = schedule.order[position + 1 :]
            until = rest.index(node) if node in rest else len(rest)
            read = {value for user in rest[:until] for value in graph.nodes[user].inputs}
            last = until == len(rest)
            kept = set(graph.outputs) if last else set()
            if not (read | kept) & set(graph.nodes[node].outputs):
                return False
    return True


# -- optimal and safe


@pytest.mark.parametrize("precedence", ["cover", "reservoir"])
def test_equal_to_exhaustive_search_in_both_orders(precedence):
    @HARD
    @given(tight_problems())
    def hold(problem: Problem) -> None:
        graph, order = problem.graph, problem.order
        ours = solve(graph, problem.budget_bytes, solver=Moccasin(precedence=precedence), order=order, time_limit_s=60)
        oracle = solve(graph, problem.budget_bytes, solver=Exhaustive(stages=order == "fixed"), order=order)
        widest = solve(graph, problem.budget_bytes, solver=Exhaustive(), order=order)
        if order == "fixed":
            assert ours.status in (oracle.status, Status.OPTIMAL)
        elif ours.status in (Status.OPTIMAL, Status.INFEASIBLE):  # free order proves where C_v is known to be enough
            assert ours.status is oracle.status
        if ours.simulation is None:
            return
        # In fixed order stages are searched; the bound's model can find what no schedule in stages does.
        if ours.status is Status.OPTIMAL and oracle.simulation is not None:
            assert ours.simulation.cost <= oracle.simulation.cost
        assert ours.simulation.peak_bytes <= problem.budget_bytes
        assert ours.simulation.cost >= widest.simulation.cost
        assert oracle.simulation is None or ours.simulation.cost <= oracle.simulation.cost or order == "free"

    hold()


@HARD
@given(tight_problems(), st.integers(1, 3), st.sampled_from([0, 100]))
def test_the_relaxation_bounds_every_schedule_in_fixed_order_whatever_the_limit(problem, limit, max_rows):
    graph = problem.graph
    recomputable = [node.recomputable for node in graph.nodes]
    windows = repeat_windows(graph, problem.budget_bytes, recomputable, tail=True)
    limits = repeat_limits(graph, limit, windows=windows)
    oracle = solve(graph, problem.budget_bytes, solver=Exhaustive(), order="fixed")
    answer = run_cpsat(
        build(graph, scaled(problem), bound_candidates(graph, limits, windows), max_rows=max_rows), _run()
    )
    assert answer.closed
    if oracle.simulation is None:
        return
    assert not answer.infeasible
    assert answer.objective_bound * scaled(problem).cost_unit <= oracle.simulation.cost - graph.baseline_cost
    windows = repeat_windows(graph, problem.budget_bytes, recomputable)
    limits = repeat_limits(graph, limit, windows=windows)
    in_stages = solve(graph, problem.budget_bytes, solver=Exhaustive(stages=True))
    strict = run_cpsat(
        build(graph, scaled(problem), stage_candidates(graph, limits, windows, relax=True), max_rows=max_rows), _run()
    )
    if in_stages.simulation is not None:
        extra = in_stages.simulation.cost - graph.baseline_cost
        assert strict.objective_bound * scaled(problem).cost_unit <= extra


@HARD
@given(tight_problems(), st.integers(1, 3))
def test_the_whole_model_keeps_the_limit_and_claims_no_more_than_it_proves(problem, limit):
    solution = solve(
        problem.graph,
        problem.budget_bytes,
        solver=Moccasin(strategy="whole", start="two_phases", max_computations=limit),
        time_limit_s=20,
    )
    oracle = solve(problem.graph, problem.budget_bytes, solver=Exhaustive(stages=True))
    if solution.schedule is None:
        return
    assert oracle.simulation is not None
    assert max(solution.schedule.order.count(node) for node in range(len(problem.graph.nodes))) <= limit
    assert solution.cost_lower_bound <= oracle.simulation.cost
    if solution.status is Status.OPTIMAL:
        assert solution.simulation.cost == oracle.simulation.cost


@settings(HARD, max_examples=40)
@given(tight_problems(max_nodes=6))
def test_the_papers_model_finds_the_best_schedule_of_two_computations_in_both_orders(problem):
    graph, order = problem.graph, problem.order
    oracle = solve(graph, problem.budget_bytes, solver=Exhaustive(stages=order == "fixed"), order=order)
    solution = solve(graph, problem.budget_bytes, solver=Moccasin.paper(), order=order, time_limit_s=60)
    if solution.simulation is not None:
        assert oracle.simulation.cost <= solution.simulation.cost
        assert max(solution.schedule.order.count(node) for node in range(len(graph.nodes))) <= 2
    if oracle.schedule is not None and max(map(oracle.schedule.order.count, range(len(graph.nodes)))) <= 2:
        assert solution.simulation.cost == oracle.simulation.cost


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_the_papers_model_has_its_table_1s_variables(order):
    # 9 nodes, of which nothing reads the last. C n of Table 1: an interval's activity is open for each recomputation.
    graph = training_chain(4)
    solution = solve(graph, 5, solver=Moccasin.paper(), order=order, time_limit_s=60)
    assert solution.stats["booleans"] == 8
    assert solution.stats["integers"] <= 3 * 2 * 9
    windows = all_windows([True] * 9)
    stages = stage_candidates(graph, repeat_limits(graph, 2, windows=windows), windows)
    assert len({time for node in stages.times for times in node for time in times}) == 9 * 10 // 2  # (11)
    sequence = sequence_candidates(graph, repeat_limits(graph, 2), presolve=False)
    assert {times for node in sequence.times for times in node} == {tuple(range(17))}  # (9)


def test_a_second_recomputation_needs_a_limit_of_three():
    # By hand: p takes 6 + 4 and q 2 + 7, so a cannot be held meanwhile within 12, and y and z read it again after each.
    graph = graph_of(
        {"a": "", "x": "a", "p": "x", "y": "ap", "q": "y", "z": "aq"},
        sizes={"a": 4, "x": 6, "p": 4, "y": 2, "q": 7, "z": 1},
    )
    for whole in (Moccasin(strategy="whole", start="two_phases"), Moccasin.paper()):
        assert solve(graph, 12, solver=whole, time_limit_s=60).schedule is None
        more = dataclasses.replace(whole, max_computations=3)
        assert solve(graph, 12, solver=more, time_limit_s=60).schedule == Schedule((0, 1, 2, 0, 3, 4, 0, 5))


def test_what_two_computations_can_do_is_no_bound_on_three():
    problem = tight_problem(53)
    whole = Moccasin(strategy="whole", start="two_phases")
    solution = solve(problem.graph, problem.budget_bytes, solver=whole, time_limit_s=60)
    oracle = solve(problem.graph, problem.budget_bytes, solver=Exhaustive(stages=True))
    assert max(map(oracle.schedule.order.count, range(len(problem.graph.nodes)))) == 3
    assert solution.cost_lower_bound <= oracle.simulation.cost < solution.simulation.cost
    more = solve(
        problem.graph, problem.budget_bytes, solver=dataclasses.replace(whole, max_computations=3), time_limit_s=60
    )
    assert more.simulation.cost == oracle.simulation.cost


def test_per_node_limits_override_the_common_one():
    chain = training_chain(6)
    limits = repeat_limits(chain, 2, [(0, 4), (3, 1)])
    assert limits.computations[:4] == (4, 2, 2, 1)
    assert not limits.enough[1]


def test_non_recomputable_nodes_have_one_computation():
    chain = training_chain(4)
    nodes = tuple(dataclasses.replace(node, recomputable=index != 2) for index, node in enumerate(chain.nodes))
    graph = dataclasses.replace(chain, nodes=nodes)
    solution = solve(graph, 5, solver="moccasin")
    oracle = solve(graph, 5, solver=Exhaustive(stages=True))
    assert solution.status is oracle.status is Status.OPTIMAL
    assert solution.schedule.order.count(2) == 1
    assert solution.simulation.cost == oracle.simulation.cost


def test_in_place_outputs_may_come_before_their_inputs_in_the_list_of_values():
    # b writes over a (3 bytes in use instead of 6); c keeps its own input, so 3 + 3.
    nodes = (
        Node("a", "op", (), (2,), 1),
        Node("b", "op", (2,), (1,), 1, inplace=True),
        Node("c", "op", (1,), (0,), 1),
        Node("d", "op", (2, 0), (3,), 1),
    )
    graph = Graph(nodes, tuple(Value(f"v{index}", 3) for index in range(4)))
    solution = solve(graph, 9, solver="moccasin")
    assert simulate_stock(graph).peak_bytes == 9
    assert solution.status is Status.OPTIMAL
    tight = Graph((*nodes[:3], Node("d", "op", (2, 0), (), 1)), graph.values[:3])
    solution = solve(tight, 6, solver="moccasin")
    oracle = solve(tight, 6, solver=Exhaustive(stages=True))
    assert simulate_stock(tight).peak_bytes == 9
    assert solution.status is oracle.status is Status.OPTIMAL
    assert solution.simulation.cost == oracle.simulation.cost == 5  # a once more


# -- scaling


def test_sizes_are_rounded_up_and_the_budget_down():
    graph = graph_of({"a": "", "b": "a"}, sizes={"a": 1000, "b": 501}, costs={"a": 6, "b": 10})
    coarse = scaled(Problem(graph, 1999), max_budget=100)
    assert coarse.size_unit_bytes == 32
    assert coarse.sizes == (32, 16)  # 1000 / 32 = 31.25, 501 / 32 = 15.7
    assert coarse.budget == 62  # 1999 / 32 = 62.5
    assert coarse.costs == (3, 5)
    assert coarse.cost_unit == 2
    assert not coarse.lossless
    exact = scaled(Problem(graph, 1999))
    assert (exact.sizes, exact.budget, exact.lossless) == ((1000, 501), 1999, True)


def test_sizes_in_a_common_unit_lose_nothing():
    graph = graph_of({"a": "", "b": "a"}, sizes={"a": 2**46, "b": 3 * 2**44})
    exact = scaled(Problem(graph, 2**47 + 5))
    assert exact.sizes == (4, 3)
    assert exact.budget == 8
    assert exact.lossless


@settings(HARD, max_examples=8)
@given(tight_problems())
def test_a_budget_of_many_bits_is_never_exceeded_and_no_proof_is_claimed_from_rounded_sizes(problem):
    factor = 2**40 + 1
    values = tuple(
        dataclasses.replace(value, size_bytes=value.size_bytes * factor + index)
        for index, value in enumerate(problem.graph.values)
    )
    graph = dataclasses.replace(problem.graph, values=values)
    budget = (problem.budget_bytes + 1) * factor
    solution = solve(graph, budget, solver="moccasin", order=problem.order, time_limit_s=3)
    if solution.simulation is not None:
        assert solution.simulation.peak_bytes <= budget
        assert solution.simulation.overhead == 0 or solution.status is not Status.OPTIMAL


# -- search


def _recomputed_everywhere(graph: Graph, budget_bytes: int) -> Schedule:
    """A wasteful schedule: every value recomputed in every stage that reads it, with all that it needs."""
    repeats = [set() for _ in graph.nodes]
    for stage in range(len(graph.nodes)):
        pending = list(graph.predecessors[stage])
        while pending:
            node = pending.pop()
            if node < stage and stage not in repeats[node]:
                repeats[node].add(stage)
                pending += graph.predecessors[node]
    schedule = schedule_in_stages(graph, [sorted(stages) for stages in repeats])
    assert simulate(graph, schedule).peak_bytes <= budget_bytes
    return schedule


def test_neighbourhoods_reach_the_optimum_from_a_wasteful_schedule():
    graph = training_chain(8, size=2, cost=3)
    problem = Problem(graph, 22)
    incumbent = Incumbent(Search(problem, 60.0))
    incumbent.offer(_recomputed_everywhere(graph, problem.budget_bytes))
    start = incumbent.cost
    windows = repeat_windows(graph, problem.budget_bytes, [True] * len(graph.nodes))
    no_fetches = fetch_windows(graph, problem.budget_bytes, windows)
    loop = Neighbourhoods(scaled(problem), repeat_limits(graph, 3, windows=windows), windows, no_fetches)
    tried = loop.improve(incumbent, until_s=time.perf_counter() + 60, random=np.random.default_rng(0), max_fruitless=15)
    oracle = solve(graph, problem.budget_bytes, solver="moccasin", time_limit_s=60)
    assert tried > 0
    assert oracle.status is Status.OPTIMAL
    assert oracle.simulation.cost == incumbent.cost < start
    assert incumbent.schedule is not None
    check_schedule(graph, incumbent.schedule, order="fixed")


@pytest.mark.parametrize("start", ["two_phases", "stage_annealing", "twremat"])
def test_every_start_ends_at_the_same_optimum(start):
    graph = training_chain(6)
    solution = solve(graph, 7, solver=Moccasin(start=start), time_limit_s=60)
    assert solution.status is Status.OPTIMAL
    assert solution.simulation.cost == solve(graph, 7, solver="checkmate_milp", time_limit_s=60).simulation.cost


def test_progress_improves_and_ends_at_the_solution():
    graph = training_chain(10)
    seen: list[Update] = []
    solution = solve(graph, 10, solver="moccasin", time_limit_s=30, on_progress=seen.append)
    assert seen
    for before, after in pairwise(seen):
        assert after.time_s >= before.time_s
        assert after.cost <= before.cost
        assert after.cost_lower_bound >= before.cost_lower_bound
        assert (after.cost, after.cost_lower_bound) != (before.cost, before.cost_lower_bound)
    assert seen[-1].cost == solution.simulation.cost
    assert seen[-1].cost_lower_bound == solution.cost_lower_bound
    assert solution.simulation.peak_bytes <= seen[-1].peak_bytes <= 10


def test_windows_leave_out_what_cannot_help():
    # Stages 0 to 2 hold at most 3 of 4 bytes whatever is retained; d has no reader after stage 4.
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "ac", "e": "d"}, sizes={"d": 2})
    windows = repeat_windows(graph, 4, [True] * 5)
    assert [list(window.stages) for window in windows] == [[4], [4], [4], [4], []]


def test_a_model_that_is_not_built_in_time_is_given_up():
    graph = training_chain(20)
    problem = Problem(graph, 14)
    windows = repeat_windows(graph, problem.budget_bytes, [True] * len(graph.nodes))
    candidates = stage_candidates(graph, repeat_limits(graph, 2, windows=windows), windows)
    with pytest.raises(TimeoutError, match="41 nodes"):
        build(graph, scaled(problem), candidates, deadline_s=0.0)


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("options", [{}, {"strategy": "whole"}, {"start": "two_phases"}])
def test_no_model_is_solved_after_the_time_limit(monkeypatch, order, options):
    solved: list[object] = []
    monkeypatch.setattr(solver, "run_cpsat", lambda formulation, *_, **__: solved.append(formulation))
    found = Moccasin(**options).search(Search(Problem(training_chain(20), 14, order), time_limit_s=0.0))
    assert not solved
    assert found.cost_lower_bound == training_chain(20).baseline_cost
    assert found.infeasible_in is None


def test_models_of_the_bound_that_would_be_too_large_are_not_built(monkeypatch):
    graph = training_chain(6)
    two_phases = Moccasin(start="two_phases")
    assert solve(graph, 7, solver=two_phases, time_limit_s=60).schedule is not None
    few = dataclasses.replace(solver.SETTINGS, max_events=-1, event_bytes=2**40)
    monkeypatch.setattr(solver, "SETTINGS", few)
    found = solve(graph, 7, solver=two_phases, time_limit_s=60)
    assert found.status is Status.NOT_FOUND
    assert not found.stats["bound_model"]
    assert "of memory, above its limit" in found.stats["gave_up"]


@pytest.mark.parametrize(("percent", "overhead_percent"), [(90, 0.029), (80, 0.136)])
def test_fcn8_is_proved(percent, overhead_percent):
    """SOLVER_NOTES, section A (proved optima); MOCCASIN, Table 2: 0.0 and 0.1."""
    solution = solve(published("fcn8-b32-train"), f"{percent}%", solver="moccasin", time_limit_s=120)
    assert solution.status is Status.OPTIMAL
    assert 100 * solution.simulation.overhead == pytest.approx(overhead_percent, abs=6e-4)


def test_sequence_positions_respect_ancestors_and_descendants():
    chain = graph_of({"a": "", "b": "a", "c": "b"})
    candidates = sequence_candidates(chain, repeat_limits(chain, 2))
    # C_v is 2 for a and b, 1 for c, which nothing reads: 5 positions. By hand:
    assert candidates.times == (((0, 1, 2), (1, 2, 3, 4)), ((1, 2, 3), (2, 3, 4)), ((2, 3, 4),))


@pytest.mark.parametrize(
    ("budget_bytes", "cost"),
    [
        (200, 10),  # 1 and 2 are retained while 4 is computed from 3
        (150, 11),  # 2 is computed again from 1, which is retained
        (102, 13),  # 0, 1 and 2 are computed again, while 6 is there
        (101, 15),  # so they are, and 0 and 1 once more after 7: three computations of both
        (100, None),  # 0 and 1 are there together, beside 6
    ],
)
@pytest.mark.parametrize("method", ["moccasin", "moccasin, as published", "checkmate_milp"])
def test_the_ten_nodes_of_the_slides(method, budget_bytes, cost):
    chosen = Moccasin.paper() if method.endswith("published") else method
    solution = solve(SLIDES, budget_bytes, solver=chosen, time_limit_s=20)
    if chosen == Moccasin.paper() and cost == 15:
        cost = None  # each node twice at most, C_v = 2
    assert (solution.simulation and solution.simulation.cost) == cost
