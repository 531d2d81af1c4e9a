"""fastsa: the tree and the sequence state against the simulator, grouping, offloading, published figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers.base import Status
from checkmate_tf.solvers.fastsa import kernel
from checkmate_tf.solvers.fastsa import solver as fastsa
from checkmate_tf.solvers.fastsa.node_grouping import group_nodes, ungroup
from checkmate_tf.solvers.fastsa.sequence_state import build, fetches_of, to_schedule, unit_bytes
from checkmate_tf.solvers.fastsa.settings import SETTINGS
from checkmate_tf.solvers.fastsa.solver import Annealed, Annealing, Fastsa, anneal_sequences, num_slots
from checkmate_tf.solvers.memory_tree import add_range, add_slot, empty_deltas, empty_weights, multiply_range, peak_slot
from checkmate_tf.solvers.offloading.choose import drop_transfers
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.solving import solve
from experiments.fastsa.bounds import computed_anew
from experiments.layer_graphs import committed_graph
from experiments.layered_graphs import layered_graph
from tests.graphs import graph_of, graphs, published, training_chain

QUICK = Fastsa(Annealing(iterations=20_000, rounds=4))
ALL_MOVES = np.ones(len(kernel.MOVE_NAMES), dtype=np.int64)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 62), st.integers(1, 62), st.integers(-5, 9)), max_size=30))
def test_tree_is_range_add_range_max(changes):
    deltas, memory = empty_deltas(64), np.zeros(64, dtype=np.int64)
    for first, last, amount in changes:
        add_range(deltas, first, last, amount)
        memory[first : last + 1] += amount
        add_slot(deltas, last, 1)
        memory[last] += 1
        assert deltas[1] == memory.max()
        assert memory[peak_slot(deltas)] == memory.max()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 62), st.integers(1, 62), st.sampled_from([0.5, 2.0, 3.0])), max_size=30))
def test_logaddexp_tree_sums_the_weights(changes):
    weights, plain = empty_weights(64), np.full(64, 2.0**-60)
    for first, last, factor in changes:
        multiply_range(weights, first, last, factor)
        plain[first : last + 1] *= factor
        assert weights[0, 1] == pytest.approx(plain.sum(), rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(graphs(max_nodes=10), st.integers(0, 2**30), st.booleans(), st.booleans(), st.booleans())
def test_the_tree_and_the_simulator_agree_after_any_mutations(graph, seed, fixed_order, offload, soft):
    if offload:
        graph = with_transfers(graph)
    state = build(
        graph,
        make_retain_all_schedule(graph),
        num_slots=256,
        seed=seed,
        fixed_order=fixed_order,
        soft_unit_bytes=2.0 if soft else 0.0,
    )
    for _ in range(8):
        # Temperature 10 accepts nearly everything: a random walk.
        run(state, graph, temperature=10.0, iterations=25)
        schedule = to_schedule(np.ascontiguousarray(state.slots[:, 0]), fetches_of(state))
        check_schedule(graph, schedule, order="fixed" if fixed_order else "free")
        simulation = simulate(graph, schedule)
        assert int(state.deltas[1]) * unit_bytes(graph) + graph.resident_bytes == simulation.peak_bytes
        assert state.totals[0] == sum_paper_cost(graph, schedule) >= simulation.cost
        if soft:
            memory = (simulation.memory_bytes - graph.resident_bytes) / 2.0
            hidden = 256 * 2.0**-60 * 2.0 ** memory.max()
            assert state.weights[0, 1] == pytest.approx((2.0**memory).sum(), rel=1e-6, abs=hidden)


def test_more_positions_than_the_journal_has_room_for():
    graph = training_chain(2_100)
    state = build(graph, make_retain_all_schedule(graph), num_slots=1 << 14)
    run(state, graph, temperature=10.0, iterations=1_000)
    simulation = simulate(graph, to_schedule(np.ascontiguousarray(state.slots[:, 0]), fetches_of(state)))
    assert int(state.deltas[1]) * unit_bytes(graph) == simulation.peak_bytes


def test_sizes_that_do_not_fit_in_32_bits_round_up():
    graph = graph_of({"a": "", "b": "a", "c": "ab"}, sizes={"a": 10**12 + 1, "b": 3 * 10**11, "c": 7})
    state = build(graph, make_retain_all_schedule(graph), num_slots=64)
    peak_bytes = simulate_stock(graph).peak_bytes
    assert unit_bytes(graph) > 1
    assert peak_bytes <= int(state.deltas[1]) * unit_bytes(graph) <= peak_bytes + 3 * unit_bytes(graph)


@settings(deadline=None, max_examples=100)
@given(graphs(max_nodes=10))
def test_groups_take_no_less_memory_than_their_members_and_cost_the_same(graph):
    grouping = group_nodes(graph)
    groups = make_retain_all_schedule(grouping.graph)
    schedule = ungroup(grouping, groups)
    check_schedule(graph, schedule)
    assert simulate(graph, schedule).peak_bytes <= simulate(grouping.graph, groups).peak_bytes
    assert simulate(graph, schedule).cost == simulate(grouping.graph, groups).cost


def test_grouping_fuses_figure_6():
    # a yields as much as it reads, so it goes into both its users; b reads more than it yields and stays.
    graph = graph_of({"x": "", "a": "x", "b": "a", "c": "ab"}, sizes={"x": 4, "a": 4, "b": 1, "c": 1}, outputs="xc")
    grouping = group_nodes(graph)
    assert grouping.members == ((0,), (1, 2), (1, 3))


def test_groups_of_a_long_chain_stay_bounded():
    """Every layer yields as much as it reads and the first reads nothing: uncapped, 300 x 301 members."""
    grouping = group_nodes(training_chain(300), max_members=8)
    assert max(map(len, grouping.members)) <= 3 * 8 + 1
    assert len(grouping.graph.nodes) < 601


@pytest.mark.parametrize("solver", [QUICK, replace(QUICK, grouping=Annealing(iterations=20_000, rounds=2))])
def test_a_chain_meets_half_its_memory(solver):
    graph = training_chain(20)
    solution = solve(graph, "60%", solver=solver, order="free")
    assert solution.status is Status.FEASIBLE
    # Each of the 8 forward values above the budget is recomputed once.
    assert solution.simulation.cost - graph.baseline_cost <= 9


@pytest.mark.parametrize("objective", ["product", "elu", "penalty"])
@pytest.mark.parametrize("logaddexp", [False, True])
def test_every_objective_lowers_the_peak(objective, logaddexp):
    graph = training_chain(20)
    budget_bytes = 14
    options = Annealing(100_000, objective=objective, rounds=2, logaddexp=logaddexp)
    run = anneal_sequences(
        Problem(graph, budget_bytes, "free"), make_retain_all_schedule(graph), options=options, seed=0
    )
    assert simulate(graph, run.schedule).peak_bytes < simulate_stock(graph).peak_bytes - 4


def test_descends_where_the_first_annealing_stays_above_the_budget():
    graph, options = layered_graph(300, seed=1), Annealing(iterations=400_000)
    retain_all = make_retain_all_schedule(graph)
    budget_bytes = simulate(graph, retain_all).peak_bytes * 55 // 100
    first = anneal_sequences(Problem(graph, budget_bytes, "free"), retain_all, options=options, seed=0)
    assert simulate(graph, first.schedule).peak_bytes > budget_bytes
    solution = solve(graph, budget_bytes, solver=Fastsa(options, reorder=False), order="free")
    assert solution.status is Status.FEASIBLE


def test_the_papers_settings_meet_a_budget():
    paper = Fastsa.paper("elu")
    solver = replace(
        paper,
        annealing=replace(paper.annealing, iterations=100_000),
        grouping=replace(paper.grouping, iterations=100_000),
    )
    solution = solve(training_chain(20), "60%", solver=solver, order="free")
    assert solution.status is Status.FEASIBLE


def test_the_paper_stops_grouping_at_the_budget_and_makes_its_two_million_mutations_of_single_nodes():
    # The groups fit into the budget as they are: by appendix D.4 the first annealing makes no mutation at all.
    graph = committed_graph("mobilenet")
    budget_bytes = simulate_stock(graph).peak_bytes * 6 // 10
    assert simulate_stock(group_nodes(graph).graph).peak_bytes < budget_bytes
    solution = solve(graph, budget_bytes, solver=Fastsa.paper(), order="free", time_limit_s=600)
    assert solution.stats["mutations_tried"] == 2_000_000
    assert solution.status is Status.FEASIBLE


def test_an_annealing_cools_from_its_first_temperature_to_its_last(monkeypatch):
    temperatures = []

    def note(state, settings, *_):
        temperatures.extend(settings[[kernel.FIRST_TEMPERATURE, kernel.LAST_TEMPERATURE]].tolist())

    monkeypatch.setattr(kernel, "anneal", note)
    graph, options = training_chain(4), Annealing(1_000, first_temperature=1e-2, last_temperature=1e-5, rounds=3)
    anneal_sequences(Problem(graph, 4, "free"), make_retain_all_schedule(graph), options=options, seed=0)
    assert len(temperatures) == 2 * 3 * SETTINGS.turns
    assert temperatures == pytest.approx(sorted(temperatures, reverse=True))
    assert (temperatures[0], temperatures[-1]) == pytest.approx((1e-2, 1e-5))


def test_an_annealing_that_stops_at_the_budget_ends_with_the_mutation_that_meets_it():
    graph = training_chain(20)
    problem, retain_all = Problem(graph, 15, "free"), make_retain_all_schedule(graph)
    options = replace(Fastsa.paper().grouping, iterations=100_000, slots_per_node=64)
    run = anneal_sequences(problem, retain_all, options=options, seed=0, stop_at_budget=True)
    whole = anneal_sequences(problem, retain_all, options=options, seed=0)
    assert simulate(graph, run.schedule).peak_bytes <= 15
    assert run.tried < whole.tried == 100_000
    assert run.tried % (100_000 // SETTINGS.turns), "it ended only with a turn"
    assert simulate(graph, run.schedule).cost >= simulate(graph, whole.schedule).cost


def test_the_papers_temperatures_are_shares_of_its_first_objective(monkeypatch):
    graph = replace(committed_graph("mobilenet"), resident_bytes=0)
    groups, budget_bytes = group_nodes(graph).graph, simulate_stock(graph).peak_bytes * 3 // 10
    assert groups.baseline_cost > graph.baseline_cost
    seen: list[Annealing] = []

    def record(problem, schedule, *, options, **_):
        seen.append(options)
        return Annealed(schedule, 0, 0, 0, 0, 0.0)

    monkeypatch.setattr(fastsa, "anneal_sequences", record)
    solve(graph, budget_bytes, solver=Fastsa.paper(), order="free")
    first = simulate_stock(groups).peak_bytes / budget_bytes
    assert seen[0].first_temperature == pytest.approx(1e-3 * first)
    assert seen[0].last_temperature == pytest.approx(1e-7 * first)
    second = first * groups.baseline_cost / graph.baseline_cost
    assert seen[1].first_temperature == pytest.approx(1e-7 * second)
    assert seen[1].last_temperature == pytest.approx(1e-11 * second)


@pytest.mark.parametrize(("positions", "slots"), [(45, 1 << 20), (8_065, 1 << 20), (600_000, 1 << 21)])
def test_the_papers_sequence_has_a_million_slots_or_twice_its_positions(positions, slots):
    assert num_slots(Fastsa.paper().annealing, positions) == slots


def test_reordering_only_finds_the_least_peak_without_recomputing():
    graph = graph_of(
        {"a": "", "b": "", "c": "a", "d": "b", "e": "cd"}, sizes={"a": 10, "b": 10, "c": 1, "d": 1, "e": 1}
    )
    run = Fastsa(Annealing(5_000, rounds=1), reorder=False, recompute=False)
    solution = solve(graph, 12, solver=run, order="free")
    assert solution.simulation.peak_bytes == 12
    assert solution.simulation.cost == graph.baseline_cost


def test_offloading_replaces_an_expensive_recomputation():
    graph = training_chain(12, cost=10)
    values = tuple(replace(value, offload_cost=1, fetch_cost=1) for value in graph.values)
    graph = replace(graph, values=values)
    plain = solve(drop_transfers(graph), "60%", solver=QUICK, order="free")
    offloaded = solve(graph, "60%", solver=replace(QUICK, offload=True), order="free")
    assert not plain.schedule.fetches
    assert offloaded.schedule.fetches
    assert offloaded.simulation.cost < plain.simulation.cost


def test_with_offloading_a_cheaper_recomputation_is_still_found():
    """Each of the 8 forward values above the budget is recomputed once. A fetched value would take 4."""
    graph = training_chain(20)
    graph = replace(graph, values=tuple(replace(value, offload_cost=2, fetch_cost=2) for value in graph.values))
    solution = solve(graph, "60%", solver=replace(QUICK, offload=True), order="free")
    assert sum_paper_cost(graph, solution.schedule) - graph.baseline_cost <= 9


def test_an_exchange_can_take_a_fetch_away():
    graph = with_transfers(training_chain(12))
    fetched = Schedule(make_retain_all_schedule(graph).order, fetches=((24, 0),))
    state = build(graph, fetched, num_slots=256)
    only_exchange = np.array([int(name == "exchange") for name in kernel.MOVE_NAMES], dtype=np.int64)
    run(state, graph, temperature=1e-6, iterations=1_000, moves=only_exchange)
    assert not len(fetches_of(state))


def test_seeds_repeat_and_several_are_no_worse_than_the_first():
    graph = published("rl-g1-n100")
    solutions = [solve(graph, "70%", solver=QUICK, order="free", seed=5) for _ in range(2)]
    several = solve(graph, "70%", solver=replace(QUICK, num_seeds=3), order="free", seed=5)
    assert solutions[0].schedule == solutions[1].schedule
    assert several.simulation.cost <= solutions[0].simulation.cost


# Table 1 of the paper: rl-g1 0.0 / 0.3 / 2.2 %, rl-g2 0.0 / 0.0 / 2.6 %, fcn8 3.0 % at 70 %, resnet50 0.8 % at 70 %;
# that 90 and 80 % of the rl graphs need no recomputation is proved (SOLVER_NOTES, "Order").
@pytest.mark.parametrize(
    ("name", "budget", "most_percent"),
    [
        ("rl-g1-n100", "90%", 0.0),
        ("rl-g1-n100", "80%", 0.0),
        ("rl-g1-n100", "70%", 2.2),
        ("rl-g2-n250", "90%", 0.0),
        ("rl-g2-n250", "80%", 0.0),
        ("fcn8-b32-train", "70%", 3.0),
        ("resnet50-b256-train", "70%", 0.8),
    ],
)
def test_published_overheads(name, budget, most_percent):
    solution = solve(published(name), budget, solver=Fastsa(Annealing(iterations=1_000_000)), order="free")
    assert 100 * solution.simulation.overhead <= most_percent


def test_computing_everything_anew_takes_no_more_than_its_bound():
    graph = layered_graph(20, seed=3)
    sizes = graph.sizes_bytes
    bytes_of: dict[int, int] = {}
    order: list[int] = []

    def compute(node: int) -> None:
        for value in sorted(graph.nodes[node].inputs, key=lambda value: sizes[value] - bytes_of[value]):
            compute(value)
        order.append(node)

    for node in range(20):
        end = node + 1
        upto = replace(graph, nodes=graph.nodes[:end], values=graph.values[:end], outputs=())
        bytes_of[node] = computed_anew(upto)[0]
    compute(19)
    peak_bytes, positions = computed_anew(graph)
    assert len(order) == positions
    assert simulate(graph, Schedule(tuple(order))).peak_bytes <= peak_bytes


def sum_paper_cost(graph: Graph, schedule: Schedule) -> int:
    """The objective of appendix B.3: every copy takes its time, and nothing runs beside it."""
    fetched = [graph.values[value] for _, value in schedule.fetches]
    once = {value.name: value.offload_cost for value in fetched}
    return (
        sum(graph.nodes[node].cost for node in schedule.order) + sum(v.fetch_cost for v in fetched) + sum(once.values())
    )


def with_transfers(graph: Graph) -> Graph:
    values = tuple(replace(value, offload_cost=index % 3, fetch_cost=2) for index, value in enumerate(graph.values))
    return replace(graph, values=values)


def run(state, graph: Graph, *, temperature: float, iterations: int, moves: np.ndarray = ALL_MOVES) -> None:
    options = np.array([2, 1, max(1, graph.baseline_cost), 1.0, temperature, temperature, 0.0, 0.0])
    figures = np.array([kernel.UNKNOWN, kernel.UNKNOWN, 0, 0, 0, 0, 0], dtype=np.int64)
    likely = np.arange(len(graph.values), dtype=np.int32)
    best = np.zeros(len(state.slots), dtype=np.int32), np.zeros((4096, 2), dtype=np.int32)
    kernel.anneal(state.addresses, options, moves, likely, iterations, 10, *best, figures)


def test_a_round_ends_when_time_is_up():
    graph = training_chain(12)
    options = Annealing(iterations=20_000, rounds=20)
    run = anneal_sequences(
        Problem(graph, 20, "free"), make_retain_all_schedule(graph), options=options, seed=0, deadline_s=0.0
    )
    assert run.tried == 100  # a tenth of a round
