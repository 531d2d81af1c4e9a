"""Tools around Keras: KerasTuner, the profiler through TensorBoard, BackupAndRestore after an interruption."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from experiments.keras_users.compare import BATCH_SIZE, RecomputeForward, relative_difference
from experiments.keras_users.models import conv_net, dense_net, images, vectors

QUICK: dict[str, Any] = {
    "budget": "1000%",
    "options": checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
    "measure": False,
}


def rematerialized(model: keras.Model) -> keras.Model:
    checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, **QUICK)
    return model


def test_keras_tuner_goes_on_after_an_infeasible_budget(tmp_path: Path) -> None:
    tuner_package = pytest.importorskip("keras_tuner")
    infeasible: list[InfeasibleBudgetError] = []

    def build(hyperparameters: Any) -> keras.Model:
        model = dense_net()
        budget = {"tight": "1%", "wide": "200%"}[hyperparameters.Choice("budget", ["tight", "wide"])]
        try:
            checkmate_tf.rematerialize(
                model,
                batch_size=BATCH_SIZE,
                **(QUICK | {"budget": budget, "options": checkmate_tf.Options(costs="flops")}),
            )
        except InfeasibleBudgetError as error:
            infeasible.append(error)
            raise tuner_package.errors.FailedTrialError(str(error)) from error
        return model

    # KerasTuner builds the first of the values once to learn the space: a trial must come before it can fail.
    space = tuner_package.HyperParameters()
    space.Choice("budget", ["tight", "wide"], default="wide")
    tuner = tuner_package.GridSearch(
        build, "loss", hyperparameters=space, tune_new_entries=False, max_trials=2, directory=tmp_path, overwrite=True
    )
    data = vectors()
    tuner.search(data["x"], data["y"], batch_size=BATCH_SIZE, verbose=0, epochs=1)
    states = {trial.hyperparameters.get("budget"): trial.status for trial in tuner.oracle.trials.values()}
    assert states == {"tight": "FAILED", "wide": "COMPLETED"}
    assert infeasible[0].least_budget_bytes
    assert tuner.get_best_hyperparameters()[0].get("budget") == "wide"


def test_tensorboard_and_the_profiler_see_the_copies(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorFlow writes summaries through tensorboard")
    model = rematerialized(conv_net())
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, profile_batch=(2, 4))
    model.fit(**images(), batch_size=BATCH_SIZE, verbose=0, callbacks=[board])
    assert list(tmp_path.rglob("events*"))
    (profile,) = tmp_path.rglob("*.xplane.pb")
    assert b"/recompute_1" in profile.read_bytes()


class _Interrupted(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise KeyboardInterrupt


def test_interrupted_training_is_resumed(tmp_path: Path) -> None:
    """Epochs 0 and 1, an interruption, a new process's model that goes on from the backup: as stock in one go."""

    def train(model: keras.Model, *callbacks: Any) -> keras.Model:
        keras.utils.set_random_seed(8)
        model.fit(**vectors(), batch_size=BATCH_SIZE, shuffle=False, verbose=0, epochs=4, callbacks=list(callbacks))
        return model

    def made() -> keras.Model:
        keras.utils.set_random_seed(7)
        return dense_net()

    stock = train(made())
    with pytest.raises(KeyboardInterrupt):
        train(rematerialized(made()), keras.callbacks.BackupAndRestore(tmp_path), _Interrupted())
    resumed = train(rematerialized(made()), keras.callbacks.BackupAndRestore(tmp_path))
    assert int(resumed.optimizer.iterations) == int(stock.optimizer.iterations) == 20
    for mine, theirs in zip(resumed.variables, stock.variables, strict=True):
        assert relative_difference(np.asarray(mine), np.asarray(theirs)) <= 1e-5
