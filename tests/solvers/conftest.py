"""Compiles the annealing's moves before any test, so that no time limit pays for it in a fresh clone."""

import pytest

from checkmate_tf.solvers.annealing import annealer


@pytest.fixture(scope="session", autouse=True)
def compiled_moves():
    annealer.compiled_moves()
