"""Two-phase rounding of a fractional S (Checkmate, section 5.2, Algorithm 2; appendix D).

Phase one rounds S. Phase two takes the R of least cost for it (solvers/stages.py), so every result computes the graph.
The caller has to check that it stays within the budget.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

Rounding = Literal["deterministic", "swept", "randomized"]
_DECIMALS = 6  # values that agree to so many decimals differ only by the tolerance of the LP method


def rounded(fractional: np.ndarray, rounding: Rounding, *, num_samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields integral S matrices, bool.

    "deterministic" rounds entries above 0.5 up, as Algorithm 2 does. "swept" does so with each of up to `num_samples`
    thresholds, spread evenly among the fractional entries. "randomized" makes `num_samples` draws, in which each entry
    is its own probability of being 1.
    """
    if rounding == "deterministic":
        yield fractional > 0.5
        return
    if rounding == "randomized":
        random = np.random.default_rng(seed)
        for _ in range(num_samples):
            yield random.random(fractional.shape) < fractional
        return
    for threshold in _thresholds(fractional, num_samples):
        yield fractional > threshold


def _thresholds(fractional: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns 0.5 and values between the different fractional entries, at most `num_samples` in total."""
    different = np.unique(np.round(fractional, _DECIMALS))
    between = (different[1:] + different[:-1]) / 2
    if len(between) >= num_samples:
        between = between[np.linspace(0, len(between) - 1, num_samples - 1).astype(np.int64)]
    return np.unique(np.append(between, 0.5))
