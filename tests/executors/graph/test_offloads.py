"""Offloading to files: the same numbers in less memory, in a file that has no name."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from checkmate_tf.errors import EmissionError, OffloadError
from checkmate_tf.executors.graph.transfer_costs import add_transfer_costs, measure_transfers
from checkmate_tf.executors.graph.transfer_file import TransferFile
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.executors.step import HostMemory, OffloadFolder
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from experiments.training_steps import batch_of, run, trace
from tests.gpu_graphs import optimize_for_gpu
from tests.programs import ON_TWO_DEVICES, WITHOUT_OPTIONAL
from tests.training_steps import conv_chain

_LEAST_GAP = 4


@pytest.fixture(scope="module")
def chain():
    model = conv_chain(num_layers=8, size=64)
    yield let_offload(extract(trace(model, batch_size=2)))
    del model  # a traced function does not keep its variables


def let_offload(traced: TrainingGraph) -> TrainingGraph:
    values = tuple(replace(value, offload_cost=1, fetch_cost=1) for value in traced.graph.values)
    return replace(traced, graph=replace(traced.graph, values=values))


def offload_large(traced: TrainingGraph, *, early: int = 0) -> Schedule:
    """Fetches every large value that is not read for long for its next reader, or so many steps earlier."""
    graph = traced.graph
    order = make_retain_all_schedule(graph).order
    fetches = []
    for value, users in enumerate(graph.users):
        reads = [graph.producer[value], *users]
        large = 2 * graph.values[value].size_bytes > graph.sizes_bytes.max()
        gap, before = max(((b - a, a) for a, b in pairwise(reads)), default=(0, 0))
        if large and gap > _LEAST_GAP:
            fetches.append((max(before + gap - early, before + 1), value))
    return Schedule(order, tuple(sorted(fetches)))


@pytest.mark.parametrize("early", [0, 2])
def test_numbers_are_those_of_the_stock_step(chain, tmp_path, early):
    schedule = offload_large(chain, early=early)
    assert len(schedule.fetches) >= 4
    emitted = emit(chain, schedule, place=OffloadFolder(str(tmp_path)))
    batch = batch_of(chain.function)
    for _ in range(3):
        for found, expected in zip(run(emitted.function, batch), run(chain.function, batch), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.measures_memory
def test_memory_is_what_the_simulator_says(chain, tmp_path):
    schedule = offload_large(chain)
    batch = batch_of(chain.function)
    stock_bytes, peak_bytes = (
        simulate(chain.graph, one).peak_bytes - chain.graph.resident_bytes
        for one in (make_retain_all_schedule(chain.graph), schedule)
    )
    assert peak_bytes < 0.8 * stock_bytes
    emitted = emit(chain, schedule, place=OffloadFolder(str(tmp_path)))
    assert record_peak_bytes(emitted.function, batch, warm=True) == pytest.approx(peak_bytes, rel=0.1)


_COPY = """
import numpy as np

from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.executors.step import HostMemory
from checkmate_tf.tracing.extraction import extract
from experiments.training_steps import batch_of, run, trace
from tests.executors.graph.test_offloads import let_offload, offload_large
from tests.training_steps import conv_chain

with tf.device("CPU:1"):
    model = conv_chain(num_layers=4, size=64)
    function = trace(model, batch_size=2)
    for operation in function.graph.get_operations():
        operation._set_device("/device:CPU:1")
    chain = let_offload(extract(function))
    batch = batch_of(chain.function)
    emitted = emit(chain, offload_large(chain), place=HostMemory())
    for _ in range(3):
        for found, expected in zip(run(emitted.function, batch), run(chain.function, batch), strict=True):
            np.testing.assert_array_equal(found, expected)
print(*{node.device[-5:] for node in emitted.graph_def.node if "/fetch_" in node.name or "/offload_" in node.name})
"""


def test_copies_to_another_devices_memory_change_no_number():
    done = subprocess.run([sys.executable, "-c", ON_TWO_DEVICES + _COPY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"CPU:0", "CPU:1"}


def test_a_copy_back_from_host_memory_begins_where_the_schedule_says(chain, monkeypatch):
    """Until then, nothing on the device holds the value, and grappler leaves it so."""
    monkeypatch.setattr("checkmate_tf.executors.graph.offloads.find_default_device", lambda: "GPU:0")
    schedule = offload_large(chain)
    emitted = emit(chain, schedule, place=HostMemory())
    optimized = optimize_for_gpu(emitted.function, keep_hosts=True)
    nodes = {node.name: node for node in optimized.node}
    begins = [node for name, node in nodes.items() if name.startswith("checkmate/fetch_") and name.endswith("/begin")]
    assert len(begins) == len(schedule.fetches)
    for begin in begins:
        source, *waits = begin.input
        assert "CPU:0" in begin.device
        assert "CPU:0" in nodes[source].device
        assert nodes[source].op == "EnsureShape"
        assert waits, "it would begin when the copy out has ended"
        readers = [node for node in optimized.node if source in {name.partition(":")[0] for name in node.input}]
        assert readers == [begin]
        (fetch,) = (node for node in optimized.node if begin.name in {name.partition(":")[0] for name in node.input})
        assert "GPU:0" in fetch.device


def test_a_schedule_that_fetches_needs_a_directory(chain, tmp_path):
    with pytest.raises(EmissionError, match="name their place"):
        emit(chain, offload_large(chain))
    with pytest.raises(OffloadError, match="choose another directory"):
        emit(chain, offload_large(chain), place=OffloadFolder(str(tmp_path / "none")))


def test_a_file_larger_than_the_disk_is_refused_before_a_step_runs(tmp_path):
    with pytest.raises(OffloadError, match="Free that much space"):
        TransferFile(str(tmp_path), 1 << 60)
    assert not list(tmp_path.iterdir())


def test_a_file_has_no_name_and_holds_what_was_written(tmp_path):
    file = TransferFile(str(tmp_path), 64)
    written, read = np.arange(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    file.make_offload(16)(written)
    file.make_fetch(16)(read)
    np.testing.assert_array_equal(read, written)
    assert not list(tmp_path.iterdir())
    status = os.fstat(file.descriptor)
    assert status.st_nlink == 0
    assert status.st_mode & 0o777 == 0o600


def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    program = (
        f"{WITHOUT_OPTIONAL}import os, signal, sys, numpy\n"
        "from checkmate_tf.executors.graph.transfer_file import TransferFile\n"
        "TransferFile(sys.argv[1], 64).make_offload(0)(numpy.ones(16, numpy.float32))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_held_until_it_is_read(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = TransferFile(str(tmp_path), 64)
    written, read = np.arange(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        file.make_offload(0)(written)
    file.make_fetch(0)(read)
    np.testing.assert_array_equal(read, written)
    with pytest.raises(OffloadError, match="with the right numbers"):
        file.check()
    file.check()


@pytest.mark.parametrize(("place", "hide"), [(OffloadFolder("", 1e9), False), (HostMemory(1e9), True)])
def test_only_a_gpus_copies_hide(chain, place, hide):
    costed = add_transfer_costs(chain, measure_transfers(place))
    assert costed.graph.copies_hide == hide
