"""Two-phase rounding of a fractional S (Checkmate, section 5.2, Algorithm 2; appendix D).

Phase one rounds S; phase two takes the R of least cost for it (solvers/stages.py), so every result computes the
graph. Whether it keeps within the budget is for the caller to see.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

Rounding = Literal["deterministic", "swept", "randomized"]
_DECIMALS = 6  # values that agree so far differ only by the tolerance of the method that found them


def rounded(fractional: np.ndarray, rounding: Rounding, *, num_samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields integral S matrices, bool.

    "deterministic": entries above 0.5, as in Algorithm 2. "swept": entries above each of up to `num_samples`
    thresholds, placed evenly among the fractional entries. "randomized": `num_samples` draws, each entry 1 with its own
    probability.
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
    """Returns 0.5 and values between the different fractional entries, at most `num_samples` in all."""
    different = np.unique(np.round(fractional, _DECIMALS))
    between = (different[1:] + different[:-1]) / 2
    if len(between) >= num_samples:
        between = between[np.linspace(0, len(between) - 1, num_samples - 1).astype(np.int64)]
    return np.unique(np.append(between, 0.5))
