"""Repeats that wait until they are read."""

from collections import Counter

import pytest

from checkmate_tf.executors.xla.delays import delay_repeats, delay_sums
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


def test_a_small_sum_waits_for_recomputation_before_a_node_of_the_same_kernel():
    """Node s sums the gradient g, which m reads, too; a is computed again for m, and b for n."""
    reads = {"a": "", "b": "a", "g": "b", "s": "g", "m": "ag", "n": "bm"}
    graph = graph_of(reads, sizes={**dict.fromkeys("abgmn", 8), "s": 1})
    one = [frozenset({number}) for number in (0, 1, 2, 3, 3, 4)]

    def delay(order, kernels=one, small_bytes=1):
        return delay_sums(graph, Schedule(order), kernels, small_bytes).order

    assert delay((0, 1, 2, 3, 0, 4, 1, 5)) == (0, 1, 2, 0, 3, 4, 1, 5)
    apart = [frozenset({number}) for number in range(6)]
    assert delay((0, 1, 2, 3, 0, 4, 1, 5), apart) == (0, 1, 2, 3, 0, 4, 1, 5), "two kernels in any case"
    assert delay((0, 1, 2, 3, 0, 4, 1, 5), small_bytes=0) == (0, 1, 2, 3, 0, 4, 1, 5), "it would be held"
    assert delay((0, 1, 2, 1, 3, 0, 4, 5)) == (0, 1, 2, 1, 3, 0, 4, 5), "two runs would become one"


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
