"""estimate: parts counted by hand, the peak against what the runtime records, and models that it leaves alone."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf import cli
from checkmate_tf.errors import BatchError, UnsupportedModelError
from checkmate_tf.executors.xla.hlo.memory import XlaMemory
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.training.installed_step import find_installed_step
from checkmate_tf.training.traced_model import trace_model
from tests.training_steps import conv_chain, stateful_net

ROWS, WIDTH, MIB = 1024, 256, 2**20


def dense_chain(jit_compile: bool = False) -> keras.Model:
    """Four layers whose activations are 1 MiB each for 1024 rows."""
    hidden = [keras.layers.Dense(WIDTH, activation="relu", name=f"hidden_{number}") for number in range(4)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=jit_compile)
    return model


@pytest.mark.parametrize("jit_compile", [False, True])
def test_parts_are_those_counted_by_hand(jit_compile: bool) -> None:
    needed = checkmate_tf.estimate(dense_chain(jit_compile), batch_size=ROWS)
    weights = 4 * (64 * WIDTH + WIDTH + 3 * (WIDTH * WIDTH + WIDTH) + WIDTH + 1)
    assert needed.resident.parameters == weights
    # Adam: two moments like each weight, the iteration count and the learning rate.
    assert needed.resident.optimizer == 2 * weights + 8 + 4
    assert needed.resident.batch == ROWS * (64 + 1) * 4
    # The last layer's activation may go when its gradient, as large, has taken its place.
    large = {layer.name: layer.size_bytes for layer in needed.layers if layer.size_bytes > MIB / 2}
    assert {"hidden_0", "hidden_1", "hidden_2"} <= set(large) <= {f"hidden_{number}" for number in range(4)}
    assert set(large.values()) == {ROWS * WIDTH * 4}
    assert needed.activation_bytes == sum(layer.size_bytes for layer in needed.layers)
    parts = needed.activation_bytes + needed.gradient_bytes + needed.workspace_bytes
    assert needed.peak_bytes == needed.resident.total + parts
    assert all(size >= 0 for size in (needed.gradient_bytes, needed.workspace_bytes))
    table = str(needed)
    for words in ("optimizer state", "activations", "gradients", "workspace", "hidden_2", "1.00 MiB", "fits"):
        assert words in table


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_under_xla_the_parts_make_up_what_is_compiled(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = checkmate_tf.estimate(dense_chain(), batch_size=ROWS)
    held = simulated.activation_bytes + simulated.gradient_bytes
    compiled = XlaMemory(int(share * held), 0, simulated.resident.total - simulated.resident.prefetched)
    monkeypatch.setattr("checkmate_tf.training.estimate.read_xla_memory", lambda module: compiled)
    needed = checkmate_tf.estimate(dense_chain(jit_compile=True), batch_size=ROWS)
    assert needed.peak_bytes == compiled.peak_bytes + needed.resident.prefetched
    assert min(needed.activation_bytes, needed.gradient_bytes, needed.workspace_bytes) >= 0
    assert needed.activation_bytes == sum(layer.size_bytes for layer in needed.layers)


@pytest.mark.measures_memory
@pytest.mark.parametrize("make", [conv_chain, stateful_net])
def test_peak_is_what_the_runtime_records(make) -> None:
    model = make()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    needed = checkmate_tf.estimate(model, batch_size=64)
    stock = trace_model(model, batch_size=64)
    # Operations that happen to run side by side take more together.
    recorded = min(record_peak_bytes(stock.function, stock.spec.make_zeros().tensors) for _ in range(3))
    assert needed.peak_bytes - needed.resident.total == pytest.approx(recorded, rel=0.03)


def test_a_batch_far_beyond_the_device_is_estimated_and_the_model_trains_on() -> None:
    model = dense_chain()
    before = [np.asarray(variable) for variable in model.variables]
    needed = checkmate_tf.estimate(model, batch_size=2**30)
    assert needed.available_bytes is not None
    assert needed.peak_bytes > 2**30 * WIDTH * 4 > needed.available_bytes
    assert "does not fit" in str(needed)
    assert find_installed_step(model) is None
    assert all(np.array_equal(mine, np.asarray(now)) for mine, now in zip(before, model.variables, strict=True))
    model.fit(np.zeros((8, 64)), np.zeros((8, 1)), verbose=0)


def test_data_tell_open_sizes_and_bad_input_is_refused() -> None:
    model = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(BatchError, match="open shape"):
        checkmate_tf.estimate(model, batch_size=8)
    with pytest.raises(BatchError, match="neither batch_size nor data"):
        checkmate_tf.estimate(model)
    needed = checkmate_tf.estimate(model, data=(np.zeros((6, 5, 8)), np.zeros((6, 5, 4))), batch_size=6)
    assert (needed.batch_size, needed.resident.batch) == (6, 6 * 5 * (8 + 4) * 4)
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(UnsupportedModelError, match="run_eagerly"):
        checkmate_tf.estimate(model, batch_size=8)


def test_command_prints_a_table_or_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "chain.keras")
    dense_chain().save(path)
    assert cli.main(["estimate", path, "--batch-size", str(ROWS)]) == 0
    assert "peak, stock (estimated)" in capsys.readouterr().out
    assert cli.main(["estimate", path, "--batch-size", str(ROWS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["resident"]["batch"] == ROWS * (64 + 1) * 4
    assert found["layers"][0]["size_bytes"] == MIB
    assert found["peak_bytes"] > 4 * MIB
