"""The exceptions that checkmate_tf raises on purpose. Each message states the numbers and a remedy."""

import reprlib
from typing import Any

# A message quotes names from files and models, which may have any length.
_MOST_MESSAGE_CHARACTERS = 4000


def make_printable(text: str) -> str:
    """Escapes characters that control a terminal or cannot be shown, because names can come from any file.

    >>> make_printable("conv\x1b[2J")
    'conv\\\\x1b[2J'
    """
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def make_message(text: str) -> str:
    """Makes text printable, and leaves out its middle if it is longer than a page."""
    if len(text) <= _MOST_MESSAGE_CHARACTERS:
        message = make_printable(text)
        if len(message) <= _MOST_MESSAGE_CHARACTERS:
            return message
    kept = _MOST_MESSAGE_CHARACTERS // 2
    first, last = make_printable(text[:kept])[:kept], make_printable(text[-kept:])[-kept:]
    return f"{first} ... (the middle of {len(text)} characters is left out) ... {last}"


def quote(value: object) -> str:
    """Returns a few words that describe any given value.

    >>> quote([1, 2]), quote(10**5000)
    ('[1, 2]', 'int')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # integers of thousands of digits, and errors in the value's own class
        return type(value).__name__


class CheckmateError(Exception):
    """The base class of all errors that this package raises on purpose.

    Example:

    >>> from checkmate_tf import load_graph
    >>> try:
    ...     load_graph("missing.json")
    ... except CheckmateError as error:
    ...     print(error)
    cannot read graph missing.json: [Errno 2] No such file or directory: 'missing.json'
    """

    def __str__(self) -> str:
        return make_message(super().__str__())


class GraphError(CheckmateError, ValueError):
    """A training graph, or its JSON, is malformed.

    Example:

    >>> from checkmate_tf import Graph
    >>> Graph((), (), (), name="empty")
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.GraphError: graph 'empty' has no nodes
    """


class ScheduleError(CheckmateError, ValueError):
    """A schedule does not compute its graph.

    Example:

    >>> from checkmate_tf import Graph, Node, Schedule, Value, simulate
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> simulate(graph, Schedule(()))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.ScheduleError: the schedule has a position or a fetch outside of the graph's 1 nodes ...
    """


class BudgetError(CheckmateError, ValueError):
    """A memory budget cannot be read.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> solve(graph, "6 stones")
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.BudgetError: budget '6 stones' has the unknown unit 'stones'; use MiB, GiB, MB, GB, bytes or "%"
    """


class BatchError(CheckmateError, ValueError):
    """The model cannot train on a batch, or on a batch of this size.

    Example:

    >>> from checkmate_tf import Axis
    >>> Axis("depth")
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.BatchError: axis 'depth' is unknown; use one of batch, height, width, image, length
    """


class InfeasibleBudgetError(CheckmateError):
    """No schedule within the budget exists, or none was found in time.

    Attributes:
        least_budget_bytes: the least budget known to work; None if none is known.
        proved: whether it is proved that no schedule within the budget exists.
        closest: the plan of least memory; None if there is none.

    Example:

    >>> import keras
    >>> from checkmate_tf import Options, rematerialize
    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "measure": False, "progress": False}
    >>> try:
    ...     plan = rematerialize(model, batch_size=512, budget="1KiB", **quick)
    ... except InfeasibleBudgetError as error:
    ...     print(error.proved, error.least_budget_bytes > 1024)
    True True
    """

    def __init__(
        self,
        message: str,
        *,
        least_budget_bytes: int | None = None,
        proved: bool = False,
        closest: Any = None,
    ):
        super().__init__(message)
        self.least_budget_bytes = least_budget_bytes
        self.proved = proved
        self.closest = closest


class PatternError(CheckmateError, ValueError):
    """A pattern of nodes to keep or to recompute matches none, or contradicts another one.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,), name="net")
    >>> solve(graph, "80%", keep=["*attention*"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.PatternError: keep '*attention*' matches no layer and no operation of 'net'. ...
    """


class SolverError(CheckmateError):
    """A solver is unknown, cannot run here, or broke its contract.

    Example:

    >>> from checkmate_tf import Graph, Node, Value, solve
    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> solve(graph, "80%", solver="fastest")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.SolverError: there is no solver 'fastest'; choose one of ...
    """


class UnsupportedModelError(CheckmateError):
    """The model, its compile() arguments or its training step cannot be rematerialized.

    Example:

    >>> import keras
    >>> from checkmate_tf import estimate
    >>> estimate(keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)]), batch_size=8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.UnsupportedModelError: ...
    """


class PlanError(CheckmateError):
    """A plan file cannot be read, or is the plan of another step.

    Example:

    >>> from checkmate_tf import load_plan
    >>> load_plan("missing.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.PlanError: cannot read plan missing.json: ...
    """


class EmissionError(CheckmateError):
    """A schedule cannot be written as a TensorFlow graph, or its step cannot run on this device.

    Planning tries other schedules first, so this error means that none of them could be emitted.

    Example:

    >>> from checkmate_tf import CheckmateError
    >>> issubclass(EmissionError, CheckmateError)
    True
    """


class OffloadError(CheckmateError):
    """Values of a step cannot be copied out of memory: the disk is full, or the directory cannot be written.

    Example:

    >>> from checkmate_tf import Options
    >>> Options(offload="cloud")
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.OffloadError: offload is 'cloud'; it must be "file:DIRECTORY", "host" or None
    """


class ProfileError(CheckmateError):
    """A node cannot be measured, or a profile does not fit its graph.

    Example:

    >>> from checkmate_tf import Options
    >>> Options(costs="guessed")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    checkmate_tf.errors.ProfileError: costs 'guessed' are unknown; use one of ...
    """


class SearchInterrupt(KeyboardInterrupt):
    """A search was interrupted by Ctrl-C. As a KeyboardInterrupt, it ends a program that does not catch it.

    Attributes:
        found: the best result until then; None if there is none.

    Example:

    >>> def search():
    ...     raise SearchInterrupt("interrupted with 3 budgets solved", found=3)
    >>> try:
    ...     result = search()
    ... except SearchInterrupt as interrupt:
    ...     result = interrupt.found
    >>> result
    3
    """

    def __init__(self, message: str, found: Any = None):
        super().__init__(message)
        self.found = found
