"""Repeats that wait until they are read."""

from collections import Counter
from dataclasses import replace

import pytest

from checkmate_tf.executors.xla.delays import delay_fused, delay_repeats
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import solve
from tests.graphs import graph_of, training_chain


def test_a_repeat_stays_where_waiting_would_hold_more():
    """Node b is computed again from a, which nothing else reads, before d; only e reads it."""
    reads = {"a": "", "b": "a", "c": "b", "d": "c", "e": "bd"}
    schedule = Schedule((0, 1, 2, 0, 1, 3, 4))
    large, small = (graph_of(reads, sizes={**dict.fromkeys("abcde", 1), "a": size}) for size in (4, 0))
    assert delay_repeats(large, schedule) == schedule
    assert delay_repeats(small, schedule).order == (0, 1, 2, 0, 3, 1, 4)


def test_a_node_that_first_runs_in_the_backward_pass_waits_like_a_repeat():
    """Node b runs after c and d, which follow it in the stock step; only f reads it."""
    reads = {"a": "", "b": "a", "c": "a", "d": "c", "e": "d", "f": "be"}
    graph = graph_of(reads, sizes={**dict.fromkeys("bcdef", 1), "a": 0})
    assert delay_repeats(graph, Schedule((0, 2, 3, 1, 4, 5))).order == (0, 2, 3, 4, 1, 5)
    assert delay_repeats(graph, Schedule((0, 1, 2, 3, 4, 5))).order == (0, 1, 2, 3, 4, 5)


def delay(order, *, between, kernels, sizes=None, small_bytes=1):
    """Nodes s and u read the gradient g; a is computed again for m, and b for n. `between` are s and u in order."""
    reads = {"a": "", "b": "a", "g": "b", **dict.fromkeys(between, "g"), "m": "au", "n": "bm"}
    graph = graph_of(reads, sizes={**dict.fromkeys("abgumn", 8), "s": 1, **(sizes or {})})
    nodes = tuple(replace(node, is_backward=node.name not in "ab") for node in graph.nodes)
    kernels_of = [frozenset({kernels.get(name, name)} - {""}) for name in reads]
    return delay_fused(replace(graph, nodes=nodes), Schedule(order), kernels_of, small_bytes).order


def test_a_small_sum_waits_for_recomputation_before_a_node_of_the_same_kernel():
    order, one_kernel = (0, 1, 2, 3, 4, 0, 5, 1, 6), {"s": "m"}
    assert delay(order, between="us", kernels=one_kernel) == (0, 1, 2, 3, 0, 4, 5, 1, 6)
    assert delay(order, between="us", kernels={}) == order, "two kernels in any case"
    assert delay(order, between="us", kernels=one_kernel, small_bytes=0) == order, "it would be held"
    two_runs = (0, 1, 2, 3, 1, 4, 0, 5, 6)
    assert delay(two_runs, between="us", kernels=one_kernel) == two_runs, "two runs would become one"


def test_a_node_that_its_readers_compute_waits_for_recomputation_unless_more_is_held():
    order, within = (0, 1, 2, 3, 4, 0, 5, 1, 6), {"u": ""}
    assert delay(order, between="su", kernels=within) == (0, 1, 2, 3, 0, 4, 5, 1, 6)
    assert delay(order, between="su", kernels={}) == order, "the stock step writes it"
    assert delay(order, between="su", kernels=within, sizes={"g": 100, "a": 200}) == order, "g would be held beside a"


def test_a_node_stays_before_those_that_read_it():
    """Node w first runs late, behind s, and reads u."""
    reads = {"a": "", "b": "a", "g": "b", "u": "g", "w": "u", "s": "g", "m": "w"}
    graph = graph_of(reads, sizes={**dict.fromkeys("abgwm", 8), **dict.fromkeys("us", 1)})
    nodes = tuple(replace(node, is_backward=True) for node in graph.nodes)
    kernels = [frozenset({"m": "s", "u": "s"}.get(name, name)) for name in reads]
    moved = delay_fused(replace(graph, nodes=nodes), Schedule((0, 1, 2, 3, 5, 4, 6)), kernels, 1)
    assert moved.order == (0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("budget", ["40%", "60%"])
def test_the_same_nodes_run_within_the_same_peak(budget):
    graph = training_chain(16)
    schedule = solve(graph, budget, solver="checkmate_lp", time_limit_s=20).schedule
    delayed = delay_repeats(graph, schedule)
    check_schedule(graph, delayed)
    before, after = simulate(graph, schedule), simulate(graph, delayed)
    assert Counter(delayed.order) == Counter(schedule.order)
    assert after.cost == before.cost
    assert after.peak_bytes <= before.peak_bytes
    assert after.memory_bytes.sum() <= before.memory_bytes.sum()
