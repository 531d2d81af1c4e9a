"""Compares a rewritten step with the stock step: their variables and results after one step from the same state."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

# Rounding in another order may cost half of a type's digits.
_KEPT_DIGITS = 0.5
# A stock step that starts from variables with another last bit ends elsewhere. How far varies between such steps.
_NUDGE_MARGIN = 2.0
# For a single weight, it varies more: it depends on how near to zero its smallest gradient is.
_UPDATE_MARGIN = 10.0
# A gradient of zero is nothing but rounding errors, so two of them differ by up to 100 %. A change that is smaller than
# this share of the largest change of its kind is therefore compared with that share.
_SMALL_CHANGE = 0.01
# Kinds of weights: those without and those with variables of the optimizer.
_WEIGHTS, _UPDATES = "weights", "updates of weights"
_NUMPY_FLOATS = (tf.float16, tf.float32, tf.float64)
# The epsilon of bfloat16. That of types with fewer bits is larger, but no sums are computed in them.
_OTHER_EPSILON = 2.0**-7


@dataclass(frozen=True)
class UpdateDifference:
    """The difference between the update of one weight and that by the stock step.

    An optimizer such as Adam divides a gradient by its size. If a gradient consists of rounding errors alone, as that
    of a bias before a batch normalization does, the update is still a full one, and rounding decides its direction.

    Args:
        name: the weight.
        share: the largest difference of a number's update, as a share of the largest change by the stock step.
        stock_share: the same between two stock steps, one of them from variables that differ in their last bit.

    Example:

    >>> UpdateDifference("dense/bias", share=0.04, stock_share=0.06).is_rounding
    True
    """

    name: str
    share: float
    stock_share: float

    @property
    def is_rounding(self) -> bool:
        """Returns whether rounding alone changes the stock step's update by about as much."""
        return self.share <= _UPDATE_MARGIN * self.stock_share


@dataclass(frozen=True)
class StepDifference:
    """The difference between the results of a rewritten step and those of the stock step.

    For a weight with optimizer variables, `share` compares these instead. Its update is compared in `updates`.

    Args:
        share: the largest difference of a variable or a result, as a share of the largest change by the stock step.
        name: that variable or result; "" if none differs.
        allowed: the share that may come from rounding, in this step or in variables that differ in their last bit.
        updates: the weights with optimizer variables whose updates differ by more than another order of sums may
            explain; the largest difference first.
    """

    share: float
    name: str = ""
    allowed: float = 0.0
    updates: tuple[UpdateDifference, ...] = ()

    @property
    def is_rounding(self) -> bool:
        """Returns whether rounding may explain the difference, apart from that of updates."""
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
    def of(
        variables: Sequence[Any],
        before: Sequence[np.ndarray],
        results: Any,
        *,
        origin: Sequence[np.ndarray] | None = None,
    ) -> "StepEnd":
        """Copies variables and results after a step.

        Args:
            before: the values of the variables before the step.
            results: nested tensors that the step returned.
            origin: values from which the same changes lead to `after`; None for those before the step.
        """
        after = [variable.numpy() for variable in variables]
        changes = [_find_distance(new, old) for old, new in zip(before, after, strict=True)]
        if origin is not None:
            after = [_move(new, old, start) for new, old, start in zip(after, before, origin, strict=True)]
        return StepEnd(
            tuple(variable.name.partition(":")[0] for variable in variables),
            tuple(bool(variable.trainable) for variable in variables),
            tuple(changes),
            tuple(new if change else None for new, change in zip(after, changes, strict=True)),
            tuple(_list_results(results)),
        )


@dataclass(frozen=True)
class StepShares:
    """The differences between two steps from the same state, as shares of the changes by the stock step.

    Args:
        numbers: share and name of each result, and of each variable except weights with optimizer variables.
        updates: share and name of each weight with optimizer variables.
    """

    numbers: tuple[tuple[float, str], ...]
    updates: tuple[tuple[float, str], ...]

    @property
    def largest(self) -> tuple[float, str]:
        """Returns the largest share in `numbers`, and its name; "" if nothing differs."""
        share, name = max(self.numbers, default=(0.0, ""))
        return share, name if share else ""


@dataclass
class StockReference:
    """Variables and results after the stock step, for comparison with other steps.

    Args:
        nudged: the differences of a stock step whose variables differ in their last bit; None if none has run.
    """

    stock: StepEnd | None = field(default=None, repr=False)
    nudged: StepShares | None = field(default=None, repr=False)

    def compare(self, end: StepEnd, dtypes: Iterable[tf.DType]) -> StepDifference | None:
        """Compares a step that computes in these types with the stock step; returns None if that did not run."""
        if self.stock is None:
            return None
        found = compare_ends(end, self.stock)
        rounding = max((_find_epsilon(dtype) for dtype in dtypes if dtype.is_floating), default=0.0) ** _KEPT_DIGITS
        own = 0.0 if self.nudged is None else self.nudged.largest[0]
        own_updates = [0.0] * len(found.updates) if self.nudged is None else [share for share, _ in self.nudged.updates]
        updates = [
            UpdateDifference(name, share, own_share)
            for (share, name), own_share in zip(found.updates, own_updates, strict=True)
            if share > rounding
        ]
        updates.sort(key=lambda one: one.share, reverse=True)
        return StepDifference(*found.largest, max(rounding, _NUDGE_MARGIN * own), tuple(updates))

    def note_nudged(self, end: StepEnd) -> None:
        """Records the differences of a stock step whose variables differ in their last bit."""
        assert self.stock is not None
        self.nudged = compare_ends(end, self.stock)


def compare_ends(end: StepEnd, stock: StepEnd) -> StepShares:
    """Returns the differences between a step and the stock step from the same state.

    A weight with optimizer variables is listed in `updates`, because an optimizer such as Adam makes a full update even
    if a gradient consists of rounding errors alone.
    """
    kinds = _find_kinds(stock.names, stock.is_trained)
    largest: dict[str, float] = {}
    for kind, change in zip(kinds, stock.changes, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), change)
    numbers = _compare_results(end, stock)
    updates: list[tuple[float, str]] = []
    for number, kind in enumerate(kinds):
        scale = max(stock.changes[number], _SMALL_CHANGE * largest[kind])
        share = _divide(_compare_variable(number, end, stock), scale)
        (updates if kind == _UPDATES else numbers).append((share, stock.names[number]))
    return StepShares(tuple(numbers), tuple(updates))


def nudge(value: np.ndarray) -> np.ndarray:
    """Returns the next numbers towards zero; integers, zeros and endless numbers stay."""
    if not _is_float(value):
        return value
    return np.where(np.isfinite(value), np.nextafter(value, np.zeros_like(value)), value)


def _move(value: np.ndarray, old: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Moves a value by the way from the old one to another origin, without rounding."""
    if not _is_float(value):
        return value
    moves = np.where(old == origin, 0.0, origin.astype(np.float64) - old.astype(np.float64))
    return np.asarray(value.astype(np.float64) + moves)


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


def _find_kinds(names: Sequence[str], is_trained: Sequence[bool]) -> list[str]:
    """Returns the kind of each variable; changes of one kind have a common scale.

    Weights with optimizer variables are one kind, and weights without are another. The optimizer's variables for one
    purpose, which Keras's names show, are a kind, too. Each other variable is a kind of its own.
    """
    weights = {name.replace("/", "_"): number for number, name in enumerate(names) if is_trained[number]}
    kinds = [_WEIGHTS if trained else name for name, trained in zip(names, is_trained, strict=True)]
    for number, name in enumerate(names):
        scope, _, kept = name.partition("/")
        parts = kept.split("_")
        for length in range(len(parts) - 1, 0, -1) if not is_trained[number] else ():
            weight = weights.get("_".join(parts[:length]))
            if weight is not None:
                kinds[number] = f"{scope}/{'_'.join(parts[length:])}"
                kinds[weight] = _UPDATES
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
    return _is_float(value) or tf.as_dtype(value.dtype).is_integer


def _is_float(value: np.ndarray) -> bool:
    return bool(tf.as_dtype(value.dtype).is_floating)


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
