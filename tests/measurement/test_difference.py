"""Where a rewritten step ends is compared with where the stock step ends."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.measurement.difference import StepEnd, find_difference


def end_at(changes: dict[str, list[float]], *, trained: tuple[str, ...], results=()) -> StepEnd:
    """The end of a step that adds `changes` to variables that were 0."""
    after = {name: np.array(change, np.float32) for name, change in changes.items()}
    largest = {name: float(np.abs(value).max()) for name, value in after.items()}
    return StepEnd(
        names=tuple(changes),
        is_trained=tuple(name in trained for name in changes),
        changes=tuple(largest.values()),
        after=tuple(value if largest[name] else None for name, value in after.items()),
        results=tuple(results),
    )


def test_the_difference_is_a_share_of_the_change():
    stock = end_at({"kernel": [4.0, -2.0], "bias": [1.0]}, trained=("kernel", "bias"))
    found = find_difference(end_at({"kernel": [4.0, -3.0], "bias": [1.5]}, trained=("kernel", "bias")), stock)
    assert (found.share, found.name) == (pytest.approx(0.5), "bias")
    assert find_difference(stock, stock).share == 0
    assert find_difference(stock, stock).name == ""


def test_a_change_that_is_rounding_alone_is_compared_with_the_changes_of_other_weights():
    stock = end_at({"kernel": [1.0], "bias": [1e-9]}, trained=("kernel", "bias"))
    found = find_difference(end_at({"kernel": [1.0], "bias": [-1e-9]}, trained=("kernel", "bias")), stock)
    assert found.share == pytest.approx(2e-7, rel=0.01)


def test_what_adam_keeps_of_a_weight_stands_for_it():
    """Adam moves a weight by a full update whichever way rounding turns its gradient."""
    adam = {"adam/dense_kernel_momentum": [0.1], "adam/dense_bias_momentum": [1e-9]}
    stock = end_at({"dense/kernel": [1.0], "dense/bias": [1.0], **adam}, trained=("dense/kernel", "dense/bias"))
    adam["adam/dense_bias_momentum"] = [-1e-9]
    found = end_at({"dense/kernel": [1.0], "dense/bias": [-1.0], **adam}, trained=("dense/kernel", "dense/bias"))
    assert find_difference(found, stock).share == pytest.approx(2e-6, rel=0.01)


def test_a_variable_that_one_step_alone_changes_and_a_result_count():
    stock = end_at({"seed": [1.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(2.0))])
    still = end_at({"seed": [0.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(2.0))])
    assert find_difference(still, stock).name == "seed"
    other = end_at({"seed": [1.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(np.nan))])
    found = find_difference(other, stock)
    assert (found.share, found.name) == (float("inf"), "result loss")
    assert find_difference(other, other).share == 0


def make_step(variable: tf.Variable, update) -> tuple[GraphStep, EmittedFunction]:
    """A step that adds twice its argument to a variable, and one that adds `update` of it."""

    def trace(compute):
        def step(x):
            variable.assign_add(compute(x))
            return {"loss": tf.reduce_sum(x)}

        return tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((1 << 18,)))

    resident = ResidentBytes(parameters=1 << 20, batch=1 << 20)
    x = tf.random.stateless_uniform((1 << 18,), (0, 0), 1.0, 2.0)
    step = GraphStep.of(trace(lambda x: 2.0 * x), name="step", resident=resident, arguments=[x])
    return step, EmittedFunction(trace(update))


def test_a_step_is_compared_with_the_stock_step_when_it_is_measured():
    variable = tf.Variable(tf.ones(1 << 18), name="weight")
    step, same = make_step(variable, lambda x: x + x)
    assert step.measure(step.stock, 4 << 20).difference is None
    assert step.measure(same, 4 << 20).difference.share == 0
    _, wrong = make_step(variable, lambda x: 2.1 * x)
    found = step.measure(wrong, 4 << 20).difference
    assert (found.share, found.name) == (pytest.approx(0.05, rel=0.01), "weight")
    assert not found.is_rounding
    np.testing.assert_array_equal(variable, np.ones(1 << 18))


def test_a_stock_step_that_differs_from_itself_allows_as_much():
    variable = tf.Variable(tf.ones(1 << 18), name="weight")
    stock, noisy = (
        make_step(variable, lambda x, seed=seed: x + 0.1 * tf.random.normal(x.shape, seed=seed))[1] for seed in (1, 2)
    )
    step = GraphStep.of(stock.function, name="step", resident=ResidentBytes(), arguments=[tf.ones(1 << 18)])
    step.measure(step.stock, 4 << 20)
    found = step.measure(noisy, 4 << 20).difference
    assert found.share > 0.1
    assert found.is_rounding


@pytest.mark.measures_memory
def test_where_the_stock_step_ended_is_not_kept_on_the_device():
    variable = tf.Variable(tf.ones(1 << 18), name="weight")
    step, _ = make_step(variable, lambda x: x + x)
    step.measure(step.stock, 4 << 20)
    before = count_bytes_in_use()
    step.measure(step.stock, 4 << 20)
    assert step.reference.stock.after[0].nbytes == 1 << 20
    assert count_bytes_in_use() <= before
