"""Optimizer state and frozen weights in a file: which can go there, and the same numbers by every optimizer."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.graph.movable_state import find_movable
from checkmate_tf.executors.graph.moved_state import MovedState
from checkmate_tf.executors.graph.transfer_costs import TransferCosts
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.executors.step import OffloadFolder
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.traced_model import trace_model

_COSTS = TransferCosts(1e9, 1e9)
_SIZE_BYTES = 256 << 10
_PLACE = OffloadFolder(".")
BATCH = (np.random.default_rng(0).random((4, 256), dtype=np.float32), np.ones((4, 1), np.float32))

OPTIMIZERS = {
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True, use_ema=True),
    "lion": keras.optimizers.Lion,  # reads its state after the assignment's operands are known
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "ftrl": keras.optimizers.Ftrl,
    "adadelta": keras.optimizers.Adadelta,
}


def make_model(optimizer="adam"):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    layers[0].trainable = False
    model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def count_mapped_bytes():
    """Counts the bytes of unnamed files in the resident set of this process."""
    mapped, size_bytes = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            mapped = "checkmate_tf-" in line
        elif mapped and line.startswith("Rss:"):
            size_bytes += int(line.split()[1]) << 10
    return size_bytes


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_are_those_of_the_stock_step(optimizer, tmp_path):
    model, stock = (make_model(OPTIMIZERS[optimizer]()) for _ in range(2))
    traced = trace_model(model, data=BATCH).extract()
    state = MovedState.of(traced, OffloadFolder(str(tmp_path)), _COSTS, 1 << 30)
    assert state.frozen_bytes == _SIZE_BYTES < state.size_bytes
    emitted = emit(traced, make_retain_all_schedule(traced.graph), state=state)
    for _ in range(3):
        emitted(*map(tf.constant, BATCH))
        stock.train_on_batch(*BATCH)
        assert count_mapped_bytes() < _SIZE_BYTES  # Linux maps some pages around those that are read.
    pairs = zip(model.variables + model.optimizer.variables, stock.variables + stock.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)
    nodes = {node.name: node for node in emitted.graph_def.node}
    for name, readers in [pair for one in state.moved for pair in one.writes.items()]:
        assert {f"^{reader}" for reader in readers} <= set(nodes[f"{name}/target"].input)
    for variable, array in zip(state.file.variables, state.file.arrays, strict=True):
        assert np.asarray(memoryview(variable.read_value())).ctypes.data == array.ctypes.data


def test_a_traced_graph_that_calls_the_step_moves_the_state_first(tmp_path):
    model, stock = make_model(), make_model()
    traced = trace_model(model, data=BATCH).extract()
    state = MovedState.of(traced, OffloadFolder(str(tmp_path)), _COSTS, 1 << 30)
    emitted = emit(traced, make_retain_all_schedule(traced.graph), state=state)
    tf.function(lambda *batch: emitted(*batch))(*map(tf.constant, BATCH))
    stock.train_on_batch(*BATCH)
    for mine, theirs in zip(model.optimizer.variables, stock.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)
    for variable, array in zip(state.variables, state.file.arrays, strict=True):
        assert np.asarray(memoryview(variable.read_value())).ctypes.data == array.ctypes.data


def test_the_largest_variables_move_first():
    model = make_model()
    traced = trace_model(model, data=BATCH).extract()
    movable = find_movable(traced, _PLACE)
    frozen, trained = (layer.kernel for layer in model.layers[:2])
    expected = [frozen, *(one for one in model.optimizer.variables if one.shape == trained.shape)]
    assert {id(one.variable) for one in movable} == {id(one.value) for one in expected}
    assert [one.size_bytes for one in movable] == [_SIZE_BYTES] * 3
    for size_bytes, number in ((1, 1), (_SIZE_BYTES, 1), (_SIZE_BYTES + 1, 2)):
        assert len(MovedState.of(traced, _PLACE, _COSTS, size_bytes).moved) == number


def test_the_pages_of_a_variable_count_beside_the_nodes_that_use_it():
    model = make_model()
    traced = trace_model(model, data=BATCH).extract()
    state = MovedState.of(traced, _PLACE, _COSTS, 1 << 30)
    with_pages = state.add_to_workspace(traced)
    added = [
        b.workspace_bytes - a.workspace_bytes for a, b in zip(traced.graph.nodes, with_pages.graph.nodes, strict=True)
    ]
    frozen = next(one for one in state.moved if not one.writes)
    assert {added[node] for node in frozen.nodes} == {_SIZE_BYTES}
    (update,) = {node for one in state.moved if one.writes for node in one.nodes}
    assert added[update] == 2 * _SIZE_BYTES
    assert state.drop_from_workspace(with_pages) == traced


def trace_step(step):
    return extract(tf.function(step).get_concrete_function(tf.TensorSpec((256, 256))))


def test_what_cannot_be_changed_in_place_stays_in_memory():
    trained, state, table = (tf.Variable(tf.ones((256, 256))) for _ in range(3))

    def read_late(x):
        """Adds the old state to the new one, so an assignment in place would replace the old one too early."""
        old = tf.identity(state)
        state.assign(tf.nn.relu(x))
        state.assign_add(old + state)
        loss = tf.reduce_sum(x @ trained)
        trained.assign_sub(x)
        return loss

    assert not find_movable(trace_step(read_late), _PLACE)

    def return_it(x):
        old = state.read_value()
        state.assign_add(x)
        return old, tf.reduce_sum(x @ table)

    assert [one.variable for one in find_movable(trace_step(return_it), _PLACE)] == [table]

    def gather(x):
        state.assign_add(x)
        return tf.reduce_sum(tf.gather(table, [1, 2])) + tf.reduce_sum(x @ trained)

    assert [one.variable for one in find_movable(trace_step(gather), _PLACE)] == [state, trained]

    def change_nothing(x):
        return tf.reduce_sum(x @ trained)

    assert not find_movable(trace_step(change_nothing), _PLACE)
