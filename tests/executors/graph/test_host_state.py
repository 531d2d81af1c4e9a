"""Optimizer state in host memory: the same numbers, one copy on the device at a time, and back again."""

import subprocess
import sys

import pytest

from tests.executors.graph.test_moved_state import OPTIMIZERS
from tests.programs import ON_TWO_DEVICES

_STEPS = """
from dataclasses import replace

import keras
import numpy as np

from checkmate_tf.executors.graph.host_state import place_state
from checkmate_tf.executors.graph.moved_state import MovedState
from checkmate_tf.executors.graph.transfer_costs import TransferCosts
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.executors.step import HostMemory
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.training.model_variables import list_training_variables
from checkmate_tf.training.traced_model import prepare_batch, trace_model
from tests.executors.graph.test_moved_state import BATCH, OPTIMIZERS, make_model
from tests.gpu_graphs import optimize_for_gpu

COSTS = TransferCosts(1e9, 1e9)


def find_devices(state):
    return {variable.handle.device[-5:] for variable in state.variables}


def trace(model):
    traced = trace_model(model, data=BATCH)
    for operation in traced.function.graph.get_operations():
        operation._set_device("/device:CPU:1")
    return traced


def emit_step(graph):
    state = MovedState.of(graph, HostMemory(), COSTS, 1 << 30)
    schedule = make_retain_all_schedule(graph.graph)
    return state, emit(graph, schedule, place=HostMemory(), state=state)


def check_equal(model, stock):
    pairs = zip(model.variables + model.optimizer.variables, stock.variables + stock.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)
"""

_TRAIN = """
with tf.device("CPU:1"):
    model, stock = (make_model(OPTIMIZERS[sys.argv[1]]()) for _ in range(2))
    state, emitted = emit_step(trace(model).extract())
    assert state.moved and not state.frozen_bytes
    on_device = [variable.handle for variable in state.variables]
    for step in range(3):
        emitted(*map(tf.constant, BATCH))
        stock.train_on_batch(*BATCH)
        assert find_devices(state) == {"CPU:0"}
        for variable, handle in zip(state.variables, on_device, strict=True):
            assert tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype).shape == [0]
    check_equal(model, stock)
    place_state(variable.value for variable in list_training_variables(model))
    assert find_devices(state) == {"CPU:1"}
    for one in (model, stock):
        one.train_on_batch(*BATCH)
    tf.function(lambda *batch: emitted(*batch))(*map(tf.constant, BATCH))
    stock.train_on_batch(*BATCH)
    check_equal(model, stock)
    assert find_devices(state) == {"CPU:0"}
"""

_MEASURE = """
with tf.device("CPU:1"):
    model = make_model("adam")
    batch = prepare_batch(model, batch_size=None, data=BATCH)
    step = trace(model).make_graph_step(batch)
    step = replace(step, place=HostMemory(), transfer_costs=COSTS)
    assert step.movable_bytes == 2 * 256 << 10
    moved = step.move_state(step.movable_bytes)
    before = [variable.numpy() for variable in model.optimizer.variables]
    assert step.measure(step.stock, 0) is not None
    run = moved.measure(moved.emit(make_retain_all_schedule(moved.graph), "chain"), 0)
    assert run.difference.is_rounding
    assert find_devices(moved.state) == {"CPU:1"}
    for variable, value in zip(model.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    # Each of both moments is read twice, once before it is changed, and written once.
    assert moved.state_cost == 2 * (2 * COSTS.find_fetch_ns(256 << 10) + COSTS.find_offload_ns(256 << 10))
"""

_OPTIMIZE = """
with tf.device("CPU:1"):
    model = make_model("adam")
    state, emitted = emit_step(trace(model).extract())
nodes = {node.name: node for node in optimize_for_gpu(emitted.function, keep_hosts=True).node}
begins = [node for name, node in nodes.items() if name.startswith("checkmate/state_") and name.endswith("/begin")]
assert len(begins) == len(state.moved)
for begin in begins:
    source, *waits = begin.input
    assert nodes[source].op == "ReadVariableOp" and "CPU:0" in nodes[source].device + begin.device
    assert waits, "it would begin with the step"
    readers = [node for node in nodes.values() if source in {name.partition(":")[0] for name in node.input}]
    assert readers == [begin]
    (copy,) = (node for node in nodes.values() if begin.name in {name.partition(":")[0] for name in node.input})
    assert "GPU:0" in copy.device
for name in (name for one in state.moved for name in one.writes):
    assert "CPU:0" in nodes[name].device
"""


def run_program(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES + _STEPS + program, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_are_those_of_the_stock_step(optimizer):
    run_program(_TRAIN, optimizer)


def test_after_a_measurement_the_state_is_on_the_device_as_before():
    run_program(_MEASURE)


def test_each_copy_to_the_device_waits_for_the_operation_that_uses_it():
    run_program(_OPTIMIZE)
