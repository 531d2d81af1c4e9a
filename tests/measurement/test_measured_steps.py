"""What steps are measured in: the pool of the CPU's allocator."""

import os
import subprocess
import sys
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.measurement import measured_steps as measuring
from checkmate_tf.measurement.device_memory import count_bytes_in_use
from checkmate_tf.measurement.kept_state import keep_state, move_to_fitting_chunks
from checkmate_tf.measurement.measured_steps import run_steps, time_in_turn
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.training.traced_model import trace_model
from tests.programs import WITHOUT_OPTIONAL

_TENSOR_BYTES = 3 << 20


@pytest.mark.parametrize("reserve", [True, False])
def test_a_tensor_takes_no_more_than_its_size_of_a_reserved_pool(reserve: bool) -> None:
    """In processes of their own, with oneDNN on: the first region of an empty pool is larger than the tensor."""
    program = (
        f"{WITHOUT_OPTIONAL}import tensorflow as tf\n"
        "from checkmate_tf.measurement.device_memory import reserve_pool\n"
        "from checkmate_tf.profiling.memory import measure_allocator_peak_bytes\n"
        f"if {reserve}:\n"
        "    reserve_pool(2 << 30)\n"
        f"print(measure_allocator_peak_bytes(lambda: tf.raw_ops.Empty(shape=[{_TENSOR_BYTES}], dtype=tf.uint8)))\n"
    )
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    told = ran.stdout.split()[-1]
    if told == "None":
        pytest.skip("the allocator of this processor keeps no statistics")
    assert int(told) == (_TENSOR_BYTES if reserve else 4 << 20)


@pytest.mark.measures_memory
def test_tensors_that_the_allocator_does_not_count_are_in_the_peak() -> None:
    """Of the 9 MiB that the step returns, 40 tensors have 128 KiB each; the allocator counts from 256 KiB."""

    @tf.function(autograph=False)
    def step(small: tf.Tensor, large: tf.Tensor) -> list[tf.Tensor]:
        return [tf.exp(small * number) for number in range(40)] + [tf.exp(large * number) for number in range(4)]

    arguments = [tf.ones((1 << 15,)), tf.ones((1 << 18,))]
    concrete = step.get_concrete_function(*arguments)
    run = run_steps(concrete, arguments, resident_bytes=0, predicted_bytes=9 << 20)
    assert 9 << 20 <= run.peak_bytes <= 10.5 * 2**20


def test_a_step_is_timed_where_the_allocator_keeps_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def compute(x: tf.Tensor) -> tf.Tensor:
        tf.py_function(lambda: runs.append(1), [], [])
        return tf.reduce_sum(tf.tile(x, (8,)))

    concrete = tf.function(compute).get_concrete_function(tf.TensorSpec((1 << 18,), tf.float32))
    monkeypatch.setattr(measuring, "measure_allocator_peak_bytes", lambda run, device: None)
    run = run_steps(concrete, [tf.ones(1 << 18)], resident_bytes=5, predicted_bytes=8 << 20)
    assert run.step_s is not None
    assert run.step_s > 0
    assert 5 + (8 << 20) <= run.peak_bytes <= 9 << 20
    assert len(runs) == 5


@pytest.mark.parametrize(("budget_bytes", "num_runs", "peak_bytes"), [(None, 3, 8 << 20), (9 << 20, 6, 12 << 20)])
def test_a_rare_peak_above_the_budget_is_seen(
    budget_bytes: int | None, num_runs: int, peak_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth step takes a larger chunk. Without a budget to keep, three steps with the same peak are enough."""
    peaks = []

    def measure(run: Callable[[], object], device: str) -> int:
        run()
        peaks.append((12 if len(peaks) == 6 else 8) << 20)
        return peaks[-1]

    concrete = tf.function(tf.reduce_sum).get_concrete_function(tf.TensorSpec((8,), tf.float32))
    monkeypatch.setattr(measuring, "measure_allocator_peak_bytes", measure)
    run = run_steps(concrete, [tf.ones(8)], resident_bytes=0, predicted_bytes=8 << 20, budget_bytes=budget_bytes)
    assert run.peak_bytes == peak_bytes
    assert len(peaks) == num_runs + 1  # The first call only asks whether the allocator counts.


def test_two_steps_are_timed_in_turn_from_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step takes half as long again. The machine slows down within the third round, until the ninth.

    Long steps are timed three times each.
    """
    state, runs, clock = tf.Variable(1.0), [], [0.0]
    speeds = [1.0] * 5 + [9.0] * 12 + [1.0] * 3

    def make(name: str, seconds: float) -> Callable[[], None]:
        def step() -> None:
            clock[0] += seconds * speeds[len(runs)]
            runs.append(name)
            state.assign_add(1.0)

        return step

    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(measuring, "_TIMED_S", 1000.0)
    steps = make("first", 2.0), make("second", 3.0)
    assert time_in_turn(*steps, [state]) == (18.0, pytest.approx(27.0))
    assert runs == ["first", "second"] * 10
    assert state.numpy() == 1
    runs.clear()
    monkeypatch.setattr(measuring, "_TIMED_S", 4.0)
    assert time_in_turn(*steps, [state]) == (2.0, 3.0)
    assert runs == ["first", "second"] * 3


@pytest.mark.measures_memory
def test_variables_lie_in_the_same_chunks_whenever_they_are_put_back() -> None:
    """Assignments would take new memory before they free the old, in whatever chunk is free."""
    sizes = [(3 << 20) // 4, (5 << 20) // 4, (2 << 20) // 4, 7]
    variables = [tf.Variable(tf.random.stateless_uniform((size,), (1, size))) for size in sizes]
    values = [variable.numpy() for variable in variables]
    in_use = []
    for number in range(5):
        with keep_state(variables):
            for variable in variables:
                variable.assign(tf.random.stateless_uniform(variable.shape, (2, number)))
        in_use.append(count_bytes_in_use())
    assert len(set(in_use)) == 1
    assert all(np.array_equal(value, variable.numpy()) for value, variable in zip(values, variables, strict=True))


def test_state_of_any_type_is_put_back() -> None:
    kinds = [((), "float32"), ((3,), "bool"), ((600, 500), "bfloat16"), ((0, 4), "int64"), ((7,), "complex128")]
    variables = [tf.Variable(tf.ones(shape, dtype)) for shape, dtype in kinds]
    variables.append(tf.Variable(tf.ones((3, 2)), shape=tf.TensorShape(None)))
    values = [variable.numpy() for variable in variables]
    with keep_state(variables):
        for variable in variables:
            variable.assign(tf.zeros_like(variable))
        assert move_to_fitting_chunks(variables) >= 0
    assert all(np.array_equal(value, variable.numpy()) for value, variable in zip(values, variables, strict=True))


@pytest.mark.measures_memory
@pytest.mark.parametrize("ordering", ["overlap", "chain"])
def test_a_step_takes_the_same_whenever_it_is_measured(ordering: Ordering) -> None:
    """Updates wait until the old weights have been read, also by products of few rows: each is written in its place."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((1024,)), *hidden])
    model.compile("adam", "mse", jit_compile=False)
    step = trace_model(model, batch_size=16)
    training_graph, batch = step.extract(), step.spec.make_zeros()
    schedule = make_retain_all_schedule(training_graph.graph)
    function = emit(training_graph, schedule, ordering=ordering).function
    runs = [run_steps(function, batch.tensors, resident_bytes=0, predicted_bytes=0) for _ in range(3)]
    assert len({(run.peak_bytes, run.held_bytes) for run in runs}) == 1


def test_loops_are_not_run_in_a_session_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allocator counts small tensors too, and a session would need the variables there once more."""

    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), (0, x))[1]

    concrete = tf.function(compute, autograph=False).get_concrete_function(tf.TensorSpec((1 << 18,), tf.float32))
    monkeypatch.setattr(measuring, "measure_allocator_peak_bytes", lambda run, device: run() or (3 << 20))
    recorded: list[int] = []
    monkeypatch.setattr(measuring, "record_peak_bytes", lambda *_: recorded.append(1) or (5 << 20))
    for device, peak in (("GPU:0", 3 << 20), ("CPU:0", 5 << 20)):
        monkeypatch.setattr(measuring, "find_default_device", lambda device=device: device)
        run = run_steps(concrete, [tf.ones(1 << 18)], resident_bytes=0, predicted_bytes=3 << 20)
        assert run.peak_bytes == peak
    assert len(recorded) == 1


def test_the_predicted_peak_stands_in_where_a_step_changes_a_lookup_table() -> None:
    """All tensors are too small for the CPU's allocator to count, so planning falls back to allocation records."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)

    def compute(x: tf.Tensor) -> tf.Tensor:
        table.insert(x, tf.constant([1, 2], tf.int64))
        return tf.cast(table.lookup(x), tf.float32) * 2.0

    concrete = tf.function(compute, autograph=False).get_concrete_function(tf.TensorSpec((2,), tf.string))
    run = run_steps(concrete, [tf.constant(["a", "c"])], resident_bytes=100, predicted_bytes=1000)
    assert run.peak_bytes == 1000 + run.held_bytes
