"""Compiles all that is compiled before any test, so that no time limit pays for it in a fresh clone."""

import os

import pytest

from checkmate_tf.solvers import pruning
from checkmate_tf.solvers.annealing import annealer
from checkmate_tf.solvers.fastsa import solver as fastsa
from checkmate_tf.solvers.ordering import topological_order


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels():
    kernels = (annealer.MOVES, pruning.KERNEL, topological_order.BEAM, fastsa.MOVES)
    # What one process compiled the other one loads: of two that run tests, each begins at its end.
    for kernel in reversed(kernels) if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" else kernels:
        kernel.compile()
