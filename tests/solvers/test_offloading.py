"""Keep, recompute or offload, chosen together: against exhaustive search on tiny graphs."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import SolverError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import find_peak_bound, make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers import Problem, Status, solve
from checkmate_tf.solvers.checkmate import milp
from checkmate_tf.solvers.checkmate.milp import CheckmateMilp
from checkmate_tf.solvers.incumbent import Incumbent
from checkmate_tf.solvers.moccasin import solver as moccasin
from checkmate_tf.solvers.moccasin.candidates import fetch_windows, repeat_limits, repeat_windows
from checkmate_tf.solvers.moccasin.scaling import scaled
from checkmate_tf.solvers.moccasin.search import Neighbourhoods, offer_hidden
from checkmate_tf.solvers.moccasin.solver import Moccasin
from checkmate_tf.solvers.offloading.bound import bound_cost
from checkmate_tf.solvers.offloading.choose import drop_transfers
from checkmate_tf.solvers.offloading.conversions import convert_copies
from checkmate_tf.solvers.offloading.transfers import hide_transfers, offload_to_fit
from checkmate_tf.solvers.portfolio.auto import Auto
from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory
from checkmate_tf.solvers.registry import SOLVER_NAMES, get_solver
from checkmate_tf.solvers.search import Search
from tests.graphs import graphs, training_chain, training_graphs
from tests.solvers.offloading_oracle import find_least_cost

ALONE = Auto(workers=0)


def let_offload(graph: Graph, cost: int) -> Graph:
    values = tuple(replace(value, offload_cost=cost, fetch_cost=cost) for value in graph.values)
    return replace(graph, values=values)


@pytest.mark.parametrize(("cost", "size"), [(1, 5), (4, 5)])
def test_auto_is_as_good_as_trying_everything(cost, size):
    graph = let_offload(training_chain(3, size=size, cost=2), cost)
    budget_bytes = simulate_stock(graph).peak_bytes - size
    solution = solve(graph, budget_bytes, solver=ALONE, time_limit_s=2)
    assert solution.simulation.cost == find_least_cost(graph, budget_bytes, most_fetches=1)


@settings(deadline=None, max_examples=15)
@given(training_graphs(max_layers=3))
def test_with_offloading_a_schedule_costs_no_more_and_no_less_than_its_bound(graph):
    budget_bytes = int(0.8 * simulate_stock(graph).peak_bytes)
    plain = solve(graph, budget_bytes, solver=ALONE, time_limit_s=2)
    both = solve(let_offload(graph, 2), budget_bytes, solver=ALONE, time_limit_s=2)
    if plain.schedule is not None:
        assert both.simulation.cost <= plain.simulation.cost
    if both.schedule is not None:
        assert graph.baseline_cost <= both.cost_lower_bound <= both.simulation.cost


def test_copies_that_can_hide_cost_nothing():
    graph = let_offload(training_chain(12, size=10, cost=10), 5)
    budget_bytes = int(0.7 * simulate_stock(graph).peak_bytes)
    solution = solve(graph, budget_bytes, solver=ALONE, time_limit_s=5)
    assert solve(drop_transfers(graph), budget_bytes, solver=ALONE, time_limit_s=5).simulation.overhead > 0
    assert solution.schedule.fetches
    assert solution.simulation.cost == graph.baseline_cost


def test_offloading_alone_keeps_within_the_budget():
    graph = let_offload(training_chain(8, size=10, cost=1), 100)
    budget_bytes = int(0.6 * simulate_stock(graph).peak_bytes)
    schedule = offload_to_fit(graph, make_retain_all_schedule(graph), budget_bytes)
    check_schedule(graph, schedule, order="fixed")
    assert simulate(graph, schedule).peak_bytes <= budget_bytes
    assert schedule.order == make_retain_all_schedule(graph).order


@pytest.mark.parametrize("name", SOLVER_NAMES)
def test_a_solver_offloads_or_says_that_it_does_not(name):
    graph = let_offload(training_chain(3), 1)
    solver = get_solver(name)
    if not solver.offloads:
        with pytest.raises(SolverError, match=f"{name} does not offload"):
            solve(graph, "80%", solver=name)
        return
    solution = solve(graph, "100%", solver=name, time_limit_s=2)
    check_schedule(graph, solution.schedule)
    assert solution.simulation.cost == graph.baseline_cost


def test_the_least_budget_is_lower_with_offloading():
    graph = training_chain(8, size=10, cost=1)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    plain, both = (minimum_memory(one, time_limit_s=3, solver=ALONE) for one in (graph, let_offload(graph, 1)))
    assert both.budget_bytes < plain.budget_bytes
    check_schedule(let_offload(graph, 1), both.solution.schedule)


@st.composite
def offloading_problems(draw: st.DrawFn) -> Problem:
    """Graphs of up to six nodes, at most three of whose values can be offloaded, and budgets below the stock peak."""
    graph = draw(st.one_of(graphs(max_nodes=6), training_graphs(max_layers=2)))
    offloadable = draw(st.lists(st.sampled_from(range(len(graph.values))), min_size=1, max_size=3, unique=True))
    values = list(graph.values)
    for number in offloadable:
        costs = draw(st.integers(0, 9)), draw(st.integers(0, 9))
        values[number] = replace(values[number], offload_cost=costs[0], fetch_cost=costs[1])
    graph = replace(graph, values=tuple(values))
    least, peak = find_peak_bound(graph).peak_bytes, simulate_stock(graph).peak_bytes
    return Problem(graph, draw(st.integers(max(1, least), max(1, least, peak - 1))))


@settings(deadline=None, max_examples=30)
@given(offloading_problems())
def test_no_schedule_costs_less_than_the_bound(problem):
    bound = bound_cost(problem.graph, problem.budget_bytes, deadline_s=math.inf)
    least = find_least_cost(problem.graph, problem.budget_bytes)
    assert problem.graph.baseline_cost <= bound
    assert least is None or bound <= least


@pytest.mark.parametrize(("compute", "copy", "bound"), [(2, 1, 15), (2, 4, 18), (2, 10, 28)])
def test_the_bound_counts_copies_that_cannot_hide(compute, copy, bound):
    """Seven nodes, one of whose values has to leave for the third: out after the first, back after the third."""
    graph = let_offload(training_chain(3, size=5, cost=compute), copy)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver=ALONE, time_limit_s=2)
    assert solution.cost_lower_bound == bound == solution.simulation.cost
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("backend", "copy", "cost"), [("highs", 1, 15), ("auto", 1, 15), ("cvxpy", 1, 15), ("highs", 4, 18)]
)
def test_checkmate_milp_offloads_where_nothing_may_run_again(backend, copy, cost):
    """What leaves memory here is out after the first node and back for the last: `find_least_cost` finds the costs."""
    graph = let_offload(training_chain(3, size=5, cost=2), copy)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    solver = CheckmateMilp(backend=backend, start_from=())
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver=solver, time_limit_s=20)
    assert solution.status is Status.OPTIMAL
    assert solution.simulation.cost == cost
    assert solution.schedule.fetches


@pytest.mark.parametrize(("copy", "cost"), [(1, 18), (4, 20)])
def test_the_program_alone_counts_fetches_that_a_node_waits_for(monkeypatch, copy, cost):
    """With the bound of each node left out, only the rows of the program count the copies that cannot hide."""
    monkeypatch.setattr(milp, "bound_cost", lambda graph, *_, **__: graph.baseline_cost)
    graph = let_offload(training_chain(4, size=5, cost=2), copy)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    solver = CheckmateMilp(backend="highs", start_from=())
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver=solver, time_limit_s=20)
    assert (solution.status, solution.cost_lower_bound, solution.simulation.cost) == (Status.OPTIMAL, cost, cost)


WAITING = Graph(
    (
        Node("a", "op", (), (0,), cost=1, recomputable=False),
        Node("p", "op", (), (1,), cost=1, recomputable=False),
        Node("c", "op", (1,), (2,), cost=100, recomputable=False),
        Node("z", "op", (0, 2), (3,), cost=1, recomputable=False),
    ),
    (Value("a", 10, offload_cost=10, fetch_cost=10), Value("p", 10), Value("c", 1), Value("z", 1)),
    outputs=(3,),
)


def test_the_program_alone_counts_memory_that_is_not_free_before_a_copy_is_out(monkeypatch):
    """p waits until the value of a is copied out, and z until it is back. Without the first wait, it would be 113.

    If only c waited, it would be 122.
    """
    monkeypatch.setattr(milp, "bound_cost", lambda graph, *_, **__: graph.baseline_cost)
    solver = CheckmateMilp(backend="highs", start_from=())
    solution = solve(WAITING, 13, solver=solver, time_limit_s=20)
    assert (solution.status, solution.cost_lower_bound, solution.simulation.cost) == (Status.OPTIMAL, 123, 123)


def test_a_copy_may_leave_between_a_node_and_the_recomputations_of_the_next_stage(monkeypatch):
    """a is held beside c while it is copied out, and has to be out when r runs again for z.

    The nodes take 106, and y waits 10 until a is back. The program must not have c wait until a is out.
    """
    monkeypatch.setattr(milp, "bound_cost", lambda graph, *_, **__: graph.baseline_cost)
    nodes = (
        Node("a", "op", (), (0,), cost=1, recomputable=False),
        Node("r", "op", (), (1,), cost=1, workspace_bytes=3),
        Node("m", "op", (1,), (2,), cost=1, recomputable=False),
        Node("c", "op", (2,), (3,), cost=100, recomputable=False),
        Node("z", "op", (1, 3), (4,), cost=1, recomputable=False),
        Node("y", "op", (0, 4), (5,), cost=1, recomputable=False),
    )
    sizes = {"a": 10, "r": 5, "m": 1, "c": 10, "z": 1, "y": 1}
    values = [Value(name, size) for name, size in sizes.items()]
    values[0] = replace(values[0], offload_cost=10, fetch_cost=10)
    graph = Graph(nodes, tuple(values), outputs=(5,))
    known = simulate(graph, Schedule((0, 1, 2, 3, 1, 4, 5), fetches=((6, 0),), offloads=((3, 0),)))
    solver = CheckmateMilp(backend="highs", start_from=(), lazy_rows=False)
    solution = solve(graph, 22, solver=solver, time_limit_s=20)
    assert solution.cost_lower_bound <= known.cost == 116
    assert known.peak_bytes <= 22


def test_moccasin_offloads_a_value_that_waits_on_either_lane(monkeypatch):
    """a is out after 11, so p and c run until 112; a is back 10 later, and z ends at 123."""
    monkeypatch.setattr(moccasin, "bound_cost", lambda graph, *_, **__: graph.baseline_cost)
    solution = solve(WAITING, 13, solver=Moccasin(start="two_phases"), time_limit_s=20)
    assert (solution.status, solution.cost_lower_bound, solution.simulation.cost) == (Status.OPTIMAL, 123, 123)


@pytest.mark.parametrize(("layers", "copy", "cost"), [(3, 1, 15), (3, 4, 18), (3, 10, 28), (4, 1, 18), (4, 4, 20)])
def test_moccasins_model_alone_counts_copies_that_cannot_hide(monkeypatch, layers, copy, cost):
    """With the bound of the copies left out, only CP-SAT proves these costs, which `find_least_cost` finds."""
    monkeypatch.setattr(moccasin, "bound_cost", lambda graph, *_, **__: graph.baseline_cost)
    graph = let_offload(training_chain(layers, size=5, cost=2), copy)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver=Moccasin(start="two_phases"), time_limit_s=20)
    assert (solution.status, solution.cost_lower_bound, solution.simulation.cost) == (Status.OPTIMAL, cost, cost)
    assert solution.schedule.fetches


@pytest.mark.parametrize("strategy", ["neighbourhoods", "whole"])
def test_moccasin_recomputes_where_copies_take_longer(strategy):
    graph = let_offload(training_chain(3, size=5, cost=2), 10)
    solver = Moccasin(start="two_phases", strategy=strategy)
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver=solver, time_limit_s=20)
    assert (solution.status, solution.simulation.cost) == (Status.OPTIMAL, 16)
    assert not solution.schedule.fetches


def test_neighbourhoods_exchange_fetches_and_recomputations():
    """They begin with all values offloaded that can be, where copies take much longer than nodes."""
    graph = let_offload(training_chain(6, size=10, cost=10), 40)
    problem = Problem(graph, int(0.7 * simulate_stock(graph).peak_bytes))
    incumbent = Incumbent(Search(problem, 60.0))
    offer_hidden(incumbent, offload_to_fit(graph, make_retain_all_schedule(graph), problem.budget_bytes))
    first = incumbent.cost
    windows = repeat_windows(graph, problem.budget_bytes, [True] * len(graph.nodes))
    limits, where = repeat_limits(graph, 3, windows=windows), fetch_windows(graph, problem.budget_bytes, windows)
    loop = Neighbourhoods(scaled(problem), limits, windows, where)
    loop.improve(incumbent, until_s=time.perf_counter() + 60, random=np.random.default_rng(0), max_fruitless=5)
    recomputed = solve(drop_transfers(graph), problem.budget_bytes, solver="moccasin", time_limit_s=20)
    assert incumbent.cost <= recomputed.simulation.cost < first
    check_schedule(graph, incumbent.schedule, order="fixed")


@pytest.mark.parametrize(("solver", "order"), [(Moccasin.paper(), "fixed"), (Moccasin(strategy="whole"), "free")])
def test_moccasins_models_of_the_paper_say_that_they_do_not_offload(solver, order):
    with pytest.raises(SolverError, match="the paper's models do not offload"):
        solve(let_offload(training_chain(3), 1), "80%", solver=solver, order=order)


def test_moccasin_offloads_in_free_order():
    graph = let_offload(training_chain(8, size=10, cost=10), 2)
    graph = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    solution = solve(graph, "80%", solver="moccasin", order="free", time_limit_s=5)
    assert solution.schedule.fetches
    assert solution.simulation.cost == graph.baseline_cost


def test_checkmate_milp_recomputes_where_copies_take_longer():
    graph = let_offload(training_chain(3, size=5, cost=2), 10)
    solution = solve(graph, simulate_stock(graph).peak_bytes - 5, solver="checkmate_milp", time_limit_s=20)
    assert (solution.status, solution.simulation.cost) == (Status.OPTIMAL, 16)
    assert not solution.schedule.fetches


def test_the_papers_program_says_that_it_does_not_offload():
    graph = let_offload(training_chain(3), 1)
    with pytest.raises(SolverError, match="the paper's rows do not offload"):
        solve(graph, "80%", solver=CheckmateMilp.paper())


@pytest.mark.parametrize("solver", [CheckmateMilp(backend="highs"), Moccasin(start="two_phases")])
def test_a_solver_proves_only_what_exhaustive_search_finds(solver):
    @settings(deadline=None, max_examples=30)
    @given(offloading_problems())
    def hold(problem: Problem) -> None:
        solution = solve(problem.graph, problem.budget_bytes, solver=solver, time_limit_s=20)
        least = find_least_cost(problem.graph, problem.budget_bytes, stages=True)
        if solution.schedule is None:
            assert least is None
            return
        check_schedule(problem.graph, solution.schedule, order="fixed")
        assert simulate(problem.graph, solution.schedule).peak_bytes <= problem.budget_bytes
        assert problem.graph.baseline_cost <= solution.cost_lower_bound <= solution.simulation.cost
        if least is not None:
            assert solution.cost_lower_bound <= least
            if solution.status is Status.OPTIMAL:
                assert solution.simulation.cost <= least

    hold()


def test_transfers_of_a_schedule_above_the_budget_are_not_hidden() -> None:
    chain = training_chain(3, size=1000)
    schedule = make_retain_all_schedule(chain)
    assert hide_transfers(chain, schedule, simulate(chain, schedule).peak_bytes - 1) == schedule


def test_fetches_begin_early_enough_that_no_reader_waits() -> None:
    """Copies take as long as three nodes. In a schedule that waits, nodes begin too late to time fetches by them."""
    chain = let_offload(training_chain(12, size=10, cost=1), 3)
    late = Schedule(make_retain_all_schedule(chain).order, fetches=((21, 2), (23, 0)))
    assert simulate(chain, late).cost == chain.baseline_cost + 10
    for hide in (True, False):
        hidden = hide_transfers(replace(chain, copies_hide=hide), late, simulate_stock(chain).peak_bytes)
        assert simulate(chain, hidden).cost == chain.baseline_cost


def _convert(graph: Graph, schedule: Schedule, budget_bytes: int) -> Schedule:
    return convert_copies(graph, schedule, budget_bytes, deadline_s=math.inf)


@settings(deadline=None, max_examples=60)
@given(offloading_problems())
def test_converted_copies_cost_no_more_and_stay_within_the_budget(problem):
    plain = solve(drop_transfers(problem.graph), problem.budget_bytes, solver="checkmate_milp", time_limit_s=5).schedule
    fitted = offload_to_fit(problem.graph, make_retain_all_schedule(problem.graph), problem.budget_bytes)
    for schedule in (plain, fitted):
        if schedule is None:
            continue
        converted = _convert(problem.graph, schedule, problem.budget_bytes)
        check_schedule(problem.graph, converted, order="fixed")
        simulation = simulate(problem.graph, converted)
        assert simulation.peak_bytes <= problem.budget_bytes
        assert simulation.cost <= simulate(problem.graph, schedule).cost


def test_a_recomputation_becomes_a_fetch_where_its_copies_hide() -> None:
    graph = let_offload(training_chain(12, size=10, cost=10), 5)
    budget_bytes = int(0.7 * simulate_stock(graph).peak_bytes)
    plain = solve(drop_transfers(graph), budget_bytes, solver=ALONE, time_limit_s=5).schedule
    converted = _convert(graph, plain, budget_bytes)
    assert converted.fetches
    assert simulate(graph, converted).overhead < simulate(graph, plain).overhead / 2


def test_a_fetch_becomes_a_recomputation_where_its_copies_take_longer() -> None:
    graph = let_offload(training_chain(12, size=10, cost=1), 50)
    budget_bytes = int(0.7 * simulate_stock(graph).peak_bytes)
    fitted = offload_to_fit(graph, make_retain_all_schedule(graph), budget_bytes)
    converted = _convert(graph, fitted, budget_bytes)
    assert len(converted.fetches) < len(fitted.fetches)
    assert simulate(graph, converted).cost < simulate(graph, fitted).cost


def test_copies_that_do_not_hide_are_worth_it_only_where_they_take_less_than_nodes() -> None:
    graph = let_offload(training_chain(12, size=10, cost=10), 6)
    budget_bytes = int(0.7 * simulate_stock(graph).peak_bytes)
    for hide in (True, False):
        solution = solve(replace(graph, copies_hide=hide), budget_bytes, solver=ALONE, time_limit_s=5)
        assert bool(solution.schedule.fetches) == hide


def test_a_copy_is_retained_where_there_is_room() -> None:
    graph = training_chain(4, size=10, cost=5)
    again = Schedule((0, 1, 0, *range(2, len(graph.nodes))))
    assert _convert(graph, again, simulate_stock(graph).peak_bytes) == make_retain_all_schedule(graph)


def test_conversion_ends_at_its_deadline() -> None:
    graph = training_chain(4, size=10, cost=5)
    again = Schedule((0, 1, 0, *range(2, len(graph.nodes))))
    assert convert_copies(graph, again, simulate_stock(graph).peak_bytes, deadline_s=0.0) == again


def test_a_first_schedule_offloads_only_where_recomputation_does_not_do() -> None:
    graph = let_offload(training_chain(12, size=10, cost=1), 50)
    budget_bytes = int(0.7 * simulate_stock(graph).peak_bytes)
    first = solve(graph, budget_bytes, solver=replace(ALONE, first_schedule=True), time_limit_s=5)
    assert not first.schedule.fetches
    once = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    assert solve(once, budget_bytes, solver=replace(ALONE, first_schedule=True), time_limit_s=5).schedule.fetches
