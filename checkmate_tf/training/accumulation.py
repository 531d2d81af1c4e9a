"""Makes an optimizer that accumulates gradients over several steps, as Keras does, from an existing optimizer."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.training.replicas import get_scope


def count_accumulated(optimizer: keras.Optimizer) -> int:
    """Returns the number of steps whose gradients make one update."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return count_accumulated(optimizer.inner_optimizer)
    return optimizer.gradient_accumulation_steps or 1


def make_accumulating(optimizer: keras.Optimizer, num_steps: int) -> keras.Optimizer:
    """Returns an optimizer with the same settings that updates once in `num_steps` steps. It has no state yet.

    Raises UnsupportedModelError if the optimizer cannot be made from its own configuration.
    """
    config = optimizer.get_config()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = make_accumulating(optimizer.inner_optimizer, num_steps)
        config["inner_optimizer"] = keras.optimizers.serialize(inner)
    else:
        config["gradient_accumulation_steps"] = num_steps if num_steps > 1 else None
    try:
        return type(optimizer).from_config(config)
    except (TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{type(optimizer).__name__} cannot be rebuilt with gradient_accumulation_steps={num_steps}: {error}"
        ) from error


def take_optimizer(model: keras.Model, optimizer: keras.Optimizer) -> None:
    """Makes a model train with `optimizer`, which continues from the state of the model's present optimizer."""
    before = model.optimizer
    with get_scope(model):
        optimizer.build(model.trainable_variables)
    known = {variable.path: variable for variable in before.variables}
    for variable in optimizer.variables:
        if variable.path in known:
            variable.assign(known[variable.path])
        if variable.name == "iteration":  # counts steps, not updates
            variable.assign(variable // count_accumulated(before) * count_accumulated(optimizer))
    model.optimizer = optimizer


@contextmanager
def try_optimizer(model: keras.Model, optimizer: keras.Optimizer) -> Iterator[None]:
    """Replaces the model's optimizer within the block.

    The model's own optimizer is not built meanwhile, so the states of both are never in memory at once.
    """
    before = model.optimizer
    model.optimizer = optimizer
    try:
        yield
    finally:
        model.optimizer = before
