"""Warnings that point at the line of the user's code that they are about."""

import sys
import warnings
from pathlib import Path

# Code between the user's line and ours: this package, Keras and TensorFlow.
_PASSED_OVER = (f"{Path(__file__).parent}", "/keras/src/", "/keras_hub/", "/tensorflow/python/", "contextlib.py")


def warn(message: str) -> None:
    """A RuntimeWarning at the innermost line that is neither ours nor Keras's nor TensorFlow's."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _PASSED_OVER):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
