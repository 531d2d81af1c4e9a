import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.solvers.base import Status
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.pruning import prune
from checkmate_tf.solvers.search import Search
from checkmate_tf.solvers.solving import solve
from checkmate_tf.solvers.twremat import solver
from checkmate_tf.solvers.twremat import tree_decomposition as decomposing
from checkmate_tf.solvers.twremat.solver import Twremat, in_input_order, separator_tree, twremat_schedule
from checkmate_tf.solvers.twremat.tree_decomposition import (
    path_decomposition,
    tree_decomposition,
    undirected,
    with_spine,
)
from tests.graphs import graphs, published, training_chain
from tests.solvers.test_tree_decomposition import partial_k_tree


def decompositions(graph):
    adjacency = undirected(graph)
    return tree_decomposition(adjacency), path_decomposition(with_spine(adjacency))


def small_treewidth_graph(seed: int, *, num_nodes: int, width: int) -> Graph:
    adjacency = partial_k_tree(random.Random(seed), num_nodes=num_nodes, width=width)
    nodes = tuple(
        Node(f"n{node}", "op", tuple(sorted(other for other in adjacency[node] if other < node)), (node,), 1)
        for node in range(num_nodes)
    )
    return Graph(nodes, tuple(Value(f"n{node}", 1) for node in range(num_nodes)), (num_nodes - 1,))


@settings(deadline=None, max_examples=100)
@given(graphs(max_nodes=14), st.sampled_from([1, 2, 4]))
def test_every_schedule_of_the_family_is_valid(graph, recursion_limit):
    for decomposition in decompositions(graph):
        separators = separator_tree(graph, decomposition)
        schedule = twremat_schedule(graph, separators, recursion_limit=recursion_limit)
        check_schedule(graph, schedule)
        check_schedule(graph, in_input_order(graph, schedule), order="fixed")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 4))
def test_theorem_5_bounds_length_and_memory(seed, num_nodes, width):
    """Levels of recursion: ceil(log2 n) + 1; a level multiplies the length by at most k + 2, and holds one
    separator (k + 1 values), one set of inputs, and its outputs, charged to the caller."""
    graph = small_treewidth_graph(seed, num_nodes=num_nodes, width=width)
    decomposition = tree_decomposition(undirected(graph))
    schedule = twremat_schedule(graph, separator_tree(graph, decomposition))
    levels = math.ceil(math.log2(num_nodes)) + 1
    most_inputs = max(len(node.inputs) for node in graph.nodes)
    num_sinks = sum(not after for after in graph.successors)
    assert len(schedule) <= num_nodes * (decomposition.width + 2) ** levels
    assert simulate(graph, schedule).peak_bytes <= (most_inputs + decomposition.width + 1) * levels + num_sinks


def test_memory_of_a_chain_grows_by_its_logarithm():
    """Doubling the layers adds a level of recursion, so at most a constant to the peak (Theorem 5)."""
    peaks = {}
    for num_layers in (32, 64, 128, 256):
        graph = training_chain(num_layers)
        schedule = twremat_schedule(graph, separator_tree(graph, decompositions(graph)[0]))
        peaks[num_layers] = simulate(graph, schedule).peak_bytes
    assert peaks[256] - peaks[128] <= 6
    assert peaks[256] < simulate_stock(training_chain(256)).peak_bytes / 8


def test_no_recursion_is_no_rematerialization():
    graph = training_chain(9)
    decomposition = tree_decomposition(undirected(graph))
    separators = separator_tree(graph, decomposition)
    whole = twremat_schedule(graph, separators, recursion_limit=len(decomposition.bags))
    assert whole == make_retain_all_schedule(graph)


def test_a_schedule_that_grows_too_long_is_given_up():
    graph = training_chain(64)
    separators = separator_tree(graph, tree_decomposition(undirected(graph)))
    assert twremat_schedule(graph, separators, max_length=130) is None


def test_the_papers_schedule_is_the_same_for_every_budget_that_it_keeps_to():
    graph = training_chain(64)
    whole = twremat_schedule(graph, separator_tree(graph, tree_decomposition(undirected(graph))))
    peak_bytes = simulate(graph, whole).peak_bytes
    for budget_bytes in (peak_bytes, 2 * peak_bytes):
        assert solve(graph, budget_bytes, solver=Twremat.paper(), order="free").schedule == whole
    assert solve(graph, peak_bytes - 1, solver=Twremat.paper(), order="free").status is Status.NOT_FOUND


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_resnet50_within_budget(order):
    """At most the overhead that the paper's successors publish for 90 % (MOCCASIN, Table 2: 0.2 %)."""
    solution = solve(published("resnet50-b256-train"), "90%", solver=Twremat(), order=order)
    assert solution.status is Status.FEASIBLE
    assert solution.simulation.overhead <= 0.002


@settings(deadline=None, max_examples=150)
@given(graphs(max_nodes=12), st.randoms(use_true_random=False), st.integers(0, 4))
def test_pruning_keeps_the_budget_and_never_costs_more(graph, generator, slack):
    schedule = random_schedule(graph, generator)
    before = simulate(graph, schedule)
    pruned = prune(graph, schedule, before.peak_bytes + slack)
    check_schedule(graph, pruned)
    after = simulate(graph, pruned)
    assert after.peak_bytes <= before.peak_bytes + slack
    assert after.cost <= before.cost
    # Nothing is left that could be removed by itself.
    for position, node in enumerate(pruned.order):
        if node in pruned.order[:position]:
            shorter = simulate(graph, Schedule(pruned.order[:position] + pruned.order[position + 1 :]))
            assert shorter.peak_bytes > before.peak_bytes + slack


def test_pruning_without_a_budget_leaves_no_repeat():
    graph = training_chain(20)
    schedule = twremat_schedule(graph, separator_tree(graph, tree_decomposition(undirected(graph))))
    assert len(schedule) > len(graph.nodes)
    assert len(prune(graph, schedule, 10**9)) == len(graph.nodes)


def random_schedule(graph: Graph, generator: random.Random) -> Schedule:
    """Every node in the input order, with random repeats of recomputable nodes between."""
    order = []
    for node in range(len(graph.nodes)):
        order.append(node)
        earlier = [other for other in range(node + 1) if graph.nodes[other].recomputable]
        order += generator.choices(earlier, k=generator.randint(0, 2)) if earlier else []
    return Schedule(tuple(order))


def test_nothing_is_begun_after_the_time_limit(monkeypatch):
    graph = training_chain(20)
    separators = separator_tree(graph, tree_decomposition(undirected(graph)))
    assert twremat_schedule(graph, separators, deadline_s=0.0) is None
    monkeypatch.setattr(solver, "separator_tree", lambda *_: pytest.fail("begun after the time limit"))
    assert Twremat().search(Search(Problem(graph, 14), time_limit_s=0.0)).schedule is None


def test_a_graph_whose_tree_decomposition_takes_too_long_has_no_schedule(monkeypatch):
    """Both tree decompositions are given the deadline of the search."""
    deadlines = []

    def take_too_long(adjacency, *, seed, deadline_s):
        deadlines.append(deadline_s)
        raise TimeoutError

    monkeypatch.setattr("checkmate_tf.solvers.twremat.solver.tree_decomposition", take_too_long)
    search = Search(Problem(training_chain(5), 10**9), time_limit_s=60.0)
    assert Twremat(use_paths=False).search(search).schedule is None
    assert deadlines == [search.deadline_s] * 2


def test_a_path_decomposition_tries_only_the_input_order_after_the_time_limit(monkeypatch):
    adjacency = with_spine(undirected(training_chain(20)))
    monkeypatch.setattr(decomposing, "_greedy_layout", lambda *_: pytest.fail("begun after the time limit"))
    late = path_decomposition(adjacency, deadline_s=0.0)
    assert set().union(*late.bags) == set(adjacency)
