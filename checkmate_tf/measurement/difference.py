"""Compares a rewritten step with the stock step: the variables and results of one step each, from the same state."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

# Rounding in another order may cost half of a type's digits.
_KEPT_DIGITS = 0.5
# What a stock step differs by from values that differ in their last bit varies from one such step to the next.
_NUDGE_MARGIN = 2.0
# Of one weight, more so: how near to zero its smallest gradient is decides.
_UPDATE_MARGIN = 10.0
# A gradient that is zero but for rounding differs by all of itself: changes that are smaller than this share of the
# largest one of their kind are compared with as much.
_SMALL_CHANGE = 0.01
# Kinds of weights: those that stand for themselves, and those of which an optimizer keeps something.
_WEIGHTS, _UPDATES = "weights", "updates of weights"
_NUMPY_FLOATS = (tf.float16, tf.float32, tf.float64)
# Of bfloat16, and less than that of types with fewer bits, in which nothing is added up.
_OTHER_EPSILON = 2.0**-7


@dataclass(frozen=True)
class UpdateDifference:
    """An update difference says how far the update of one weight is from that of the stock step.

    An optimizer such as Adam divides a gradient by its size. It makes a full update of a gradient that is zero but for
    rounding, such as that of a bias before a batch normalization, and rounding decides the direction.

    Args:
        name: the weight.
        share: the largest difference of a number's update, over the most that the stock step changes the weight by.
        stock_share: the same between two stock steps, one of them from variables that differ in their last bit.
    """

    name: str
    share: float
    stock_share: float

    @property
    def is_rounding(self) -> bool:
        """Returns whether rounding alone changes the update of the stock step about as much."""
        return self.share <= _UPDATE_MARGIN * self.stock_share


@dataclass(frozen=True)
class StepDifference:
    """A step difference says how far a rewritten step ends from where the stock step ends.

    What an optimizer keeps of a weight's gradients stands for the weight, whose update is compared apart from it.

    Args:
        share: the largest difference of a variable or a result, over the most that the stock step changes it by.
        name: the variable or result that it is of; "" where nothing differs.
        allowed: what rounding, and what the stock step differs by from variables that differ in their last bit, may
            cause.
        updates: the weights, of which an optimizer keeps something, whose updates differ by more than rounding in the
            order of sums may cause; the largest difference first.
    """

    share: float
    name: str = ""
    allowed: float = 0.0
    updates: tuple[UpdateDifference, ...] = ()

    @property
    def is_rounding(self) -> bool:
        """Returns whether no more differs than rounding may cause, but for updates."""
        return self.share <= self.allowed


@dataclass(frozen=True)
class StepEnd:
    """A step end is the state in which one step leaves its variables, and its results, in host memory.

    Args:
        changes: the most that the step changes a number of each variable by.
        after: of each variable; None where the step left it as it was, so that frozen weights take no memory.
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
        """Copies where a step ended.

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
    """Step shares say how far two steps from the same state end apart, as shares of the changes of the stock step.

    Args:
        numbers: of each result, and of each variable but weights of which an optimizer keeps something: share and name.
        updates: of these weights.
    """

    numbers: tuple[tuple[float, str], ...]
    updates: tuple[tuple[float, str], ...]

    @property
    def largest(self) -> tuple[float, str]:
        """Returns the largest share of a number, and whose it is; "" if nothing differs."""
        share, name = max(self.numbers, default=(0.0, ""))
        return share, name if share else ""


@dataclass
class StockReference:
    """A stock reference remembers where the stock step ended, for the steps that are compared with it.

    Args:
        nudged: how far the stock step ends from there if its variables differ in their last bit; None if that is
            unknown.
    """

    stock: StepEnd | None = field(default=None, repr=False)
    nudged: StepShares | None = field(default=None, repr=False)

    def compare(self, end: StepEnd, dtypes: Iterable[tf.DType]) -> StepDifference | None:
        """Compares a step that computes in these types with the stock step; None where that did not run."""
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
        """Notes where the stock step ends from variables that differ in their last bit."""
        assert self.stock is not None
        self.nudged = compare_ends(end, self.stock)


def compare_ends(end: StepEnd, stock: StepEnd) -> StepShares:
    """Finds how far a step ends from the stock step, from the same state.

    What an optimizer keeps of a weight's gradients stands for the weight: an optimizer such as Adam makes a full update
    of a gradient that is zero but for rounding.
    """
    kinds = _find_kinds(stock.names, stock.is_trained)
    largest: dict[str, float] = {}
    for kind, change in zip(kinds, stock.changes, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), change)
    numbers, updates = _compare_results(end, stock), []
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
    """Finds by how much a variable differs, without what is rounded off where a change is added to it."""
    found, expected = end.after[number], stock.after[number]
    if found is None or expected is None:
        return end.changes[number] + stock.changes[number]
    return max(0.0, _find_distance(found, expected) - _find_epsilon(expected.dtype) * _find_largest(expected))


def _compare_results(end: StepEnd, stock: StepEnd) -> list[tuple[float, str]]:
    """Finds by which share of itself each result differs; the share of the largest of its kind where it is small."""
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
    """Finds which variables have changes of one size: weights, and by the names that Keras gives, what an optimizer
    keeps of each.

    Weights of which an optimizer keeps something are a kind apart from others; other variables are of a kind of their
    own.
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
    """Lists the numbers that a step returned, by the path to each."""
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
    """Finds the largest difference of two numbers; endless where one alone is not a number."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.size or _is_same(found, expected) or not _is_number(found):
        return 0.0
    is_equal = (found == expected) | ((found != found) & (expected != expected))  # endless ones too
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
    """Finds the distance from 1 to the next number of a type; 0 for types that are exact."""
    found = tf.as_dtype(dtype)
    if not found.is_floating:
        return 0.0
    return float(np.finfo(found.as_numpy_dtype).eps) if found in _NUMPY_FLOATS else _OTHER_EPSILON


def _divide(distance: float, scale: float) -> float:
    if not distance:
        return 0.0
    return distance / scale if scale else float("inf")
