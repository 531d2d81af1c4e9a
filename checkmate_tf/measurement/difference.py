"""Compares a rewritten step with the stock step: their variables and results after one step from the same state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

# Rounding in another order may cost half of a type's digits.
_KEPT_DIGITS = 0.5
# The difference between two stock steps varies from one repetition to the next.
_REPEAT_MARGIN = 2.0
# A gradient of zero is nothing but rounding errors, so two of them differ by up to 100 %. A change that is smaller than
# this share of the largest change of its kind is therefore compared with that share.
_SMALL_CHANGE = 0.01
_NUMPY_FLOATS = (tf.float16, tf.float32, tf.float64)
# The epsilon of bfloat16. That of types with fewer bits is larger, but no sums are computed in them.
_OTHER_EPSILON = 2.0**-7


@dataclass(frozen=True)
class StepDifference:
    """The difference between the results of a rewritten step and those of the stock step.

    Args:
        share: the largest difference of a variable or a result, as a share of the largest change by the stock step.
        name: that variable or result; "" if none differs.
        allowed: the share that may come from rounding, or from repeating the stock step.
    """

    share: float
    name: str = ""
    allowed: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Returns whether rounding may explain the difference."""
        return self.share <= self.allowed


@dataclass(frozen=True)
class StepEnd:
    """Variables and results after one step, in host memory.

    Args:
        changes: the largest change of a number in each variable.
        after: the value of each variable; None if the step did not change it, so that frozen weights take no memory.
    """

    names: tuple[str, ...]
    is_trained: tuple[bool, ...]
    changes: tuple[float, ...]
    after: tuple[np.ndarray | None, ...]
    results: tuple[tuple[str, np.ndarray], ...]

    @staticmethod
    def of(variables: Sequence[Any], before: Sequence[np.ndarray], results: Any) -> "StepEnd":
        """Copies variables and results after a step.

        Args:
            before: the values of the variables before the step.
            results: nested tensors that the step returned.
        """
        after = [variable.numpy() for variable in variables]
        changes = [_find_distance(new, old) for old, new in zip(before, after, strict=True)]
        return StepEnd(
            tuple(variable.name.partition(":")[0] for variable in variables),
            tuple(bool(variable.trainable) for variable in variables),
            tuple(changes),
            tuple(new if change else None for new, change in zip(after, changes, strict=True)),
            tuple(_list_results(results)),
        )


@dataclass
class StockReference:
    """Variables and results after the stock step, for comparison with other steps."""

    stock: StepEnd | None = field(default=None, repr=False)
    repeated_share: float | None = None

    def compare(self, end: StepEnd) -> StepDifference | None:
        """Compares a step with the stock step; returns None if that did not run."""
        return None if self.stock is None else find_difference(end, self.stock)

    def allow_repeats(self, end: StepEnd) -> None:
        """Records the difference between a repetition of the stock step and its first run."""
        assert self.stock is not None
        self.repeated_share = find_difference(end, self.stock).share

    def find_allowed(self, dtypes: Sequence[tf.DType]) -> float:
        """Returns the share that may come from rounding in a step that computes in these types."""
        coarsest = max((_find_epsilon(dtype) for dtype in dtypes if dtype.is_floating), default=0.0)
        return float(max(coarsest**_KEPT_DIGITS, _REPEAT_MARGIN * (self.repeated_share or 0.0)))


def find_difference(end: StepEnd, stock: StepEnd) -> StepDifference:
    """Returns the largest difference of a variable or result between a step and the stock step from the same state.

    If the optimizer keeps a state for a weight, that state is compared instead of the weight. The reason is that an
    optimizer such as Adam makes a full update even if a gradient consists of rounding errors alone.
    """
    kinds = _find_kinds(stock.names, stock.is_trained)
    largest: dict[str, float] = {}
    for kind, change in zip(kinds, stock.changes, strict=True):
        if kind is not None:
            largest[kind] = max(largest.get(kind, 0.0), change)
    found = _compare_results(end, stock)
    for number, kind in enumerate(kinds):
        if kind is not None:
            scale = max(stock.changes[number], _SMALL_CHANGE * largest[kind])
            found.append((_divide(_compare_variable(number, end, stock), scale), stock.names[number]))
    share, name = max(found, default=(0.0, ""))
    return StepDifference(share, name if share else "")


def _compare_variable(number: int, end: StepEnd, stock: StepEnd) -> float:
    """Returns the difference of a variable, less the rounding error of adding a change to it."""
    found, expected = end.after[number], stock.after[number]
    if found is None or expected is None:
        return end.changes[number] + stock.changes[number]
    return max(0.0, _find_distance(found, expected) - _find_epsilon(expected.dtype) * _find_largest(expected))


def _compare_results(end: StepEnd, stock: StepEnd) -> list[tuple[float, str]]:
    """Returns the relative difference of each result; for a small result, relative to the largest of its kind."""
    largest: dict[str, float] = {}
    for name, value in stock.results:
        kind = name.partition("/")[0]
        largest[kind] = max(largest.get(kind, 0.0), _find_largest(value))
    found = []
    for (name, value), (_, other) in zip(stock.results, end.results, strict=True):
        scale = max(_find_largest(value), _SMALL_CHANGE * largest[name.partition("/")[0]])
        found.append((_divide(_find_distance(other, value), scale), f"result {name}"))
    return found


def _find_kinds(names: Sequence[str], is_trained: Sequence[bool]) -> list[str | None]:
    """Returns the kind of each variable; changes of one kind have a common scale.

    The weights are one kind, and so are the optimizer's variables for one purpose, which Keras's names show. A weight
    for which the optimizer keeps a variable has None. Each other variable is a kind of its own.
    """
    weights = {name.replace("/", "_"): number for number, name in enumerate(names) if is_trained[number]}
    kinds: list[str | None] = ["weights" if trained else name for name, trained in zip(names, is_trained, strict=True)]
    for number, name in enumerate(names):
        scope, _, kept = name.partition("/")
        parts = kept.split("_")
        for length in range(len(parts) - 1, 0, -1) if not is_trained[number] else ():
            weight = weights.get("_".join(parts[:length]))
            if weight is not None:
                kinds[number] = f"{scope}/{'_'.join(parts[length:])}"
                kinds[weight] = None
                break
    return kinds


def _list_results(results: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Lists the numeric results of a step, each with its path."""
    if isinstance(results, Mapping):
        parts = list(results.items())
    elif isinstance(results, (list, tuple)):
        parts = list(enumerate(results))
    elif isinstance(results, tf.IndexedSlices):
        parts = [("values", results.values), ("indices", results.indices)]
    else:
        if isinstance(results, tf.Tensor) and (results.dtype.is_floating or results.dtype.is_integer):
            yield path, results.numpy()
        return
    for key, part in parts:
        yield from _list_results(part, f"{path}/{key}" if path else str(key))


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(np.array_equal(first, second)) and first.dtype == second.dtype


def _find_distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference of two numbers in the same place; infinity if only one of them is not a number."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.size or _is_same(found, expected) or not _is_number(found):
        return 0.0
    is_equal = (found == expected) | ((found != found) & (expected != expected))  # infinite ones, too
    with np.errstate(all="ignore"):
        largest = float(np.where(is_equal, 0.0, np.abs(found.astype(np.float64) - expected.astype(np.float64))).max())
    return float("inf") if np.isnan(largest) else largest


def _find_largest(value: np.ndarray) -> float:
    if not value.size or not _is_number(value):
        return 0.0
    numbers = np.abs(value.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _is_number(value: np.ndarray) -> bool:
    return tf.as_dtype(value.dtype).is_floating or tf.as_dtype(value.dtype).is_integer


def _find_epsilon(dtype: Any) -> float:
    """Returns the distance from 1 to the next number of a type; 0 for types without rounding."""
    found = tf.as_dtype(dtype)
    if not found.is_floating:
        return 0.0
    return float(np.finfo(found.as_numpy_dtype).eps) if found in _NUMPY_FLOATS else _OTHER_EPSILON


def _divide(distance: float, scale: float) -> float:
    if not distance:
        return 0.0
    return distance / scale if scale else float("inf")
