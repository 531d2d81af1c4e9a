"""Offloading through `rematerialize`: the same numbers, errors that leave the model whole, and what the plan says."""

import errno
import json
import os

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf.errors import (
    BudgetError,
    InfeasibleBudgetError,
    OffloadError,
    PlanError,
    ProfileError,
    SolverError,
    UnsupportedModelError,
)
from checkmate_tf.executors.graph.state_file import StateFile
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.planning.options import Options

_BATCH_SIZE = 4
_BANDWIDTH = "20GiB"  # so that what is chosen does not depend on the disk


def make_batch():
    x = np.random.default_rng(0).random((_BATCH_SIZE, 64, 64, 3), dtype=np.float32)
    return x, np.ones((_BATCH_SIZE,), np.float32)


def make_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *layers, *pooled])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def offload(model, directory, *, budget="55%", **arguments):
    options = Options(offload=f"file:{directory}", bandwidth=_BANDWIDTH, costs="roofline")
    quick = {"data": make_batch(), "options": options, "measure": False, "progress": False, "time_limit_s": 3}
    return checkmate_tf.rematerialize(model, budget=budget, **(quick | arguments))


def test_training_ends_with_the_numbers_of_the_stock_step(tmp_path):
    model, stock = make_model(), make_model()
    plan = offload(model, tmp_path)
    assert plan.offloaded
    for _ in range(3):
        assert model.train_on_batch(*make_batch()) == stock.train_on_batch(*make_batch())
    for mine, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not list(tmp_path.iterdir())


@pytest.mark.measures_memory
def test_the_step_is_measured_within_its_budget(tmp_path):
    plan = offload(make_model(), tmp_path, measure=True)
    assert plan.offloaded
    assert plan.measured_peak_bytes <= plan.budget_bytes <= 0.6 * plan.stock_peak_bytes
    assert plan.difference == 0.0


def test_a_full_disk_is_an_error_after_a_whole_step(tmp_path, monkeypatch):
    model, stock = make_model(), make_model()
    offload(model, tmp_path)
    model.train_on_batch(*make_batch())
    write, calls = os.pwrite, []

    def fail_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail_second)
        with pytest.raises(OffloadError, match=r"No space left.*with the right numbers"):
            model.train_on_batch(*make_batch())
    model.train_on_batch(*make_batch())
    for _ in range(3):
        stock.train_on_batch(*make_batch())
    for mine, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_plan_says_what_is_copied(tmp_path):
    plan = offload(make_model(), tmp_path)
    total_bytes = sum(one.size_bytes for one in plan.offloaded)
    assert total_bytes % (1 << 20) == 0  # each activation is of 4 x 64 x 64 x 16 floats
    number = len(plan.offloaded)
    assert f"copies {total_bytes >> 20}.00 MiB of {number} value" in plan.summary()
    assert 0 <= plan.hidden_share <= 1
    plan.to_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    copies = [event for event in events if event.get("cat") == "offload"]
    assert len(copies) == number + sum(one.times for one in plan.offloaded)
    assert {event["tid"] for event in copies} == {2, 3}


def test_a_plan_says_that_nothing_is_offloaded(tmp_path):
    plan = offload(make_model(), tmp_path, budget="100%")
    assert not plan.offloaded
    assert "Nothing is offloaded" in plan.summary()


def test_a_plan_file_is_installed_with_a_directory(tmp_path):
    plan = offload(make_model(), tmp_path)
    path = tmp_path / "plan.json"
    plan.save(path)
    model, stock = make_model(), make_model()
    with pytest.raises(PlanError, match="name their place"):
        checkmate_tf.rematerialize(model, plan=path, data=make_batch(), measure=False, progress=False)
    loaded = offload(model, tmp_path, budget="auto", plan=path)
    assert loaded.schedule == plan.schedule
    assert model.train_on_batch(*make_batch()) == stock.train_on_batch(*make_batch())


def test_a_model_that_is_compiled_again_follows_its_plan(tmp_path):
    model = make_model()
    offload(model, tmp_path)
    model.train_on_batch(*make_batch())
    model.compile("sgd", "mse", jit_compile=False)
    assert np.isfinite(model.train_on_batch(*make_batch()))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"offload": "disk"}, OffloadError, "file:DIRECTORY"),
        ({"offload": "file:"}, OffloadError, "file:DIRECTORY"),
        ({"offload": "file:/", "bandwidth": "50%"}, BudgetError, "bytes in a second"),
        ({"bandwidth": "fast"}, BudgetError, "bandwidth"),
    ],
)
def test_what_is_no_place_to_offload_to_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        Options(**options)


def test_what_cannot_offload_says_so(tmp_path):
    model = make_model()
    with pytest.raises(OffloadError, match="choose another directory"):
        checkmate_tf.rematerialize(
            model, data=make_batch(), budget="50%", options=Options(offload=f"file:{tmp_path}/none"), progress=False
        )
    with pytest.raises(ProfileError, match="costs must be times"):
        offload(model, tmp_path, options=Options(offload=f"file:{tmp_path}", costs="flops"))
    with pytest.raises(SolverError, match="twremat does not offload"):
        offload(model, tmp_path, options=Options(offload=f"file:{tmp_path}", costs="roofline", solver="twremat"))
    with pytest.raises(UnsupportedModelError, match="share one memory"):
        offload(model, tmp_path, options=Options(offload="host", costs="roofline"))
    model.compile("sgd", "mse", jit_compile=True)
    for place in (f"file:{tmp_path}", "host"):
        with pytest.raises(UnsupportedModelError, match="jit_compile=False"):
            offload(model, tmp_path, options=Options(offload=place, costs="roofline"))
    for function in (checkmate_tf.pareto, checkmate_tf.max_batch_size):
        with pytest.raises(SolverError, match="leave offload out"):
            function(
                make_model(),
                **({"budget": "1GiB"} if function is checkmate_tf.max_batch_size else {"batch_size": 2}),
                options=Options(offload="file:."),
            )


def make_wide_model(optimizer="adam"):
    """Most of its memory is optimizer state; the second layer is frozen."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(4)]
    layers[1].trainable = False
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def make_wide_batch():
    return np.random.default_rng(0).random((16, 512), dtype=np.float32), np.ones((16, 1), np.float32)


def offload_state(model, directory, **arguments):
    """Plans for less memory than weights, gradients and optimizer state take together."""
    given = {"data": make_wide_batch(), "budget": "65%"}
    return offload(model, directory, **(given | arguments))


def check_equal(model, stock):
    pairs = zip(model.variables + model.optimizer.variables, stock.variables + stock.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)


def test_optimizer_state_and_frozen_weights_leave_memory(tmp_path):
    model, stock = make_wide_model(), make_wide_model()
    with pytest.raises(InfeasibleBudgetError):
        offload_state(make_wide_model(), tmp_path, options=Options(costs="roofline"))
    plan = offload_state(model, tmp_path)
    assert plan.resident.offloaded >= 4 << 20
    assert (
        f"{plan.resident.offloaded >> 20}.00 MiB of optimizer state and frozen weights are offloaded" in plan.summary()
    )
    assert plan.overhead > 0
    for step in range(6):
        if step == 3:  # The user's own assignments count, and the variables return to the file.
            for each in (model, stock):
                each.layers[1].set_weights([np.ones((512, 512), np.float32), np.zeros(512, np.float32)])
                each.optimizer.variables[3].assign(0.01 * np.ones(each.optimizer.variables[3].shape, np.float32))
        assert model.train_on_batch(*make_wide_batch()) == stock.train_on_batch(*make_wide_batch())
        check_equal(model, stock)
    model.predict(make_wide_batch()[0], verbose=0)
    assert not list(tmp_path.iterdir())


def test_steps_of_several_shapes_move_the_state_in_turn(tmp_path):
    """Lion reads its state after it has computed the next one."""
    model, stock = make_wide_model("lion"), make_wide_model("lion")
    x, y = make_wide_batch()
    for size in (16, 5):
        plan = offload_state(model, tmp_path, data=(x[:size], y[:size]), budget="80%")
        assert plan.resident.offloaded
    for size in (16, 5, 16):
        assert model.train_on_batch(x[:size], y[:size]) == stock.train_on_batch(x[:size], y[:size])
    check_equal(model, stock)


def test_a_plan_file_moves_the_state_again(tmp_path):
    plan = offload_state(make_wide_model(), tmp_path)
    plan.save(tmp_path / "plan.json")
    model, stock = make_wide_model(), make_wide_model()
    with pytest.raises(PlanError, match="name their place"):
        checkmate_tf.rematerialize(model, plan=tmp_path / "plan.json", data=make_wide_batch(), measure=False)
    loaded = offload_state(model, tmp_path, budget="auto", plan=tmp_path / "plan.json")
    assert (loaded.resident, loaded.overhead) == (plan.resident, plan.overhead)
    assert model.train_on_batch(*make_wide_batch()) == stock.train_on_batch(*make_wide_batch())


@pytest.mark.measures_memory
def test_state_in_a_file_takes_no_memory_of_the_allocator(tmp_path, monkeypatch):
    move_in, moved = StateFile.move_in, []
    monkeypatch.setattr(StateFile, "move_in", lambda file: (moved.append(len(file.variables)), move_in(file)))
    model = make_wide_model()
    plan = offload_state(model, tmp_path, measure=True)
    assert plan.resident.offloaded
    assert len(moved) > 1, "it was not measured in the file, but only moved there for training"
    assert plan.measured_peak_bytes <= plan.budget_bytes < 0.7 * plan.stock_peak_bytes
    bytes_before = count_bytes_in_use()
    for _ in range(3):
        model.train_on_batch(*make_wide_batch())
        assert count_bytes_in_use() <= bytes_before + (1 << 19)  # half of a variable
    model.optimizer.variables[2].assign(np.zeros(model.optimizer.variables[2].shape, np.float32))
    model.train_on_batch(*make_wide_batch())
    assert count_bytes_in_use() <= bytes_before + (1 << 19)  # half of a variable
