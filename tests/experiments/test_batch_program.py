"""Checkmate's program with the batch as a variable finds the batch that trying every schedule of a tiny graph does."""

import math
from dataclasses import replace

import pytest

from checkmate_tf.graph import Value
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import Status, solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from experiments.checkmate.batch_program import DIVIDED, QUADRATIC, TIGHT, solve_program
from experiments.checkmate.max_batch import most_cost
from tests.graphs import training_chain

# With all retained 14 rows fit; one more forward pass is enough for more, and without that limit still more would fit.
SIZES, COSTS = (5, 9, 5, 1, 6, 7, 1, 5, 4), (3, 3, 1, 1, 1, 4, 1, 4, 4)
FREE_BYTES = 500


@pytest.fixture(scope="module")
def graph():
    chain = training_chain(4)
    nodes = tuple(replace(node, cost=cost) for node, cost in zip(chain.nodes, COSTS, strict=True))
    values = tuple(Value(value.name, size) for value, size in zip(chain.values, SIZES, strict=True))
    return replace(chain, nodes=nodes, values=values, resident_bytes=2)


def largest_batch(graph, most):
    """The first batch, from what the largest node leaves down, with a schedule that costs no more."""
    for batch_size in range(FREE_BYTES // find_peak_bound(graph).peak_bytes, 0, -1):
        found = solve(graph, FREE_BYTES // batch_size, solver=Exhaustive(stages=True))
        if found.status is Status.OPTIMAL and found.simulation.cost <= most:
            return batch_size
    raise AssertionError("not even a row fits")


@pytest.mark.parametrize("method", [QUADRATIC, DIVIDED, TIGHT])
def test_the_program_finds_the_largest_batch_of_a_tiny_graph(graph, method):
    largest = largest_batch(graph, most_cost(graph))
    assert FREE_BYTES // simulate_stock(graph).peak_bytes < largest < largest_batch(graph, math.inf)
    found = solve_program(graph, FREE_BYTES, method, time_limit_s=30)
    assert (found.batch_size, found.at_most) == (largest, largest)
