"""The same training twice, stock and rematerialized, and how far apart the two end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

import checkmate_tf
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers import Solver
from checkmate_tf.solvers.base import Result
from checkmate_tf.solvers.search import Search

BATCH_SIZE = 8
NUM_STEPS = 5


@dataclass(frozen=True)
class RecomputeForward(Solver):
    """Computes every forward node that a backward node reads a second time, just before its first backward reader.

    Budgets are ignored: rows that use it test results, not memory.
    """

    def search(self, search: Search) -> Result:
        problem = search.problem
        nodes, order, again = problem.graph.nodes, [], set()
        for index, node in enumerate(nodes):
            for before in problem.graph.predecessors[index] if node.is_backward else ():
                if before not in again and nodes[before].recomputable and not nodes[before].is_backward:
                    order.append(before)
                    again.add(before)
            order.append(index)
        return Result(Schedule.of(order))


@dataclass(frozen=True)
class Row:
    """One thing that Keras users do: a compiled model and the data it trains on.

    Args:
        section: of the table, such as "models".
        model: builds and compiles the model; called after the seed is set.
        data: gives `fit`'s x, y and further arguments; made anew for each of the two trainings.
        tolerance: greatest difference from stock, relative to the largest entry of each tensor.
        train: runs five steps and returns the history; `fit` by default.
        recomputes: whether the plan must repeat nodes; False where a model has nothing to repeat.
        package: that must be installed.
        precision: of everything, variables to losses.
        measure: whether the plan is measured: steps run, and the state must be as if they had not.
    """

    section: str
    name: str
    model: Callable[[], keras.Model]
    data: Callable[[], dict[str, Any]]
    tolerance: float = 1e-5
    train: Callable[[keras.Model, dict[str, Any]], dict[str, Any]] | None = None
    planned_data: Callable[[], Any] | None = None
    batch_size: int = BATCH_SIZE
    recomputes: bool = True
    package: str = ""
    precision: str = "float32"
    measure: bool = False


@dataclass(frozen=True)
class Difference:
    """Greatest differences of rematerialized from stock training, relative to each tensor's largest entry."""

    weights: float
    history: float
    recomputed_nodes: int
    exact_integers: bool
    details: dict[str, float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        return max(self.weights, self.history)


def compare(row: Row) -> Difference:
    """Trains the row's model twice and compares all state and logs."""
    with _precision(row.precision):
        stock, stock_history = _trained(row, rematerialized=False)[:2]
        other, history, plan = _trained(row, rematerialized=True)
    details = {}
    exact = True
    for mine, theirs in zip(_state(stock), _state(other), strict=True):
        expected, found = np.asarray(mine), np.asarray(theirs)
        if not np.issubdtype(expected.dtype, np.floating) and expected.dtype.kind != "V":
            exact = exact and np.array_equal(expected, found)
            continue
        details[mine.path] = relative_difference(expected, found)
    return Difference(
        weights=max(details.values()),
        history=max(relative_difference(stock_history[key], history[key]) for key in stock_history),
        recomputed_nodes=len(plan.recomputed),
        exact_integers=exact,
        details=details,
    )


def relative_difference(expected: Any, found: Any) -> float:
    """Largest difference over the largest entry; infinite where only one is finite.

    A largest entry below 1e-3 counts as 1e-3: the gradient of an attention key's bias is zero but for rounding.
    """
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if expected.shape != found.shape or not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        return float("inf")
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    return float(np.abs(expected[finite] - found[finite]).max() / max(np.abs(expected[finite]).max(), 1e-3))


def fit(model: keras.Model, data: dict[str, Any]) -> dict[str, Any]:
    """One epoch of `fit` in the order of the data."""
    arguments = {"batch_size": BATCH_SIZE} if isinstance(data["x"], (np.ndarray, list, dict)) else {}
    return model.fit(**(arguments | {"shuffle": False, "verbose": 0} | data)).history


def _trained(row: Row, *, rematerialized: bool) -> tuple[keras.Model, dict[str, Any], Any]:
    keras.utils.set_random_seed(7)
    model = row.model()
    plan = None
    if rematerialized:
        where = {"data": row.planned_data()} if row.planned_data else {}
        plan = checkmate_tf.rematerialize(
            model,
            batch_size=row.batch_size,
            budget="1000%",
            options=checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
            measure=row.measure,
            **where,
        )
    keras.utils.set_random_seed(8)
    return model, (row.train or fit)(model, row.data()), plan


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(precision)
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)


def _state(model: keras.Model) -> list[Any]:
    optimizers = [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]
    owned = [variable for optimizer in optimizers for variable in optimizer.variables]
    return [*model.variables, *model.optimizer.variables, *owned, *model.metrics_variables]
