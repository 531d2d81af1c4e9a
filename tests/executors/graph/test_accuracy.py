"""Predictions against measured steps, and the figures and the command that show them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from checkmate_tf.executors.graph.accuracy import list_requests, measure_accuracy
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.profiling.pool import simulate_pool_peak_bytes
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock
from checkmate_tf.tracing.extraction import extract, list_argument_sizes, list_captured_sizes

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def chain():
    """Twelve layers y = tanh(x w) of 2 MiB activations each."""
    weights = [tf.Variable(tf.random.stateless_normal([64, 64], (0, i)) * 0.1) for i in range(12)]

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(tf.linalg.matmul(x, weight))
            loss = tf.reduce_mean(tf.square(x))
        return loss, tape.gradient(loss, weights)

    yield extract(tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([8192, 64])), name="chain")
    assert len(weights) == 12  # They have outlived the tests: a step dies with its variables.


def recomputing(graph: Graph) -> Schedule:
    """The middle third of the forward pass once more, before the backward pass."""
    first = next(index for index, node in enumerate(graph.nodes) if node.is_backward)
    again = [index for index in range(first // 3, 2 * first // 3) if graph.nodes[index].recomputable]
    return Schedule.of([*range(first), *again, *range(first, len(graph.nodes))])


@pytest.mark.measures_memory
def test_predicted_peak_is_what_the_runtime_records(chain):
    graph = cost_training_graph(chain, "flops")
    argument = tf.random.stateless_normal([8192, 64], (1, 2))
    schedules = {"in order": make_retain_all_schedule(graph.graph), "again": recomputing(graph.graph)}
    accuracy = measure_accuracy(graph, schedules, [argument], rounds=2)
    for step in accuracy.steps:
        # Within one activation.
        assert step.predicted_peak_bytes == pytest.approx(step.recorded_peak_bytes, abs=2 * MEBIBYTE + 4096)
        assert step.predicted_s is None
        assert len(step.step_times_s) == 2
    base, again = accuracy.steps
    assert again.num_positions > base.num_positions
    assert accuracy.find_measured_overhead(base) == 0
    assert "again" in accuracy.tabulate_steps()
    assert [step["name"] for step in json.loads(json.dumps(accuracy.list_figures()))["steps"]] == ["in order", "again"]


def test_overhead_is_predicted_from_costs_in_nanoseconds(chain):
    graph = cost_training_graph(chain, "unit")
    timed = replace(graph.graph, cost_unit="ns")
    schedule = recomputing(timed)
    schedules = {"in order": make_retain_all_schedule(timed), "again": schedule}
    accuracy = measure_accuracy(replace(graph, graph=timed), schedules, [tf.zeros([8192, 64])], rounds=1)
    assert accuracy.predict_overhead(accuracy.steps[1]) == pytest.approx(len(schedule) / len(timed.nodes) - 1)


def test_requests_follow_retention_workspace_and_storage_taken_over():
    values = tuple(Value(name, MEBIBYTE) for name in "abc")
    nodes = (
        Node("a", "op", (), (0,), 1),
        Node("b", "op", (0,), (1,), 1, inplace=True),
        Node("c", "op", (1,), (2,), 1, workspace_bytes=2 * MEBIBYTE),
    )
    graph = Graph(nodes, values, outputs=(2,))
    schedule = make_retain_all_schedule(graph)
    workspace = [node.workspace_bytes for node in nodes]
    asked = [(request.size_bytes or 0) for request in list_requests(graph, schedule, workspace)]
    # b is written where a was; the workspace of c, c, and b at once: 2 + 1 + 1.
    assert [size for size in asked if size] == [MEBIBYTE, 2 * MEBIBYTE, MEBIBYTE]
    assert simulate(graph, schedule).peak_bytes == 4 * MEBIBYTE
    assert simulate_pool_peak_bytes(list_requests(graph, schedule, workspace)) >= 4 * MEBIBYTE


def test_sizes_of_variables_and_arguments(chain):
    assert list_captured_sizes(chain.function) == [64 * 64 * 4] * 12
    assert list_argument_sizes(chain.function) == [8192 * 64 * 4]


def test_variables_come_in_the_order_of_creation():
    """Which decides where they lie in the pool; that of use may differ, as with the shortcuts of a ResNet."""
    variables = [tf.Variable(tf.zeros([size])) for size in (1, 2, 3)]
    step = tf.function(lambda: tf.concat([variables[i] for i in (2, 0, 1, 2)], 0), autograph=False)
    assert list_captured_sizes(step.get_concrete_function()) == [4, 8, 12]


@pytest.mark.measures_memory
def test_the_gradient_of_a_loss_is_written_over_its_logits():
    weight = tf.Variable(tf.random.stateless_normal([16, 1024], (0, 0)))

    def step(x, labels):
        with tf.GradientTape() as tape:
            logits = tf.linalg.matmul(x, weight)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return loss, tape.gradient(loss, logits)

    specs = tf.TensorSpec([1024, 16]), tf.TensorSpec([1024], tf.int32)
    graph = extract(tf.function(step, autograph=False).get_concrete_function(*specs))
    predicted = simulate_stock(graph.graph).peak_bytes - graph.graph.resident_bytes
    arguments = [tf.zeros([1024, 16]), tf.zeros([1024], tf.int32)]
    # 4 MiB of logits, once.
    assert 4 * MEBIBYTE < predicted < 5 * MEBIBYTE
    assert record_peak_bytes(graph.function, arguments) == pytest.approx(predicted, rel=0.03)


@pytest.mark.measures_memory
def test_no_gradient_is_computed_in_the_forward_pass():
    """Grappler would multiply the softmax by the constant, in the forward pass, instead of the gradient."""
    weights = [tf.Variable(tf.random.stateless_normal([64, 64], (0, i))) for i in range(6)]

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.softmax(tf.linalg.matmul(x, weight) * 0.125)
            loss = tf.reduce_mean(tf.square(x))
        return loss, tape.gradient(loss, weights)

    graph = extract(tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([8192, 64])))
    emitted = emit(graph, make_retain_all_schedule(graph.graph), ordering="chain")
    predicted = simulate_stock(graph.graph).peak_bytes - graph.graph.resident_bytes
    # 8 tensors of 2 MiB; one more may be there within a node, and five where the gradients came early.
    assert predicted == pytest.approx(16 * MEBIBYTE, rel=0.01)
    assert record_peak_bytes(emitted.function, [tf.zeros([8192, 64])]) < predicted + 3 * MEBIBYTE


@pytest.mark.measures_memory
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scratch_of_kernels_in_16_bits_is_in_the_predicted_peak(dtype: str, tmp_path: Path) -> None:
    """Where the processor has no such instructions, TensorFlow computes in 32 bits, in memory of its own."""
    weights = [tf.Variable(tf.random.stateless_normal([3, 3, 16, 16], (0, i)) * 0.1) for i in range(4)]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.cast(x, dtype)
            for weight in weights:
                hidden = tf.nn.relu(tf.nn.conv2d(hidden, tf.cast(weight, dtype), 1, "SAME"))
            loss = tf.reduce_mean(tf.cast(hidden, tf.float32))
        return loss, tape.gradient(loss, weights)

    traced = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([8, 64, 64, 16]))
    graph = cost_training_graph(extract(traced), "measured", cache_path=tmp_path / "profiles.sqlite")
    schedules = {"in order": make_retain_all_schedule(graph.graph), "again": recomputing(graph.graph)}
    for schedule in schedules.values():
        emitted = emit(graph, schedule, ordering="chain")
        predicted = simulate(graph.graph, schedule).peak_bytes - graph.graph.resident_bytes
        recorded = record_peak_bytes(emitted.function, [tf.ones([8, 64, 64, 16])])
        assert recorded == pytest.approx(predicted, rel=0.03)
