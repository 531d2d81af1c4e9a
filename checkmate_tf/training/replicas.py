"""Serves models that `tf.distribute.MirroredStrategy` trains: all replicas follow one plan.

Each replica holds all variables and its part of the batch. The training graphs of all replicas are therefore the same,
and the budget is that of one replica. A replica's step reads its own copies of the variables, so it is traced and
emitted in that replica's context, within the trace of the whole step.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.errors import BatchError, UnsupportedModelError
from checkmate_tf.tf_private import get_replica_number


def count_replicas(model: keras.Model) -> int:
    """Returns the number of devices on which the model trains at once."""
    return int(model.distribute_strategy.num_replicas_in_sync)


def get_current_replica() -> int:
    """Returns the number of the replica whose step is being traced; 0 if there is none."""
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    return 0 if context is None else get_replica_number(context)


def get_scope(model: keras.Model) -> AbstractContextManager[Any]:
    """Returns the scope in which variables of the model are made; an empty one if the model is not distributed."""
    return model.distribute_strategy.scope() if count_replicas(model) > 1 else nullcontext()


def check_distribution(model: keras.Model, *, has_own_step: bool) -> None:
    """Raises UnsupportedModelError for a distributed model whose step cannot be rewritten replica by replica."""
    strategy = model.distribute_strategy
    if count_replicas(model) == 1:
        return
    found = f"model {model.name!r} is distributed over {count_replicas(model)} replicas"
    if type(strategy) is not tf.distribute.MirroredStrategy:
        raise UnsupportedModelError(
            f"{found} by {type(strategy).__name__}; in fit, only MirroredStrategy's replicas are rewritten. "
            "Rewrite the gradients of a custom loop with rewrite_function"
        )
    if has_own_step:
        raise UnsupportedModelError(
            f"{found} and has a train_step of its own, whose update joins the replicas; "
            "rewrite the gradients of a custom loop with rewrite_function"
        )
    if model.jit_compile:
        raise UnsupportedModelError(
            f"{found} and compiled by XLA, which TensorFlow cannot run on several devices "
            '("Trying to access resource ... located in device", '
            "https://www.tensorflow.org/xla/known_issues#tfvariable_on_a_different_device); compile it with "
            "jit_compile=False"
        )


def count_replica_rows(model: keras.Model, rows: int) -> int:
    """Returns each replica's rows of a batch. Raises BatchError if the batch cannot be divided evenly."""
    replicas = count_replicas(model)
    if rows % replicas:
        raise BatchError(
            f"a batch of {rows} rows cannot be divided evenly over the {replicas} replicas of model {model.name!r}; "
            f"use a multiple of {replicas}"
        )
    return rows // replicas


def split_batch(model: keras.Model, data: Any) -> list[Any]:
    """Splits distributed data into the batches of the replicas."""
    strategy = model.distribute_strategy
    local = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(data)]
    return [tf.nest.pack_sequence_as(data, list(leaves)) for leaves in zip(*local, strict=True)]


def take_first_replica(model: keras.Model, data: Any) -> Any:
    """Returns the first replica's part of data from `fit`; all of it if the model is not distributed."""
    return data if count_replicas(model) == 1 else split_batch(model, data)[0]


def trace_on_replica(model: keras.Model, trace: Callable[[], Any]) -> Any:
    """Calls `trace` in the context of the replica that is being traced, or of the first one.

    Raises UnsupportedModelError if the trace joins the replicas.
    """
    if count_replicas(model) == 1:
        return trace()
    strategy, traces = model.distribute_strategy, []

    def trace_once() -> None:
        if get_current_replica() == 0:
            traces.append(trace())

    try:
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            return trace()
        tf.function(lambda: strategy.run(trace_once), autograph=False).get_concrete_function()
    except (RuntimeError, ValueError) as error:
        if "merge_call" not in str(error) and "aggregation" not in str(error):
            raise
        raise UnsupportedModelError(
            f"the forward pass of model {model.name!r} joins its replicas (BatchNormalization(synchronized=True), or a "
            "variable that is aggregated), so that it cannot be rewritten replica by replica; leave such layers out, "
            "or train with rewrite_function on each replica"
        ) from error
    return traces[0]
