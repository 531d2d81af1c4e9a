"""How far tensors are from what is expected, each relative to its largest entry, without those that are rounding."""

from collections.abc import Sequence

import numpy as np

_ZERO_SHARE = 1e-5


def are_compared(expected: Sequence[np.ndarray], num_gradients: int) -> list[bool]:
    """Which tensors are nowhere near zero: above 1e-5 of the largest gradient, and gradients come first.

    Others are rounding alone, such as the gradient of a bias before a batch normalization.
    """
    sizes = [_largest(array) for array in expected]
    floor = _ZERO_SHARE * max(sizes[:num_gradients])
    return [size > floor for size in sizes]


def largest_difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], compared: Sequence[bool]) -> float:
    """The largest difference of those tensors that are compared."""
    pairs = zip(found, expected, compared, strict=True)
    return max(_largest(np.float64(a) - np.float64(b)) / _largest(b) for a, b, counts in pairs if counts)


def _largest(array: np.ndarray) -> float:
    return float(np.abs(np.float64(array)).max(initial=0))
