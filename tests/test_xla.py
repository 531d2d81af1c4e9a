import os
import subprocess
import sys
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.extraction import extract
from checkmate_tf.keras_step import step_part
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import solve
from checkmate_tf.training_data import guess_spec
from checkmate_tf.xla_emission import emit_for_xla
from checkmate_tf.xla_graph import xla_graph
from checkmate_tf.xla_memory import compiled, count_ops, materialized_ops, xla_memory

NUM_LAYERS = 8
BATCH_SIZE = 8
CONVOLUTIONS = frozenset({"convolution"})


def conv_chain() -> keras.Model:
    """Convolutions of equal activations, 512 KiB each at a batch of 8, which dwarf the weights."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 16))
    for _ in range(NUM_LAYERS):
        x = keras.layers.Conv2D(16, 3, padding="same", activation="tanh")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=True)
    return model


@cache
def chain_step():
    model = conv_chain()
    spec = guess_spec(model, BATCH_SIZE)
    training_graph = extract(step_part(model).trace(spec))
    module = compiled(training_graph.function, spec.flat)
    return model, spec, module, xla_graph(training_graph, materialized_ops(module))


def rematerialized(budget_share: float, *, tie: str):
    """The chain's step with its activations held to a share of what the stock step holds; and its module."""
    _, spec, _, fused = chain_step()
    resident = fused.graph.resident_bytes
    held = simulate(fused.graph, solve(fused.graph, "100%", solver="retain_all").schedule).peak_bytes - resident
    solution = solve(fused.graph, resident + int(held * budget_share), solver="stage_annealing", time_limit_s=5)
    emitted = emit_for_xla(fused, solution.schedule, tie=tie)
    return solution, emitted, compiled(emitted.function, spec.flat)


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, 32, 32, 16)).astype("f"), generator.normal(size=(rows, 4)).astype("f")


def test_recomputation_survives_compilation_and_saves_memory():
    _, _, stock, fused = chain_step()
    solution, _, module = rematerialized(0.6, tie="select")
    nodes = [fused.graph.nodes[node].op_type for node in solution.schedule.order]
    recomputed = sum("Conv2D" in op for op in nodes) - sum("Conv2D" in node.op_type for node in fused.graph.nodes)
    assert recomputed > 0
    assert count_ops(module, CONVOLUTIONS) == count_ops(stock, CONVOLUTIONS) + recomputed
    assert xla_memory(module).temporary_bytes < 0.8 * xla_memory(stock).temporary_bytes


def test_gradients_equal_the_stock_step():
    _, emitted, _ = rematerialized(0.6, tie="select")
    stock_function = chain_step()[3].training_graph.function
    batch = [tf.constant(array) for array in data(BATCH_SIZE)]
    stock = tf.function(lambda *a: stock_function(*a), jit_compile=True)(*batch)
    rewritten = tf.function(lambda *a: emitted.function(*a), jit_compile=True)(*batch)
    for expected, found in zip(stock["gradients"], rewritten["gradients"], strict=True):
        assert float(tf.reduce_max(abs(found - expected))) <= 1e-5 * float(tf.reduce_max(abs(expected)))


def test_barriers_save_memory_where_the_compiler_keeps_them():
    """XLA:CPU of TensorFlow 2.21 strips barriers too early; without that pass it stands for other backends."""
    flags = {**os.environ, "XLA_FLAGS": "--xla_disable_hlo_passes=cse_barrier_expander"}
    program = (
        "from tests.test_xla import *\n"
        "stock = xla_memory(chain_step()[2]).temporary_bytes\n"
        "module = rematerialized(0.6, tie='barrier')[2]\n"
        "print(xla_memory(module).temporary_bytes / stock)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], env=flags, capture_output=True, text=True, check=True)
    assert float(run.stdout.split()[-1]) < 0.8


def test_fit_under_xla_trains_as_stock_within_the_budget():
    """The last batch is smaller, so that Keras leaves the batch size open."""
    x, y = data(2 * BATCH_SIZE + 3)
    histories, weights = [], []
    for budget in (None, "70%"):
        model = conv_chain()
        if budget:
            plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget=budget, time_limit_s=10)
            assert plan.measured_peak_bytes <= plan.budget_bytes < 0.71 * plan.stock_peak_bytes
            assert plan.recomputed
        with pytest.warns(RuntimeWarning, match="sizes not planned") if budget else tf.name_scope("stock"):
            histories.append(model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0).history)
        weights.append(model.get_weights())
    for name, stock in histories[0].items():
        np.testing.assert_allclose(histories[1][name], stock, rtol=1e-5)
    for expected, found in zip(*weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_a_budget_that_no_compiled_plan_meets_is_refused():
    model = conv_chain()
    step = model.train_step
    with pytest.raises(InfeasibleBudgetError, match="least budget known to work"):
        checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="5%", time_limit_s=5)
    assert model.train_step == step
