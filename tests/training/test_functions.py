"""rewrite_function: gradients and whole steps of custom loops, a GAN with two optimizers included."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import UnsupportedModelError
from experiments.keras_users.compare import RecomputeForward, relative_difference

_QUICK: dict[str, Any] = {"budget": "1000%", "options": checkmate_tf.Options(solver=RecomputeForward(), costs="flops")}


def _net(num_inputs: int, num_outputs: int) -> keras.Model:
    stack = [keras.Input((num_inputs,)), keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization()]
    return keras.Sequential([*stack, keras.layers.Dropout(0.2), keras.layers.Dense(num_outputs)])


def _gan(rewritten: bool) -> tuple[list[Any], list[np.ndarray]]:
    """Five steps of a GAN, both networks updated in one function; its variables and losses."""
    keras.utils.set_random_seed(3)
    generator, critic = _net(4, 6), _net(6, 1)
    generator_optimizer, critic_optimizer = keras.optimizers.SGD(0.05, momentum=0.9), keras.optimizers.SGD(0.1)
    generator_optimizer.build(generator.trainable_variables)
    critic_optimizer.build(critic.trainable_variables)

    def step(real: tf.Tensor, noise: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as for_generator, tf.GradientTape() as for_critic:
            made = generator(noise, training=True)
            on_real, on_made = critic(real, training=True), critic(made, training=True)
            critic_loss = tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_made))
            generator_loss = tf.reduce_mean(tf.nn.softplus(-on_made))
        generator_gradients = for_generator.gradient(generator_loss, generator.trainable_variables)
        critic_gradients = for_critic.gradient(critic_loss, critic.trainable_variables)
        generator_optimizer.apply(generator_gradients, generator.trainable_variables)
        critic_optimizer.apply(critic_gradients, critic.trainable_variables)
        return {"generator": generator_loss, "critic": critic_loss}

    specs = tf.TensorSpec((8, 6)), tf.TensorSpec((8, 4))
    run: Any = tf.function(step, autograph=False).get_concrete_function(*specs)
    if rewritten:
        run = checkmate_tf.rewrite_function(run, **_QUICK)
        assert run.plan.recomputed
    random = np.random.default_rng(0)
    losses = []
    for _ in range(5):
        real, noise = (tf.constant(random.normal(size=spec.shape), tf.float32) for spec in specs)
        losses.append(np.stack([value for _, value in sorted(run(real, noise).items())]))
    variables = [
        *generator.variables, *critic.variables, *generator_optimizer.variables, *critic_optimizer.variables
    ]  # fmt: skip
    return variables, losses


def test_gan_with_two_optimizers() -> None:
    stock, stock_losses = _gan(rewritten=False)
    other, losses = _gan(rewritten=True)
    assert relative_difference(np.stack(stock_losses), np.stack(losses)) <= 1e-5
    for mine, theirs in zip(stock, other, strict=True):
        assert relative_difference(np.asarray(mine), np.asarray(theirs)) <= 1e-5, mine.path


def test_gradients_within_an_outer_function() -> None:
    keras.utils.set_random_seed(3)
    model = _net(4, 2)

    def gradients(batch: dict[str, tf.Tensor], scale: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(tf.square(model(batch["x"], training=False) - batch["y"]))
        return loss, tape.gradient(loss, model.trainable_variables)

    specs = {"x": tf.TensorSpec((8, 4)), "y": tf.TensorSpec((8, 2))}, tf.TensorSpec(())
    source = tf.function(gradients, autograph=False).get_concrete_function(*specs)
    rewritten = checkmate_tf.rewrite_function(source, **_QUICK)
    batch = {"x": tf.random.normal((8, 4), seed=1), "y": tf.ones((8, 2))}
    expected_loss, expected = source(batch, tf.constant(2.0))
    loss, found = tf.function(lambda: rewritten(batch, tf.constant(2.0)))()
    assert relative_difference(expected_loss, loss) <= 1e-6
    for mine, theirs in zip(expected, found, strict=True):
        assert relative_difference(mine, theirs) <= 1e-5
    with pytest.raises(TypeError):
        rewritten(batch)


def test_bad_functions() -> None:
    with pytest.raises(UnsupportedModelError, match="not a ConcreteFunction"):
        checkmate_tf.rewrite_function(lambda x: x, budget="60%")
    open_shape = tf.function(lambda x: tf.reduce_sum(tf.exp(x))).get_concrete_function(tf.TensorSpec((None, 4)))
    with pytest.raises(UnsupportedModelError, match="open shape"):
        checkmate_tf.rewrite_function(open_shape, budget="60%")


@pytest.mark.measures_memory
def test_the_function_is_measured_and_its_variables_put_back() -> None:
    """Gradients of a chain of convolutions, and a count of the steps, on tensors of megabytes."""
    keras.utils.set_random_seed(3)
    stack = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *stack, keras.layers.GlobalAveragePooling2D()])
    count = tf.Variable(0)

    def step(x: tf.Tensor) -> Any:
        count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    function = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((16, 64, 64, 3)))
    rewritten = checkmate_tf.rewrite_function(
        function, budget="65%", options=checkmate_tf.Options(costs="flops"), time_limit_s=10
    )
    assert rewritten.plan.recomputed
    assert rewritten.plan.measured_peak_bytes is not None
    assert rewritten.plan.measured_peak_bytes <= rewritten.plan.budget_bytes * 1.02
    assert count.numpy() == 0
    unchanged = checkmate_tf.rewrite_function(
        function, budget="100%", options=checkmate_tf.Options(costs="flops"), time_limit_s=10
    )
    assert unchanged.function.function.graph is function.graph


def test_a_function_with_other_effects_is_not_run() -> None:
    """A random number of a kernel's own state: running the function would change what the next run draws."""
    weight = tf.Variable(tf.ones((8, 8)))

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.matmul(x + tf.random.normal((8, 8)), weight)))
        return tape.gradient(loss, weight)

    function = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((8, 8)))
    plan = checkmate_tf.rewrite_function(function, **_QUICK).plan
    assert plan.measured_peak_bytes is None


@pytest.mark.parametrize("jit_compile", [False, True])
def test_variables_may_be_arguments(jit_compile: bool) -> None:
    """Weights and momentum that the step takes and changes; the variables of the measured runs are others."""

    def step(weights: tf.Variable, x: tf.Tensor, momentum: tf.Variable) -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = x
            for _ in range(6):
                hidden = tf.tanh(hidden @ weights)
            loss = tf.reduce_sum(hidden**2)
        momentum.assign(0.9 * momentum + tape.gradient(loss, weights))
        weights.assign_sub(1e-4 * momentum)
        return loss

    x = tf.random.stateless_normal((512, 64), (0, 1))
    results = []
    for rewritten in (False, True):
        weights = tf.Variable(tf.random.stateless_normal((64, 64), (0, 2), stddev=0.1))
        momentum = tf.Variable(tf.zeros((64, 64)))
        function: Any = tf.function(step, jit_compile=jit_compile).get_concrete_function(weights, x, momentum)
        if rewritten:
            function = checkmate_tf.rewrite_function(
                function, budget="80%", options=checkmate_tf.Options(costs="flops"), progress=False
            )
            assert function.plan.recomputed
            assert function.plan.measured_peak_bytes <= function.plan.budget_bytes
            assert function.plan.resident.parameters == 2 * 64 * 64 * 4
            assert np.array_equal(momentum, np.zeros((64, 64)))
        losses = [float(function(weights, x, momentum)) for _ in range(3)]
        results.append((losses, np.asarray(weights), np.asarray(momentum)))
    for other, stock in zip(*results[::-1], strict=True):
        assert relative_difference(np.asarray(other), np.asarray(stock)) <= 1e-5


def test_a_resource_that_is_no_variable_is_refused() -> None:
    numbers = iter(tf.data.Dataset.range(3))
    concrete = tf.function(lambda one: tf.square(next(one))).get_concrete_function(numbers)
    with pytest.raises(UnsupportedModelError, match="is a resource but not a variable; let the function capture it"):
        checkmate_tf.rewrite_function(concrete, **_QUICK)
