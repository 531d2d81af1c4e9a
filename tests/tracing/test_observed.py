"""Sizes that depend on the data: seen in a run on the batch that planning has."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.observed import Observed, observe
from checkmate_tf.tracing.ops import list_ops

ROWS, WIDTH, SELECTED = 512, 128, 384


class Masked(keras.Model):
    """Dense layers on the rows of a batch whose first column is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(6)]
        self.last = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        x = tf.boolean_mask(x, x[:, 0] > 0.0)
        for layer in self.hidden:
            x = layer(x)
        return self.last(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(y_pred**2)


@pytest.fixture
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    built = Masked()
    built.compile("sgd", "mse", jit_compile=False)
    return built


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.ones((ROWS, WIDTH), "float32")
    x[SELECTED:] = 0.0
    return x, np.zeros((ROWS, 1), "float32")


def test_sizes_that_shapes_leave_open_are_those_of_the_batch(model: keras.Model) -> None:
    x = data()[0]
    model(x)

    def loss_gradients(rows: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(rows) ** 2)
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    function = tf.function(loss_gradients, autograph=False).get_concrete_function(tf.TensorSpec((ROWS, WIDTH)))
    open_graph = extract(function, resident_bytes=0)
    seen = extract(function, resident_bytes=0, observe=lambda ops: observe(function, ops, [tf.constant(x)]))
    activation_bytes = 4 * SELECTED * WIDTH
    # What was selected and six activations are held for the gradients.
    assert simulate_stock(open_graph.graph).peak_bytes < 7 * activation_bytes <= simulate_stock(seen.graph).peak_bytes
    products = [node for node in seen.graph.nodes if "MatMul" in node.op_type and not node.is_backward]
    assert seen.graph.values[products[0].outputs[0]].size_bytes == activation_bytes
    # Nodes of these sizes can be timed.
    cut = cut_node_fragments(seen)
    assert all(isinstance(fragment, Fragment) for fragment in cut)
    assert not all(isinstance(fragment, Fragment) for fragment in cut_node_fragments(open_graph))


def test_activations_are_not_held_until_the_gradient_reads_their_open_shapes() -> None:
    """The gradients of products and selections read their shapes, and those of tanh six activations."""
    biases = [tf.Variable(tf.zeros((1, WIDTH))) for _ in range(6)]

    def loss_gradients(rows: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.boolean_mask(rows, rows[:, 0] > 0.0)
            for bias in biases:
                hidden = tf.where(bias < 1.0, 2.0 * tf.tanh(hidden + bias), 0.0)
            loss = tf.reduce_mean(hidden)
        return tape.gradient(loss, biases)

    x = tf.constant(data()[0])
    function = tf.function(loss_gradients, autograph=False).get_concrete_function(tf.TensorSpec((ROWS, WIDTH)))
    training_graph = extract(function, resident_bytes=0, observe=lambda ops: observe(function, ops, [x]))
    rewritten = emit(training_graph, make_retain_all_schedule(training_graph.graph), ordering="chain").function
    shapes = [node for node in training_graph.graph.nodes if node.op_type == "Shape"]
    assert shapes
    assert not any(node.is_backward for node in shapes)
    activation_bytes = 4 * SELECTED * WIDTH
    for peak_bytes in (simulate_stock(training_graph.graph).peak_bytes, record_peak_bytes(rewritten, [x])):
        assert 6 * activation_bytes <= peak_bytes <= 10 * activation_bytes
    assert all(np.allclose(*pair) for pair in zip(function(x), rewritten(x), strict=True))


def test_nothing_runs_where_shapes_and_constants_tell_all_sizes() -> None:
    """As the axes that a gradient is summed over, in a vector of open length."""

    def sum_gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=tf.constant([4]))
            loss = tf.reduce_sum(tf.tanh(x), axis=axes.r1)
        return tape.gradient(loss, x)

    function = tf.function(sum_gradient, autograph=False).get_concrete_function(tf.TensorSpec((4, 4)))
    assert any(not tensor.shape.is_fully_defined() for op in function.graph.get_operations() for tensor in op.outputs)
    assert observe(function, list_ops(function.graph), []) == Observed()


def test_layers_after_a_mask_are_planned(model: keras.Model) -> None:
    plan = checkmate_tf.rematerialize(
        model, data=data(), batch_size=ROWS, budget="85%", options=checkmate_tf.Options(costs="flops"), time_limit_s=5
    )
    assert plan.peak_bytes <= plan.budget_bytes < plan.stock_peak_bytes
    assert plan.predicted_stock_peak_bytes > plan.resident.total + 6 * 4 * SELECTED * WIDTH


class AddsMean(keras.layers.Layer):
    """Adds the mean of the rows whose first column is not 0 to each row."""

    def call(self, x: Any) -> Any:
        return x + tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > 0.0), axis=0)


@pytest.mark.parametrize("options", [{"data": data(), "measure": False}, {"measure": True}, {"measure": False}])
def test_an_operation_whose_size_is_not_known_is_named(options: dict[str, Any]) -> None:
    """Zeros, in the place of data, say nothing of what a mask selects."""
    model = keras.Sequential([keras.Input((WIDTH,)), AddsMean(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.warns(RuntimeWarning, match=r"boolean_mask.* pass data="):
        checkmate_tf.rematerialize(
            model, batch_size=ROWS, budget=10**9, options=checkmate_tf.Options(costs="flops"), progress=False, **options
        )
