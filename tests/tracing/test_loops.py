"""While loops: what their lists hold, and loops that run a second time in the backward pass."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.loops import WHILE_TYPES, count_iterations, count_list_bytes
from experiments.training_steps import batch_of, run, trace

NUM_STEPS, UNITS, BATCH_SIZE = 16, 64, 32
STATE_BYTES = BATCH_SIZE * UNITS * 4


@pytest.fixture(scope="module")
def step() -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    inputs = keras.Input((NUM_STEPS, UNITS))
    hidden = inputs
    for _ in range(3):
        hidden = layers.LSTM(UNITS, return_sequences=True)(hidden)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))
    yield cost_training_graph(extract(trace(model, batch_size=BATCH_SIZE), resident_bytes=0), "flops")
    del model  # a traced function does not keep its variables


def test_lists_of_an_lstm(step: Any) -> None:
    """Of each time step: the rows, the two states, four gates and the new state's tanh; no weights."""
    loop = next(op for op in step.ops.ops if op.type in WHILE_TYPES)
    assert count_iterations(loop) == NUM_STEPS
    sizes = [count_list_bytes(tensor) for tensor in loop.outputs if tensor.dtype == tf.variant]
    assert None not in sizes
    kept = [size for size in sizes if size and size >= NUM_STEPS * STATE_BYTES]
    assert kept == [NUM_STEPS * STATE_BYTES] * 9  # the states returned, and eight lists for the gradient


def test_a_loop_costs_as_much_as_its_iterations(step: Any) -> None:
    """Two products of [batch, units] and [units, 4 units] in each."""
    node = next(node for node in step.graph.nodes if node.op_type == "While")
    products = NUM_STEPS * 2 * 2 * BATCH_SIZE * UNITS * 4 * UNITS
    assert products <= node.cost <= 1.2 * products
    assert not node.is_backward


@pytest.mark.measures_memory
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_loops_are_computed_again_within_the_budget(step: Any, share: float) -> None:
    graph = step.graph
    budget_bytes = int(share * simulate_stock(graph).peak_bytes)
    solution = solve(graph, budget_bytes, time_limit_s=20)
    assert solution.schedule is not None
    order = solution.schedule.order
    repeated = {graph.nodes[node].op_type for node in order if order.count(node) > 1}
    assert ("While" in repeated) == (share < 1)
    emitted = emit(step, solution.schedule, ordering="chain").function
    batch = batch_of(step.function)
    with busy_processes():
        recorded = [record_peak_bytes(emitted, batch, warm=True) for _ in range(4)]
    # Iterations one at a time, and nothing beside a loop: the same peak in each run, but for what the threads' clocks
    # make of frees. First runs, which prepare kernels, overlap more of what lies side by side within an iteration.
    assert max(recorded) <= 1.1 * min(recorded)
    assert max(recorded) <= budget_bytes
    assert max(recorded) >= 0.7 * solution.simulation.peak_bytes
    for found, expected in zip(run(emitted, batch), run(step.function, batch), strict=True):
        np.testing.assert_array_equal(found, expected)


@contextmanager
def busy_processes() -> Iterator[None]:
    """Threads of this process are interrupted at any place, and for as long as a loop of this test takes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_what_follows_a_loop_waits_for_all_of_its_results(step: Any) -> None:
    """Each result of a loop is there before the others are let go: to read one is not to wait for the loop."""
    emitted = emit(step, make_retain_all_schedule(step.graph), ordering="chain").function
    nodes = {node.name: node for node in emitted.graph.as_graph_def().node}
    loops = [op.name for op in step.ops.ops if op.type in WHILE_TYPES]
    readers = [node for node in nodes.values() if any(source.partition(":")[0] in loops for source in node.input)]
    followers = [node for node in readers if node.op == "TensorListStack"]
    assert len(followers) >= 3  # one a layer, of the rows that it returns
    for node in followers:
        ends = [nodes[source[1:]] for source in node.input if source.startswith("^checkmate/before_position")]
        waited = {source[1:] for end in ends for source in end.input}
        assert {source.partition(":")[0] for source in node.input}.intersection(loops) <= waited


def test_a_list_of_open_length_is_unknown_and_runs_once() -> None:
    def body(x: tf.Tensor, count: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.while_loop(lambda i, _: i < count, lambda i, y: (i + 1, tf.tanh(y)), (0, x))[1])
        return tape.gradient(loss, x)

    specs = (tf.TensorSpec((8, 8)), tf.TensorSpec((), tf.int32))
    training_graph = extract(tf.function(body, autograph=False).get_concrete_function(*specs))
    (loop,) = [n for n in training_graph.graph.nodes if "While" in n.op_type and not n.is_backward]
    assert not loop.recomputable
