"""Plans a model that was built in a `keras.RematScope` with what the scope asks for.

Keras would have TensorFlow recompute each call in the scope as a whole. Here such a model is traced as if it was built
in no scope, and what the scope asks for constrains the plan.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import keras

from checkmate_tf.keras_private import call_without_remat, list_remat_modes
from checkmate_tf.patterns import InnerResults
from checkmate_tf.planning.options import Request


def add_remat_scopes(model: keras.Model, request: Request) -> Request:
    """Adds what the layers of a model recompute by the scopes that they were made in.

    A layer's inner results are those that nothing outside of it reads in the forward pass: Keras retains what the layer
    reads and yields.
    """
    inner = [
        InnerResults(f"RematScope({one.mode!r})", frozenset(one.names), one.larger_than, one.mode == "activations")
        for one in list_remat_modes(model)
    ]
    if not inner:
        return request
    options = replace(request.options, recompute=(*request.options.recompute, *inner))
    return replace(request, options=options)


def call_as_built_in_no_scope(model: keras.Model, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls layers of a model as if it was built in no `keras.RematScope`."""
    if not list_remat_modes(model):
        return function

    @wraps(function)
    def call(*args: Any) -> Any:
        with call_without_remat(model):
            return function(*args)

    return call
