"""What a step takes, by the runtime's allocation records."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework.step_stats_pb2 import StepStats

from checkmate_tf.profiling.memory import read_allocations, record_peak_bytes
from tests.programs import WITHOUT_OPTIONAL

# A product of 1 KiB, less than what the CPU's allocator counts, and its tanh, which is written over it. The assignment
# is an operation that the function runs and returns nothing of.
RECORDED = """
import tensorflow as tf
from checkmate_tf.profiling.memory import record_peak_bytes
done = tf.Variable(False)
@tf.function
def step(x):
    done.assign(True)
    return tf.tanh(tf.matmul(x, x))
step = step.get_concrete_function(tf.TensorSpec((16, 16)))
print(record_peak_bytes(step, [tf.ones((16, 16))]))
"""


def test_records_tell_small_buffers_without_a_warning() -> None:
    """In a process with TensorFlow's warnings on."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPTIONAL + RECORDED], env=environment, capture_output=True, text=True, check=True
    )
    assert int(run.stdout) == 16 * 16 * 4
    assert not [line for line in run.stderr.splitlines() if "trace" in line or "changed" in line]


def test_records_of_many_variables_prepare_the_graph_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the variables' values, once for the step."""
    variables = [tf.Variable(tf.fill((8, 8), float(number))) for number in range(10)]
    step = tf.function(lambda: tf.add_n([variable * 1.0 for variable in variables])).get_concrete_function()
    runs = []
    run = tf.compat.v1.Session.run
    monkeypatch.setattr(tf.compat.v1.Session, "run", lambda *args, **options: runs.append(run(*args, **options)))
    assert record_peak_bytes(step, []) > 0
    assert len(runs) == 2


def make_static_table() -> Any:
    words = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
    return tf.lookup.StaticHashTable(words, default_value=0)


def make_mutable_table() -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
    table.insert(["a", "b"], tf.constant([1, 2], tf.int64))
    return table


@pytest.mark.parametrize("make_table", [make_static_table, make_mutable_table])
def test_records_of_a_step_that_looks_words_up(make_table: Callable[[], Any]) -> None:
    """Each word becomes as many numbers as the table has for it, so the records show the contents of its copy."""
    table = make_table()

    def compute(words: tf.Tensor) -> tf.Tensor:
        return tf.tile([1.0], 1000 * table.lookup(words) + tf.cast(table.size(), tf.int64))

    step = tf.function(compute, autograph=False).get_concrete_function(tf.TensorSpec((1,), tf.string))
    for word, number in (("a", 1), ("b", 2), ("c", 0)):
        recorded = record_peak_bytes(step, [tf.constant([word])])
        assert 0 <= recorded - 4 * (1000 * number + 2) < 100
    assert int(table.size()) == 2


def test_records_are_of_one_device_and_its_own_memory() -> None:
    """A kernel on a GPU allocates there and, for copies, in host memory; others run on the CPU beside it."""
    stats = StepStats()
    for device, allocator, size in (
        ("/job:localhost/replica:0/task:0/device:GPU:0", "GPU_0_bfc", 1 << 20),
        ("/job:localhost/replica:0/task:0/device:GPU:0", "gpu_host_bfc", 1 << 21),
        ("/job:localhost/replica:0/task:0/device:GPU:0", "cpu", 1 << 22),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "cpu", 1 << 23),
        ("/device:GPU:0/stream:all", "GPU_0_bfc", 1 << 24),
    ):
        node = stats.dev_stats.add(device=device).node_stats.add(node_name="MatMul")
        node.memory.add(allocator_name=allocator).allocation_records.add(alloc_micros=1, alloc_bytes=size)
    assert [allocation.size_bytes for allocation in read_allocations(stats, "GPU:0")] == [1 << 20]
    assert [allocation.size_bytes for allocation in read_allocations(stats, "CPU:0")] == [1 << 23]
