"""One of two workers of a MultiWorkerMirroredStrategy: a custom loop with `rewrite_function`, against the stock loop.

`python -m experiments.keras_users.worker PORT PORT NUMBER` prints what this worker found, as JSON.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import checkmate_tf
from experiments.keras_users.compare import RecomputeForward, relative_difference

BATCH_SIZE, NUM_STEPS, RATE = 8, 5, 0.1


def main() -> None:
    *ports, number = sys.argv[1:]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": int(number)}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    stock, stock_losses = train(strategy, int(number), rewrite=None)
    other, losses = train(strategy, int(number), rewrite=_rewritten)
    result = {
        "replicas": strategy.num_replicas_in_sync,
        "difference": max(map(relative_difference, stock, other)),
        "losses": max(map(relative_difference, stock_losses, losses)),
        "weights": float(sum(np.abs(weight).sum() for weight in other)),
    }
    print(json.dumps(result), flush=True)


def _rewritten(gradients: Any) -> Any:
    rewritten = checkmate_tf.rewrite_function(
        gradients, budget="1000%", options=checkmate_tf.Options(solver=RecomputeForward(), costs="flops")
    )
    assert rewritten.plan.recomputed
    return rewritten


def small_net() -> keras.Model:
    stack = [keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(16, "tanh")]
    return keras.Sequential([*stack, keras.layers.Dense(4)])


def train(
    strategy: tf.distribute.Strategy,
    number: int,
    *,
    rewrite: Callable[[Any], Any] | None,
    make: Callable[[], keras.Model] = small_net,
    observe: Callable[[Callable[[], Any]], Any] = lambda step: step(),
) -> tuple[list[np.ndarray], list[float]]:
    """Steps of SGD on gradients reduced over the workers, each on its own data; its weights and losses.

    Args:
        rewrite: makes of the gradients' ConcreteFunction what is run in its place.
        observe: runs each step.
    """
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = make()
    random = np.random.default_rng(number)

    def gradients(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        return loss, tape.gradient(loss, model.trainable_variables)

    shapes = (BATCH_SIZE, *model.input_shape[1:]), (BATCH_SIZE, *model.output_shape[1:])
    run: Any = tf.function(gradients, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes))
    run = rewrite(run) if rewrite else run

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss, found = run(x, y)
        reduced = tf.distribute.get_replica_context().all_reduce("mean", found)
        for variable, gradient in zip(model.trainable_variables, reduced, strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    step = tf.function(lambda x, y: strategy.run(replica_step, args=(x, y)), autograph=False)
    losses = []
    for _ in range(NUM_STEPS):
        x, y = (tf.constant(random.normal(size=shape), tf.float32) for shape in shapes)
        losses.append(float(strategy.experimental_local_results(observe(lambda: step(x, y)))[0]))  # noqa: B023
    return [np.asarray(variable) for variable in model.trainable_variables], losses


if __name__ == "__main__":
    main()
