"""Plans a model that was built in a `keras.RematScope` by the mode of the scope.

With Keras, TensorFlow recomputes each call in the scope as a whole. Here, the model is traced as if it was built
without the scope, and the scope's mode constrains the plan.
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
    """Adds the values that layers must recompute because of their scopes to the options of a request.

    They are a layer's inner results, which nothing outside the layer reads in the forward pass. Keras retains the
    layer's inputs and outputs.
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
    """Returns a function that calls layers of a model as if it was built without a `keras.RematScope`."""
    if not list_remat_modes(model):
        return function

    @wraps(function)
    def call(*args: Any) -> Any:
        with call_without_remat(model):
            return function(*args)

    return call
