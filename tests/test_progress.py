"""Bars of long work, and interrupts that leave the model as it was."""

import io
import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.measurement import measured_steps as measuring
from checkmate_tf.profiling.costs import MeasuredCosts
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.solvers import Solver
from checkmate_tf.training.rematerialize import find_installed_step
from experiments.keras_users.compare import RecomputeForward
from experiments.keras_users.models import dense_net, vectors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_while_profiling_and_planning(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    costs = MeasuredCosts(cache_path=tmp_path / "profile")
    arguments: dict[str, Any] = {
        "batch_size": 8,
        "budget": "1000%",
        "measure": False,
    }
    options = checkmate_tf.Options(solver=RecomputeForward(), costs=costs)
    checkmate_tf.rematerialize(dense_net(), options=options, **arguments)
    for stage in ("planning: tracing the step", "timing its nodes", "solving"):
        assert (stage in shown.getvalue()) == terminal
    before = len(shown.getvalue())
    checkmate_tf.rematerialize(dense_net(), options=replace(options, costs="flops"), progress=False, **arguments)
    assert shown.getvalue()[before:] == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_while_estimating(progress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    checkmate_tf.estimate(dense_net(), batch_size=8, progress=progress)
    assert ("tracing the step" in shown.getvalue()) == progress


@dataclass(frozen=True)
class Interrupted(Solver):
    def search(self, search: Any) -> Any:
        raise KeyboardInterrupt


def _interrupting_steps(num_calls: int) -> Any:
    """Measures the peak of `num_calls` runs and raises after the last."""
    left = [num_calls]

    def measure(run: Any, **options: Any) -> int | None:
        peak_bytes = measure_allocator_peak_bytes(run, **options)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return peak_bytes

    return measure


class _Interrupting:
    """A variable that is interrupted whenever it is put back."""

    def __init__(self, variable: Any) -> None:
        self.variable, self.numpy, self.dtype = variable, variable.numpy, variable.dtype

    @property
    def handle(self) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return self.variable.handle


@pytest.mark.parametrize("where", ["solver", "measured step", "state that is put back"])
def test_interrupt_leaves_the_model_as_it_was(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keras.utils.set_random_seed(1)
    model = dense_net()
    model.fit(**vectors(), batch_size=8, verbose=0)
    state = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [np.asarray(variable) for variable in state]
    if where == "measured step":
        # The first call only asks whether the allocator tells anything.
        monkeypatch.setattr(measuring, "measure_allocator_peak_bytes", _interrupting_steps(2))
    if where == "state that is put back":
        keep_state = measuring.keep_state
        monkeypatch.setattr(measuring, "keep_state", lambda state: keep_state([_Interrupting(each) for each in state]))
    solver = Interrupted() if where == "solver" else RecomputeForward()
    with pytest.raises(KeyboardInterrupt):
        checkmate_tf.rematerialize(
            model, batch_size=8, budget="1000%", options=checkmate_tf.Options(solver=solver, costs="flops")
        )
    assert find_installed_step(model) is None
    assert "train_step" not in model.__dict__
    assert all(np.array_equal(old, np.asarray(new)) for old, new in zip(before, state, strict=True))


def test_an_interrupt_while_the_optimizer_is_built_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_net()
    add = model.optimizer.add_variable_from_reference

    def interrupt(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return add(*given, **options)

    monkeypatch.setattr(model.optimizer, "add_variable_from_reference", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkmate_tf.rematerialize(
            model, batch_size=8, budget="1000%", options=checkmate_tf.Options(solver=Interrupted(), costs="flops")
        )
    monkeypatch.undo()
    model.fit(**vectors(), batch_size=8, verbose=0)
    assert len(model.optimizer.variables) == 2 + len(model.trainable_variables)  # iterations, rate, momentums


def test_held_interrupts_wait() -> None:
    handler, reached = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with hold_interrupts() as let_through:
            let_through()
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the next line")
            with pytest.raises(KeyboardInterrupt):
                let_through()
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the next line", "the end"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_in_other_threads_nothing_is_held() -> None:
    held = []

    def hold() -> None:
        with hold_interrupts():
            held.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert held == [signal.getsignal(signal.SIGINT)]
