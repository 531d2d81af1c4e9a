"""Stage-space annealing: the compiled state against the simulator, and known optima."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import check_schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.annealing import solver as stage_annealing
from checkmate_tf.solvers.annealing.annealer import Annealer
from checkmate_tf.solvers.annealing.settings import SETTINGS
from checkmate_tf.solvers.annealing.solver import AnnealingRun, StageAnnealing
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search, Update
from checkmate_tf.solvers.stages import events_of, rows_of, schedule_of_events
from tests.graphs import graph_of, graphs, published, training_chain


@st.composite
def graphs_with_events(draw: st.DrawFn) -> tuple[Graph, list[tuple[int, int]]]:
    graph = draw(graphs(max_nodes=9))
    possible = [
        (stage, node) for stage in range(len(graph.nodes)) for node in range(stage) if graph.nodes[node].recomputable
    ]
    events = draw(st.lists(st.sampled_from(possible), max_size=12)) if possible else []
    return graph, events


@settings(deadline=None, max_examples=200)
@given(graphs_with_events(), st.randoms(use_true_random=False))
def test_any_set_of_recomputations_is_valid_and_counted_as_the_simulator_does(case, random):
    graph, events = case
    annealer = Annealer(graph, 0, 0)
    annealer.load(events)
    annealer.load(random.sample(events, len(events) // 2))
    chosen = annealer.best_events() if annealer.overflow == 0 else annealer.events()
    schedule = schedule_of_events(len(graph.nodes), chosen)
    check_schedule(graph, schedule, order="fixed")
    simulation = simulate(graph, schedule)
    assert annealer.cost == simulation.cost
    assert annealer.overflow == simulation.memory_bytes.sum()


@settings(deadline=None, max_examples=60)
@given(graphs(max_nodes=10), st.integers(0, 100))
def test_moves_and_their_undoing_keep_the_count_exact(graph, percent):
    peak = simulate_stock(graph).peak_bytes
    least = find_peak_bound(graph).peak_bytes
    budget = least + (peak - least) * percent // 100
    annealer = Annealer(graph, budget, 1)
    for _ in annealer.cool(300):
        pass
    simulation = simulate(graph, schedule_of_events(len(graph.nodes), annealer.events()))
    assert annealer.cost == simulation.cost
    assert annealer.overflow == np.maximum(simulation.memory_bytes - budget, 0).sum()
    if annealer.best_cost is not None:
        best = simulate(graph, annealer.best_schedule())
        assert (best.cost, best.peak_bytes <= budget) == (annealer.best_cost, True)


@pytest.mark.parametrize("percent", [80, 55, 30])
def test_the_count_stays_exact_over_many_chunks_of_stages(percent):
    # 121 stages, so that memory changes over whole chunks of stages at once, above and below the budget.
    graph = training_chain(60, size=1000)
    budget = simulate_stock(graph).peak_bytes * percent // 100
    annealer = Annealer(graph, budget, 2)
    for _ in annealer.cool(4000):
        pass
    simulation = simulate(graph, schedule_of_events(len(graph.nodes), annealer.events()))
    assert annealer.cost == simulation.cost > graph.baseline_cost
    assert annealer.overflow == np.maximum(simulation.memory_bytes - budget, 0).sum()


def test_the_price_of_overflow_adapts_on_large_graphs_too():
    # Every node costs next to nothing but memory is far above the budget: without adapting, overflow stays cheap.
    graph = training_chain(700, size=1000)
    solution = solve(graph, "50%", solver=StageAnnealing(moves_per_node=30), time_limit_s=120)
    assert solution.schedule is not None


def test_evicts_the_one_cheap_value():
    # a is carried over the peak and cheap; b as large and dear: only a is computed twice.
    graph = graph_of(
        {"a": "", "b": "", "c": "", "d": "c", "e": "abd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 1, "e": 1},
        costs={"a": 1, "b": 50, "c": 5, "d": 5, "e": 5},
    )
    solution = solve(graph, 10, solver="stage_annealing", seed=3)
    assert solution.schedule is not None
    assert solution.schedule.order == (1, 2, 3, 0, 4) or solution.schedule.order.count(0) == 2
    assert solution.simulation is not None
    assert solution.simulation.cost == graph.baseline_cost + 1


def test_same_seed_same_schedule_and_seeds_differ_in_path():
    graph = training_chain(20)
    first, again = (solve(graph, 15, solver=StageAnnealing(moves_per_node=400), seed=5) for _ in range(2))
    assert first.schedule == again.schedule
    assert first.status is Status.FEASIBLE


@pytest.mark.parametrize(("num_layers", "budget", "recomputed"), [(8, 12, 4)])
def test_reaches_the_hand_count_on_a_chain(num_layers, budget, recomputed):
    solution = solve(training_chain(num_layers), budget, solver="stage_annealing")
    assert solution.simulation is not None
    assert solution.simulation.cost - training_chain(num_layers).baseline_cost <= recomputed


def test_a_gentle_cooling_keeps_what_is_good():
    # All recomputations are of cheap nodes; a temperature by the mean cost of all nodes leaves more of them than now.
    chain = training_chain(60)
    nodes = tuple(replace(node, cost=1 if index % 3 else 10**6) for index, node in enumerate(chain.nodes))
    annealer = Annealer(replace(chain, nodes=nodes), 24, 0)
    annealer.load((119 - layer - (layer % 3 == 1), layer) for layer in range(59) if layer % 3)
    before = annealer.cost
    assert annealer.overflow == 0
    for _ in annealer.cool(100, gently=True):
        pass
    assert annealer.overflow == 0
    assert annealer.cost <= before


def test_a_cold_move_may_cost_what_the_overflow_it_saves_is_worth():
    # a or b, cost 50, has to go at c; at a temperature near 0 nothing may cost more than it saves.
    graph = graph_of(
        {"a": "", "b": "", "c": "", "d": "c", "e": "abd"},
        sizes={"a": 4, "b": 4, "c": 4, "d": 1, "e": 1},
        costs={"a": 50, "b": 50, "c": 5, "d": 5, "e": 5},
    )

    def evicted(weight: float) -> int:
        """In how many of 40 searches a few moves, each with overflow at this price a byte, recompute something."""
        count = 0
        for seed in range(40):
            annealer = Annealer(graph, 10, seed)
            weights = np.array([weight, weight, weight, 1.0])
            annealer._moves.anneal_stages(annealer._graph, annealer._state, annealer._best, weights, 12, 1e-3, 1e-3)
            count += len(annealer.events()) > 0
        return count

    assert evicted(1000.0) >= 36
    assert evicted(1.0) == 0


def started(graph: Graph, budget: int, options: StageAnnealing, kind: type[Search] = Search) -> AnnealingRun:
    return AnnealingRun(options, kind(Problem(graph, budget, "fixed"), math.inf))


def test_a_first_schedule_is_annealed_for_longer_and_longer():
    graph = training_chain(24)
    run = started(graph, simulate_stock(graph).peak_bytes * 3 // 10, StageAnnealing(round_moves_per_node=1))
    run.find_first()
    assert run.annealer.best_cost is not None
    assert run.rounds > 1
    assert run.round_moves == pytest.approx(SETTINGS.longer_in_vain_ratio**run.rounds * len(graph.nodes))


def test_a_round_merges_what_it_annealed_and_by_lot_what_earlier_ones_did(monkeypatch):
    graph = training_chain(12)
    budget = simulate_stock(graph).peak_bytes * 6 // 10
    run = started(graph, budget, StageAnnealing(round_moves_per_node=100))
    calls = []

    def merge(graph, budget_bytes, pool, start, **_):
        calls.append((set(pool), set(start), [set(events) for events in run.annealed_now]))
        return np.array(sorted(start), dtype=np.int64).reshape(-1, 2), False

    monkeypatch.setattr(stage_annealing, "merge_schedules", merge)
    while len(calls) < 3:
        run.run_round()
    for pool, start, new in calls:
        assert start <= pool
        assert simulate(graph, schedule_of_events(len(graph.nodes), np.array(sorted(start)))).peak_bytes <= budget
        assert all(events <= pool for events in new)
        assert len(new) >= 3
    assert run.pool_size == SETTINGS.first_pool_events * 8 // 27
    monkeypatch.setattr(run, "pool_size", 0)
    run.run_round()
    assert calls[-1][0] == calls[-1][1]


def test_pools_grow_while_the_best_of_them_is_proved(monkeypatch):
    graph = training_chain(12)
    run = started(graph, simulate_stock(graph).peak_bytes * 6 // 10, StageAnnealing())
    monkeypatch.setattr(
        stage_annealing, "merge_schedules", lambda *args, **_: (np.array(sorted(args[3])).reshape(-1, 2), True)
    )
    while not run.annealed_before:
        run.run_round()
    run.pool_size = size = len(run.annealer.best_events())
    run.merge()
    assert run.pool_size == size * 3 // 2 > size


def test_what_merging_finds_is_told():
    graph = training_chain(12)
    budget = simulate_stock(graph).peak_bytes * 6 // 10
    told: list[int | None] = []

    class Heard(Search):
        def send(self, update: Update) -> None:
            told.append(update.cost)

    optimum = solve(graph, budget, solver="block_relaxation")
    assert optimum.schedule is not None
    assert optimum.simulation is not None
    best = set(events_of(optimum.schedule))
    stages = range(len(graph.nodes))
    more = [sorted(best | {(stage, node)}) for stage in stages for node in range(stage) if (stage, node) not in best]
    within = [
        one for one in more if simulate(graph, schedule_of_events(len(stages), np.array(one))).peak_bytes <= budget
    ]
    run = started(graph, budget, StageAnnealing(start=tuple(within[0])), Heard)
    run.annealer.load(())
    assert told == [optimum.simulation.cost + 1]
    run.annealed_now = [best]
    run.merge()
    assert told[-1] == run.annealer.best_cost == optimum.simulation.cost


def test_a_cooling_ends_where_nothing_changes_above_the_budget_and_a_schedule_is_known():
    graph = training_chain(12)
    fixed = replace(graph, nodes=tuple(replace(node, recomputable=False) for node in graph.nodes))
    problem = Problem(fixed, simulate_stock(graph).peak_bytes // 2, "fixed")
    annealer = Annealer(fixed, problem.budget_bytes, 0)

    def moves_made() -> int:
        run = started(fixed, problem.budget_bytes, StageAnnealing(moves_per_node=10**6))
        run.annealer, run.round_moves = annealer, 200_000
        run.cool_once(gently=False)
        return run.moves

    assert moves_made() >= 190_000
    annealer.learn(np.zeros((0, 2), dtype=np.int64), 10 * graph.baseline_cost)
    assert moves_made() < 100_000


def test_ends_after_rounds_in_vain():
    graph = training_chain(12)
    solution = solve(graph, "80%", solver=StageAnnealing(moves_per_node=10**9, patience=3), time_limit_s=60)
    assert solution.simulation is not None
    assert solution.stats["moves"] < 10**5 * len(graph.nodes)
    assert solution.stats["rounds"] >= 3


def test_as_many_rounds_must_be_in_vain_as_it_took_to_the_best():
    run = started(training_chain(12), 1, StageAnnealing(patience=2))
    run.rounds = 9
    assert not run.is_settled()  # no schedule is known
    run.annealer.learn(np.zeros((0, 2), dtype=np.int64), 1)
    settled = []
    for rounds, best_round in ((1, 0), (2, 0), (3, 2), (4, 2), (8, 5), (9, 5), (10, 5)):
        run.rounds, run.best_round = rounds, best_round
        settled.append(run.is_settled())
    assert settled == [False, True, False, True, False, False, True]


def test_a_better_schedule_of_another_search_is_where_it_goes_on():
    graph = training_chain(12)
    budget = simulate_stock(graph).peak_bytes * 6 // 10
    optimum = solve(graph, budget, solver="block_relaxation")
    assert optimum.schedule is not None
    assert optimum.simulation is not None
    bound = graph.baseline_cost + 1
    updates = [Update(0.0, optimum.simulation.cost, budget, bound, rows_of(events_of(optimum.schedule)))]

    class Told(Search):
        def poll(self) -> Update | None:
            return updates.pop() if updates else None

    run = started(graph, budget, StageAnnealing(), Told)
    run.rounds = 5
    run.share()
    assert (run.annealer.best_cost, run.bound, run.best_round) == (optimum.simulation.cost, bound, 5)


def test_a_hot_cooling_finds_good_schedules_where_the_budget_is_tight():
    # At 70 % of rl-g2 the bound is 11.9 %. Coolings that reach the budget from above it end at 22 % or more, if at all.
    graph = published("rl-g2-n250")
    budget = simulate_stock(graph).peak_bytes * 7 // 10
    costs = []
    for seed in range(3):
        annealer = Annealer(graph, budget, seed)
        next(iter(annealer.cool(1)))  # it is the turn of the second heat
        for _ in annealer.cool(100 * len(graph.nodes), steadily=True):
            pass
        costs.append(annealer.best_cost or math.inf)
    assert min(costs) < 1.19 * graph.baseline_cost


def test_some_values_are_recomputed_before_the_stage_that_reads_them():
    graph = training_chain(12)
    annealer = Annealer(graph, simulate_stock(graph).peak_bytes * 7 // 10, 0)
    num_early = num_tries = 0
    for _ in range(300):
        annealer.load(())
        weights = np.array([1e-9, 1e-9, 1e-9, 1.0])
        annealer._moves.anneal_stages(annealer._graph, annealer._state, annealer._best, weights, 1, 1e12, 1e12)
        added = set(map(tuple, annealer.events().tolist()))
        reads = added | {(stage, stage) for stage in range(len(graph.nodes))}
        num_tries += bool(added)
        num_early += any(
            not any((stage, user) in reads for value in graph.nodes[node].outputs for user in graph.users[value])
            for stage, node in added
        )
    assert num_tries > 100
    assert 0.02 * num_tries < num_early < 0.4 * num_tries


def test_the_price_rises_slowly_once_a_schedule_is_known():
    annealer = Annealer(training_chain(12), 1, 0)
    rises: list[float] = []
    annealer._moves = SimpleNamespace(
        anneal_stages=lambda graph, state, best, weights, *_: rises.append(math.log(weights[3]))
    )
    num_moves, coolings = 10**6, SETTINGS.coolings
    for _ in coolings:
        next(iter(annealer.cool(num_moves, steadily=True)))
    assert rises == pytest.approx([0.1] * len(coolings))
    annealer.learn(rows_of([(2, 1)]), 1000)
    for _ in coolings:
        next(iter(annealer.cool(num_moves, steadily=True)))
    assert rises[len(coolings) :] == pytest.approx([rise * 256 / (times * num_moves) for _, rise, times in coolings])


def test_finds_the_input_order_where_the_budget_is_its_peak_and_most_values_are_tiny():
    # The chain's values are left out as tiny, and come to more together than is held at any position.
    chain = training_chain(6)
    large = Node("large", "op", (), (len(chain.values),), 1)
    last = Node("last", "op", (len(chain.values),), (), 1)
    graph = Graph((large, *chain.nodes, last), (*chain.values, Value("large", 10**9)))
    found = solve(graph, simulate_stock(graph).peak_bytes, solver="stage_annealing")
    assert found.simulation.overhead == 0


def test_sums_over_stages_stay_within_64_bits():
    # The stages of the chain hold 1 to 402 values of 10**14 bytes and 402 to 1 again: 1.6 * 10**19 in all.
    graph = training_chain(400, size=10**14)
    assert Annealer(graph, 10**14, seed=0).overflow > 0
