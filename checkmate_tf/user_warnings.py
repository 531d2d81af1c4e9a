"""Warns at the line of the user's code that a warning is about."""

import sys
import warnings

# Lines of these packages are between the user's line and the one that warns.
_PASSED_OVER = ("checkmate_tf", "contextlib", "keras", "keras_hub", "tensorflow")


def warn(message: str) -> None:
    """Warns, with a RuntimeWarning, at the innermost line that is neither ours nor Keras's nor TensorFlow's."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
