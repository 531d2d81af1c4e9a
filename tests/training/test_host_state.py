"""Training with optimizer state in host memory, on two devices of a CPU: numbers are those of stock training."""

import subprocess
import sys

import pytest

from tests.programs import ON_TWO_DEVICES

_MODELS = """
import os
import tempfile

import checkmate_tf
import checkmate_tf.executors.graph.step
from checkmate_tf.training.rematerialize import find_installed_step
from tests.training.test_offloading import check_equal, make_wide_batch, make_wide_model

# Only a GPU may offload to the host.
checkmate_tf.executors.graph.step.find_default_device = lambda: "GPU:0"
x, y = make_wide_batch()


def plan(model, budget="80%", data=(x, y), **arguments):
    options = checkmate_tf.Options(offload="host", bandwidth="8GiB", costs="roofline")
    given = {"measure": False, "progress": False, "time_limit_s": 5} | arguments
    return checkmate_tf.rematerialize(model, data=data, budget=budget, options=options, **given)


def count_on_host(model):
    return sum(one.value.handle.device.endswith("CPU:0") for one in model.optimizer.variables)


def train(*models, data=(x, y)):
    losses = [model.train_on_batch(*data) for model in models]
    assert len(set(losses)) == 1, losses
    check_equal(*models)
"""

_FIT = """
with tf.device("CPU:1"):
    model, stock = make_wide_model(), make_wide_model()
    planned = plan(model)
    assert planned.resident.offloaded
    assert "of optimizer state and frozen weights are offloaded" in planned.summary()
    assert count_on_host(model)
    long = [np.concatenate([part] * 5)[:70] for part in (x, y)]
    histories = [one.fit(*long, batch_size=16, epochs=2, shuffle=False, verbose=0).history for one in (model, stock)]
    assert histories[0] == histories[1]
    check_equal(model, stock)
    for one in (model, stock):
        one.optimizer.variables[3].assign(0.01 * np.ones(one.optimizer.variables[3].shape, np.float32))
    train(model, stock)
    assert count_on_host(model)
"""

_OTHER_SHAPES = """
with tf.device("CPU:1"):
    model, stock = make_wide_model("lion"), make_wide_model("lion")
    plan(model)
    on_host = count_on_host(model)
    assert on_host
    plan(model, data=(x[:5], y[:5]), budget="100%")
    assert not count_on_host(model)
    for size in (16, 5, 16, 3, 16):  # Keras's own step trains on three rows, because it is within the budget, too
        train(model, stock, data=(x[:size], y[:size]))
        assert count_on_host(model) == (on_host if size == 16 else 0)
        assert (find_installed_step(model).last_entry.planned is None) == (size == 3)
"""

_SAVE_AND_RESTORE = """
with tf.device("CPU:1"), tempfile.TemporaryDirectory() as folder:
    model, stock = make_wide_model(), make_wide_model()
    path = os.path.join(folder, "plan.json")
    first = plan(model)
    first.save(path)
    train(model, stock)
    for number, one in enumerate((model, stock)):
        one.save(os.path.join(folder, f"{number}.keras"))
    check_equal(*(keras.models.load_model(os.path.join(folder, f"{number}.keras")) for number in range(2)))
    checkmate_tf.restore(model)
    assert not count_on_host(model)
    train(model, stock)
    again = plan(model, budget="auto", plan=path)
    assert again.resident == first.resident and count_on_host(model)
    train(model, stock)
"""


@pytest.mark.parametrize("program", [_FIT, _OTHER_SHAPES, _SAVE_AND_RESTORE], ids=["fit", "other shapes", "restore"])
def test_numbers_are_those_of_stock_training(program):
    code = ON_TWO_DEVICES + "import keras\nimport numpy as np\n" + _MODELS + program
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
