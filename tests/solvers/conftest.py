"""Compiles all that is compiled before any test, so that no time limit pays for it in a fresh clone."""

import pytest

from checkmate_tf.solvers import pruning
from checkmate_tf.solvers.annealing import annealer
from checkmate_tf.solvers.fastsa import solver as fastsa
from checkmate_tf.solvers.ordering import topological_order


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels():
    for kernel in (annealer.MOVES, fastsa.MOVES, pruning.KERNEL, topological_order.BEAM):
        kernel.compile()
