"""Settings of the whole test run, made before any test module imports TensorFlow."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The allocator of the CPU counts memory only while oneDNN is on, the default on newer processors only.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# XLA then compiles in about two thirds of the time. It fixes a step's memory before this setting matters.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# The same examples on every run, so that a failure is the change's and not the draw's.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# A shell has what it starts in the background ignore interrupts, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps modules, which stay until the end, out of each later search for garbage: they are most of all objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def forgotten_plans() -> Iterator[None]:
    """Keeps each plan in a folder of its own, so that no test finds what another one, or the user, has planned."""
    from checkmate_tf.planning import plan_cache

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "get_default_folder", lambda: Path(tempfile.mkdtemp(dir=folder)))
        yield


@pytest.fixture(scope="session", autouse=True)
def built_optimizers() -> Iterator[None]:
    """Builds the optimizer before a model's first stock step, because Keras otherwise traces that step twice."""
    if "keras" not in sys.modules:  # No test trains.
        yield
        return
    import keras

    from checkmate_tf.keras_private import is_keras_method
    from checkmate_tf.training.installed_step import find_installed_step

    make = keras.Model.make_train_function

    def build_and_make(self: Any, force: bool = False) -> None:
        is_stock = find_installed_step(self) is None and is_keras_method(self, "train_step")
        if is_stock and self.built and self.optimizer and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        make(self, force)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "make_train_function", build_and_make)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compiles all that is compiled before any test, so that no time limit pays for it in a fresh clone."""
    from checkmate_tf.solvers.portfolio.kernels import KERNELS

    # What one process compiled the other one loads: of two that run tests, each begins at its end.
    for kernel in reversed(KERNELS) if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" else KERNELS:
        kernel.compile()
