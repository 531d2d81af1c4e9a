"""Compiles all that is compiled before any test, so that no time limit pays for it in a fresh clone."""

import os

import pytest

from checkmate_tf.solvers.portfolio.kernels import KERNELS


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels():
    # What one process compiled the other one loads: of two that run tests, each begins at its end.
    for kernel in reversed(KERNELS) if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" else KERNELS:
        kernel.compile()
