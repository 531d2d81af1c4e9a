"""The heuristics of Checkmate's Table 1, by hand on linear networks and small graphs with a skip connection."""

from dataclasses import replace
from functools import cache

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import to_stages
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.solvers import Search, get_solver, solve
from checkmate_tf.solvers.checkpointing import policy
from checkmate_tf.solvers.checkpointing.griewank import repeated_steps
from checkmate_tf.solvers.checkpointing.policy import (
    articulation_candidates,
    cheapest_schedule,
    every_sqrt,
    find_articulation_points,
    greedy,
    is_linear,
    linear_candidates,
    retain_matrix,
)
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.stages import cheapest_recompute, schedule_of_checkpoints
from tests.graphs import graph_of, training_chain

BASELINES = ("chen_sqrt", "chen_greedy", "ap_sqrt", "ap_greedy", "linearized_sqrt", "linearized_greedy", "griewank")


def peak(graph: Graph) -> int:
    return simulate_stock(graph).peak_bytes


def residual_network() -> Graph:
    """Forward 0 -> 1 -> 2, 3 = 1 + 2 (skip), 4; loss 5; a gradient for each layer."""
    reads = {0: (), 1: (0,), 2: (1,), 3: (1, 2), 4: (3,), 5: (4,)}
    nodes = [Node(f"f{i}", "forward", reads[i], (i,), 1) for i in range(6)]
    for i in reversed(range(5)):
        gradients = (5,) if i == 4 else tuple(6 + 4 - j for j in range(i + 1, 5) if i in reads[j])
        nodes.append(Node(f"b{i}", "backward", (*reads[i], i, *gradients), (len(nodes),), 1, is_backward=True))
    return Graph(tuple(nodes), tuple(Value(node.name, 1) for node in nodes))


def test_chen_sqrt_on_nine_layers_by_hand():
    # Nodes 0 to 8 and the loss 9. Of the inner nodes 1 to 8 every third: 3 and 6. Dropped: 0, 1, 2 and 4, 5, each
    # computed once more; 7, 8 and the loss are the last segment.
    graph = training_chain(9)
    assert every_sqrt(linear_candidates(graph)) == (3, 6)
    schedule = schedule_of_checkpoints(graph, retain_matrix(graph, (3, 6)))
    assert len(schedule) == len(graph.nodes) + 5
    stages = to_stages(graph, schedule).recompute
    assert [node for node in range(10) if stages[node + 1 :, node].any()] == [0, 1, 2, 4, 5]
    # b6 is the first to read 5; b3 the first to read 2.
    assert stages[10 + 8 - 6, [4, 5]].all()
    assert stages[10 + 8 - 3, [0, 1, 2]].all()


def test_all_generalizations_are_chens_on_a_linear_network():
    graph = training_chain(9)
    for budget in range(4, peak(graph)):
        for kind in ("sqrt", "greedy"):
            solutions = [solve(graph, budget, solver=f"{form}_{kind}") for form in ("chen", "ap", "linearized")]
            assert len({solution.schedule for solution in solutions}) == 1


def test_greedy_ends_a_segment_once_it_exceeds_b():
    # Unit values: with b = 2 a segment ends with its third node.
    graph = training_chain(9)
    assert greedy(graph, linear_candidates(graph), 2) == (2, 5, 8)


def test_greedy_counts_the_bytes_of_all_nodes_since_the_last_checkpoint():
    # Layers 0 to 5 of 1, 4, 0, 2, 2 and 0 bytes, 1, 2, 4 and 5 may be checkpoints. With b = 3: after 1 there are 1 + 4
    # bytes, after 4 there are 0 + 2 + 2. With b = 4 the second segment has no more than b. With b = 0: 5 adds nothing.
    graph = graph_of(
        {"a": "", "b": "a", "c": "b", "d": "c", "e": "d", "f": "e"},
        sizes={"a": 1, "b": 4, "c": 0, "d": 2, "e": 2, "f": 0},
    )
    assert greedy(graph, (1, 2, 4, 5), 3) == (1, 4)
    assert greedy(graph, (1, 2, 4, 5), 4) == (1,)
    assert greedy(graph, (1, 2, 4, 5), 0) == (1, 4)
    assert greedy(graph, (), 0) == ()


def test_no_matrix_is_made_that_would_be_too_large(monkeypatch):
    graph = training_chain(9)
    problem = Problem(graph, peak(graph) - 1, "fixed")
    needed_bytes = policy.SETTINGS.cell_bytes * len(graph.nodes) * len(graph.values)
    search = Search(problem, 60.0, memory_limit_bytes=needed_bytes)
    assert get_solver("ap_greedy").search(search).stats["schedules_tried"] > 1
    monkeypatch.setattr(policy, "retain_matrix", None)
    with pytest.raises(MemoryError, match="would need"):
        get_solver("ap_greedy").search(replace(search, memory_limit_bytes=needed_bytes - 1))


def test_articulation_points_are_the_ends_of_a_residual_block():
    graph = residual_network()
    assert articulation_candidates(graph) == (1, 3, 4)
    assert linear_candidates(graph) == (1, 2, 3, 4)
    assert not is_linear(graph)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=24))
def test_articulation_points_are_those_of_networkx(edges):
    graph = nx.Graph([edge for edge in edges if edge[0] != edge[1]])
    neighbours = {node: list(graph.neighbors(node)) for node in graph}
    assert find_articulation_points(neighbours) == set(nx.articulation_points(graph))


def test_checkpoint_in_a_residual_network_by_hand():
    # Checkpoint 3: 0, 1, 2 are dropped after 3. b3 reads 1, 2: all three are computed again, once.
    graph = residual_network()
    schedule = schedule_of_checkpoints(graph, retain_matrix(graph, (3,)))
    assert schedule.order == (0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10)


@pytest.mark.parametrize("name", ["chen_sqrt", "chen_greedy", "griewank"])
def test_a_heuristic_for_paths_only_retains_everything_elsewhere(name):
    graph = residual_network()
    assert solve(graph, peak(graph), solver=name).simulation.overhead == 0
    assert solve(graph, peak(graph) - 1, solver=name).schedule is None


@cache
def least_repeats(num_steps: int, num_snapshots: int) -> int:
    """By dynamic programming: the first snapshot is at every place."""
    if num_steps <= 1:
        return 0
    if num_snapshots == 0:
        return sum(range(num_steps))
    return min(
        m + least_repeats(num_steps - m, num_snapshots - 1) + least_repeats(m, num_snapshots)
        for m in range(1, num_steps)
    )


@pytest.mark.parametrize("num_snapshots", range(5))
def test_revolve_repeats_as_little_as_dynamic_programming(num_snapshots):
    for num_steps in range(1, 25):
        assert repeated_steps(num_steps, num_snapshots) == least_repeats(num_steps, num_snapshots)


def test_revolve_schedules_repeat_what_the_formula_says():
    # 12 layers. The budget of b_i: the values of steps i - 1 and i, two gradients, and one for each snapshot.
    graph = training_chain(12)
    for num_snapshots in range(1, 6):
        solution = solve(graph, 4 + num_snapshots, solver="griewank")
        assert solution.simulation.cost - graph.baseline_cost <= repeated_steps(12, num_snapshots)


@pytest.mark.parametrize("name", BASELINES)
def test_each_heuristic_trades_cost_for_memory(name):
    graph = training_chain(16)
    solution = solve(graph, peak(graph) * 3 // 4, solver=name)
    assert 0 < solution.simulation.overhead < 1


@pytest.mark.parametrize("scarce", ["memory", "time"])
def test_a_schedule_that_would_take_too_much_to_simulate_is_passed_over(monkeypatch, scarce):
    graph = training_chain(20)
    search = Search(Problem(graph, peak(graph) - 1, "fixed"), 60.0, memory_limit_bytes=10**6)
    assert get_solver("linearized_sqrt").search(search).stats["schedules_tried"] == 2
    costly = {"memory": {"event_bytes": 10**5}, "time": {"event_s": 10.0}}[scarce]
    monkeypatch.setattr(policy, "SETTINGS", replace(policy.SETTINGS, **costly))
    assert get_solver("linearized_sqrt").search(search).stats["schedules_tried"] == 1


def test_no_matrix_is_made_that_would_take_too_long(monkeypatch):
    graph = training_chain(20)
    search = Search(Problem(graph, peak(graph) - 1, "fixed"), 60.0)
    monkeypatch.setattr(policy, "SETTINGS", replace(policy.SETTINGS, cell_s=1.0))
    monkeypatch.setattr(policy, "retain_matrix", None)
    assert get_solver("ap_greedy").search(search).stats["schedules_tried"] == 1


def test_recomputations_are_not_looked_for_beyond_the_time_limit():
    graph = training_chain(4)
    with pytest.raises(TimeoutError, match="only 0 of 9 nodes were placed within the time limit"):
        cheapest_recompute(graph, retain_matrix(graph, ()), deadline_s=0.0)


@pytest.mark.parametrize("name", ["chen_greedy", "ap_greedy", "linearized_greedy", "griewank"])
def test_no_schedule_is_begun_after_the_time_limit(name: str) -> None:
    problem = Problem(training_chain(20), 5)
    tried = [get_solver(name).search(Search(problem, limit_s)).stats["schedules_tried"] for limit_s in (0, 60)]
    assert tried[0] == 1
    assert tried[1] > 2


def test_no_schedule_is_made_after_the_time_limit():
    def schedules():
        yield make_retain_all_schedule(graph)
        raise AssertionError("a schedule is made after the time limit")

    graph = training_chain(4)
    assert cheapest_schedule(Search(Problem(graph, 100, "fixed"), time_limit_s=0.0), schedules()).schedule is not None
