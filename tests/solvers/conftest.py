"""Compiles the annealing's moves before any test, so that no time limit pays for it in a fresh clone."""

import pytest

from checkmate_tf.solvers import solve
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from tests.graphs import training_chain


@pytest.fixture(scope="session", autouse=True)
def compiled_moves():
    solve(training_chain(4), "80%", solver=StageAnnealing(), time_limit_s=1)
