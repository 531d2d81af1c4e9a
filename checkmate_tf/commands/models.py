"""Loads models by the names used on the command line."""

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

from checkmate_tf.commands.common import (
    add_costs_argument,
    add_json_argument,
    add_search_arguments,
    add_solver_argument,
)
from checkmate_tf.errors import UnsupportedModelError

if TYPE_CHECKING:
    import keras

    from checkmate_tf.planning.options import Options

MODEL_HELP = (
    "package.module:function that returns a compiled model, a saved .keras file, or a name of keras.applications"
)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_plan_arguments(parser: argparse.ArgumentParser, *, limited: str = "all runs of the solver together") -> None:
    """Adds the arguments for planning a step and printing the plan. --time-limit is for the work named by `limited`."""
    add_solver_argument(parser)
    add_costs_argument(parser)
    add_search_arguments(parser, limited=limited)
    parser.add_argument(
        "--output", metavar="SCHEDULE.json", help="file for the schedule, in the format checkmate-schedule/1"
    )
    add_json_argument(parser)


def read_options(args: argparse.Namespace) -> "Options":
    """Returns the Options of the arguments. Raises SolverError or ProfileError for an unknown name."""
    from checkmate_tf.planning.options import Options

    return Options(
        getattr(args, "solver", "auto"),
        args.order,
        args.costs,
        args.seed,
        keep=getattr(args, "keep", ()),
        recompute=getattr(args, "recompute", ()),
        offload=getattr(args, "offload", None),
        bandwidth=getattr(args, "bandwidth", None),
        device=getattr(args, "device", None),
    )


def load_model(text: str) -> "keras.Model":
    """Loads the compiled model of a name.

    A model of keras.applications gets random weights and is compiled with SGD and cross-entropy. So is a saved model
    without a training configuration. Raises UnsupportedModelError if the model cannot be found or loaded.
    """
    import keras

    if text.endswith(".keras"):
        model = _load_saved(text)
    elif ":" in text:
        model = _call_named_function(text)
    else:
        model = _build_application(text)
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"{text} returns a {type(model).__name__}; it must return a compiled keras.Model")
    if not model.compiled:
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def _load_saved(path: str) -> "keras.Model":
    import keras

    try:
        return keras.models.load_model(path)
    except (OSError, TypeError, ValueError) as error:
        raise UnsupportedModelError(f"{path} cannot be loaded: {error}; MODEL is {MODEL_HELP}") from error


def _call_named_function(text: str) -> "keras.Model":
    module_name, _, function_name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end, so that a file cannot replace a module of the same name
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedModelError(f"{text} cannot be found: {error}; MODEL is {MODEL_HELP}") from error
    return function()


def _build_application(name: str) -> "keras.Model":
    import keras

    function = getattr(keras.applications, name, None)
    if not callable(function):
        raise UnsupportedModelError(f"{name} is not a model of keras.applications; MODEL is {MODEL_HELP}")
    return function(weights=None)
