"""Where a rewritten step ends is compared with where the stock step ends."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.measurement.difference import StepEnd, StepShares, StockReference, compare_ends, nudge


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
    found = compare_ends(end_at({"kernel": [4.0, -3.0], "bias": [1.5]}, trained=("kernel", "bias")), stock)
    assert found.largest == (pytest.approx(0.5), "bias")
    assert compare_ends(stock, stock).largest == (0.0, "")


def test_a_change_that_is_rounding_alone_is_compared_with_the_changes_of_other_weights():
    stock = end_at({"kernel": [1.0], "bias": [1e-9]}, trained=("kernel", "bias"))
    found = compare_ends(end_at({"kernel": [1.0], "bias": [-1e-9]}, trained=("kernel", "bias")), stock)
    assert found.largest[0] == pytest.approx(2e-7, rel=0.01)


def end_of_adam(bias: float, kept: float) -> StepEnd:
    """The end of a step that moves a kernel by 1, whose gradient is 0.1, and a bias."""
    changes = {"dense/kernel": [1.0], "dense/bias": [bias], "adam/dense_kernel_momentum": [0.1]}
    changes["adam/dense_bias_momentum"] = [kept]
    return end_at(changes, trained=("dense/kernel", "dense/bias"))


def test_what_adam_keeps_of_a_weight_stands_for_it():
    """Adam moves a weight by a full update whichever way rounding turns its gradient."""
    found = compare_ends(end_of_adam(-1.0, -1e-9), end_of_adam(1.0, 1e-9))
    assert found.largest[0] == pytest.approx(2e-6, rel=0.01)
    assert found.updates == ((0.0, "dense/kernel"), (pytest.approx(2.0, rel=1e-6), "dense/bias"))


def test_a_weight_is_named_whose_update_rounding_decides():
    reference = StockReference(end_of_adam(1.0, 1e-9))
    found = reference.compare(end_of_adam(-1.0, -1e-9), [tf.float32])
    assert found.is_rounding
    assert [(one.name, one.is_rounding) for one in found.updates] == [("dense/bias", False)]
    reference.note_nudged(end_of_adam(0.5, 5e-10))
    (update,) = reference.compare(end_of_adam(-1.0, -1e-9), [tf.float32]).updates
    assert (update.name, update.share, update.stock_share) == ("dense/bias", pytest.approx(2.0), pytest.approx(0.5))
    assert update.is_rounding
    assert reference.compare(end_of_adam(1.0001, 1e-9), [tf.float32]).updates == ()


def test_a_step_may_differ_by_what_the_nudged_stock_step_differs_by():
    stock = end_at({"kernel": [1.0]}, trained=("kernel",))
    reference = StockReference(stock, nudged=StepShares(((0.1, "kernel"),), ()))
    assert reference.compare(end_at({"kernel": [1.15]}, trained=("kernel",)), [tf.float32]).is_rounding
    assert not reference.compare(end_at({"kernel": [1.3]}, trained=("kernel",)), [tf.float32]).is_rounding


def test_numbers_are_nudged_by_their_last_bit():
    values = np.array([1.0, -1.0, 0.0, np.inf, -np.inf, np.nan], np.float32)
    expected = np.array([1 - 2**-24, -1 + 2**-24, 0.0, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(nudge(values), expected)
    np.testing.assert_array_equal(nudge(np.array([3])), [3])
    halves = tf.constant([1.0, -3.0], tf.bfloat16).numpy()
    np.testing.assert_array_equal(nudge(halves).astype(np.float32), [1 - 2**-8, -3 + 2**-6])


def test_a_nudged_step_ends_where_it_would_from_the_origin():
    variable = tf.Variable([3.0, -5.0])
    origin = variable.numpy()
    before = nudge(origin)
    variable.assign(before + np.float32(1.0))
    end = StepEnd.of([variable], [before], {}, origin=[origin])
    np.testing.assert_allclose(end.after[0], [4.0, -4.0], rtol=0, atol=2**-23)
    assert end.changes == (1.0,)


def test_a_variable_that_one_step_alone_changes_and_a_result_count():
    stock = end_at({"seed": [1.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(2.0))])
    still = end_at({"seed": [0.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(2.0))])
    assert compare_ends(still, stock).largest[1] == "seed"
    other = end_at({"seed": [1.0], "kernel": [1.0]}, trained=("kernel",), results=[("loss", np.float32(np.nan))])
    assert compare_ends(other, stock).largest == (float("inf"), "result loss")
    assert compare_ends(other, other).largest[0] == 0


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


def find_updates(layers, batch: tuple[np.ndarray, np.ndarray], optimizer) -> tuple[list[str], list[str]]:
    """Compares a model's stock step with the same step on its batch in reverse, which adds the same terms in another
    order. Lists the weights whose updates differ, and of these the ones that rounding decides."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(batch[0].shape[1:]), *layers])
    optimizer.build(model.trainable_variables)

    def trace(order):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x[::order], training=True) - y[::order]))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return {"loss": loss}

        specs = [tf.TensorSpec(each.shape) for each in batch]
        return tf.function(step, autograph=False).get_concrete_function(*specs)

    resident = ResidentBytes(parameters=1 << 20, batch=1 << 20)
    step = GraphStep.of(trace(1), name="step", resident=resident, arguments=[tf.constant(each) for each in batch])
    step.measure(step.stock, 4 << 20)
    found = step.measure(EmittedFunction(trace(-1)), 4 << 20).difference
    assert found.is_rounding
    return [one.name for one in found.updates], [one.name for one in found.updates if one.is_rounding]


def make_batch(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1).normal
    return draw(size=shape).astype("float32"), draw(size=(*shape[:-1], 1)).astype("float32")


def test_the_update_of_a_key_bias_under_adam_is_decided_by_rounding():
    """A bias of the keys adds the same to all scores of a query, which the softmax takes away again."""

    class Attention(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.attend = keras.layers.MultiHeadAttention(2, 8)

        def build(self, shape):
            self.attend.build(shape, shape)

        def call(self, x):
            return self.attend(x, x)

    layers = [Attention(), keras.layers.Dense(1)]
    updates, decided = find_updates(layers, make_batch(16, 12, 16), keras.optimizers.Adam(1e-3))
    assert any("key/bias" in name for name in updates)
    assert decided == updates


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "nadam", "sgd"])
def test_the_update_of_a_bias_before_a_batch_normalization_is_decided_by_rounding(optimizer):
    layers = [keras.layers.Dense(8, name="before"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    updates, decided = find_updates(layers, make_batch(64, 16), keras.optimizers.get(optimizer))
    assert decided == updates
    assert any("before/bias" in name for name in updates) == (optimizer != "sgd")


@pytest.mark.measures_memory
def test_where_the_stock_step_ended_is_not_kept_on_the_device():
    variable = tf.Variable(tf.ones(1 << 18), name="weight")
    step, _ = make_step(variable, lambda x: x + x)
    step.measure(step.stock, 4 << 20)
    before = count_bytes_in_use()
    step.measure(step.stock, 4 << 20)
    assert step.reference.stock.after[0].nbytes == 1 << 20
    assert count_bytes_in_use() <= before
