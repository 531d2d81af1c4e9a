"""Custom training loops after public examples: a whole step is a function, which `rewrite_function` rewrites."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildLoop, classes, normal

_NUM_ACTIONS = 6
_SIDE = 352


def _features(depth: int) -> keras.Model:
    """A frozen network like VGG: what it sees in each block is an output."""
    images = hidden = keras.Input((_SIDE, _SIDE, 3))
    seen = []
    for filters in (16, 32, 48)[:depth]:
        for _ in range(2):
            hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        seen.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    model = keras.Model(images, seen)
    model.trainable = False
    return model


def _gram(places: Any) -> Any:
    flat = tf.reshape(places, (-1, places.shape[-1]))
    return tf.matmul(flat, flat, transpose_a=True) / tf.cast(tf.shape(flat)[0], tf.float32)


def make_style() -> tuple[Any, list[Any]]:
    """An image is the variable; its style is one image's and its content another's."""
    network, image = _features(3), tf.Variable(tf.random.stateless_uniform((1, _SIDE, _SIDE, 3), (1, 2)))
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build([image])

    @tf.function
    def step(style: Any, content: Any) -> Any:
        wanted, kept = network(style), network(content)[-1]
        with tf.GradientTape() as tape:
            seen = network(image)
            apart = [tf.reduce_mean((_gram(one) - _gram(other)) ** 2) for one, other in zip(seen, wanted, strict=True)]
            loss = tf.add_n(apart) + 0.1 * tf.reduce_mean((seen[-1] - kept) ** 2)
            loss += 1e-4 * tf.reduce_sum(tf.image.total_variation(image))
        optimizer.apply_gradients([(tape.gradient(loss, image), image)])
        return loss

    return step, [image, *optimizer.variables]


def _two_images(random: np.random.Generator) -> Arrays:
    return tuple(random.random((1, _SIDE, _SIDE, 3), dtype="float32") for _ in range(2))


def _policy(outputs: int, last: str | None = None) -> keras.Model:
    states = hidden = keras.Input((48, 48, 4))
    for filters, strides in ((24, 1), (24, 2), (48, 1), (48, 2), (64, 1), (64, 2)):
        hidden = layers.Conv2D(filters, 3, strides=strides, padding="same", activation="relu")(hidden)
    hidden = layers.Dense(128, activation="relu")(layers.Flatten()(hidden))
    return keras.Model(states, layers.Dense(outputs, activation=last)(hidden))


def make_deep_q() -> tuple[Any, list[Any]]:
    """Values of actions are learned from those that a frozen copy of the network gives the next states."""
    model, target = _policy(_NUM_ACTIONS), _policy(_NUM_ACTIONS)
    target.set_weights(model.get_weights())
    optimizer, huber = keras.optimizers.Adam(2.5e-4, clipnorm=1.0), keras.losses.Huber()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(states: Any, actions: Any, rewards: Any, next_states: Any, ends: Any) -> Any:
        wanted = rewards + 0.99 * (1 - ends) * tf.reduce_max(target(next_states, training=False), axis=1)
        with tf.GradientTape() as tape:
            values = tf.reduce_sum(model(states, training=True) * tf.one_hot(actions, _NUM_ACTIONS), axis=1)
            loss = huber(wanted, values)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step, [*model.trainable_variables, *optimizer.variables]


def _played(random: np.random.Generator) -> Arrays:
    states, next_states = (normal(random, 48, 48, 48, 4) for _ in range(2))
    rewards, ends = normal(random, 48), classes(random, 2, 48).astype("float32")
    return states, classes(random, _NUM_ACTIONS, 48), rewards, next_states, ends


def make_clipped_policy() -> tuple[Any, list[Any]]:
    """An actor and a critic each take a step; how far the actor may go is clipped."""
    actor, critic = _policy(_NUM_ACTIONS), _policy(1)
    optimizers = [keras.optimizers.Adam(3e-4), keras.optimizers.Adam(1e-3)]
    for optimizer, part in zip(optimizers, (actor, critic), strict=True):
        optimizer.build(part.trainable_variables)

    @tf.function
    def step(states: Any, actions: Any, advantages: Any, before: Any, returns: Any) -> Any:
        with tf.GradientTape() as tape:
            chances = tf.nn.log_softmax(actor(states, training=True))
            own = tf.gather(chances, actions, batch_dims=1)
            ratio, limit = tf.exp(own - before), tf.where(advantages > 0, 1.2, 0.8) * advantages
            loss = -tf.reduce_mean(tf.minimum(ratio * advantages, limit))
        weights = actor.trainable_variables
        optimizers[0].apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((returns - ops.squeeze(critic(states, training=True), -1)) ** 2)
        weights = critic.trainable_variables
        optimizers[1].apply_gradients(zip(tape.gradient(error, weights), weights, strict=True))
        return loss + error

    trained = (*actor.trainable_variables, *critic.trainable_variables)
    return step, [*trained, *optimizers[0].variables, *optimizers[1].variables]


def _gained(random: np.random.Generator) -> Arrays:
    return (
        normal(random, 48, 48, 48, 4),
        classes(random, _NUM_ACTIONS, 48),
        normal(random, 48),
        np.full(48, -np.log(_NUM_ACTIONS), "float32"),
        normal(random, 48),
    )


LOOPS = (
    WildLoop(
        "style",
        "an image is the variable, a frozen network is read three times",
        make_style,
        _two_images,
        after="keras.io/examples/generative/neural_style_transfer",
    ),
    WildLoop(
        "deep_q",
        "targets from a frozen copy of the network",
        make_deep_q,
        _played,
        after="keras.io/examples/rl/deep_q_network_breakout",
    ),
    WildLoop(
        "clipped_policy",
        "two networks, two optimizers, one step",
        make_clipped_policy,
        _gained,
        after="keras.io/examples/rl/ppo_cartpole",
    ),
)
