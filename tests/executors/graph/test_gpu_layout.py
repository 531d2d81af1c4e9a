"""What grappler makes of rewritten steps on a GPU, by its own passes for a card that is not here."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.graph import writer
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.profiling import signature
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.signature import Fragment, build_graph_def
from checkmate_tf.rewriting.body import build_function
from checkmate_tf.simulator import simulate
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from experiments.training_steps import batch_of, recompute_all, run, trace
from tests.gpu_graphs import count_ops, optimize_for_gpu

MEBIBYTE = 1 << 20


@pytest.fixture
def graph() -> TrainingGraph:
    """Convolutions, batch normalization, a pool and a residual sum in 32 bits; 2 MiB a value."""
    image = keras.Input((64, 64, 3))
    hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    for _ in range(3):
        inner = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(hidden)))
        hidden = hidden + layers.Conv2D(16, 3, padding="same", use_bias=False)(inner)
    pooled = layers.MaxPooling2D(2)(hidden)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(layers.DepthwiseConv2D(3)(pooled)))
    model = keras.Model(image, outputs)
    traced = extract(trace(model, batch_size=8))
    traced.function.kept = model  # variables live as long as their model
    return traced


def lay_out_for_gpu(function: tf.types.experimental.ConcreteFunction) -> tf.types.experimental.ConcreteFunction:
    """The function as grappler lays it out for a GPU, to be run here: oneDNN has kernels for either layout."""
    graph_def = optimize_for_gpu(function, passes=("layout",))
    for node in graph_def.node:
        node.device = ""
    outputs = [tensor.name for tensor in function.outputs]
    return build_function(function, graph_def, outputs, [op.name for op in function.graph.control_outputs])


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "may_change_layout", lambda: True)
    monkeypatch.setattr(signature, "may_change_layout", lambda: True)


@pytest.mark.parametrize("ordering", ["chain", "overlap"])
def test_a_rewritten_step_keeps_the_layout_of_its_data_on_a_gpu(
    graph: TrainingGraph, ordering: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock steps get transposes there, and so does a rewritten one that does not say that it wants none."""
    schedule = recompute_all(graph.graph)
    assert count_ops(optimize_for_gpu(graph.function))["Transpose"] > 0
    assert count_ops(optimize_for_gpu(emit(graph, schedule, ordering=ordering).function))["Transpose"] > 0
    pretend_gpu(monkeypatch)
    emitted = emit(graph, schedule, ordering=ordering)
    assert count_ops(optimize_for_gpu(emitted.function))["Transpose"] == 0


@pytest.mark.measures_memory
def test_a_step_laid_out_for_a_gpu_takes_what_its_schedule_says(
    graph: TrainingGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the runtime's records of it on a CPU; with the transposes it takes more than a tenth more."""
    schedule = recompute_all(graph.graph)
    simulated = simulate(graph.graph, schedule).peak_bytes - graph.graph.resident_bytes
    peaks = []
    results = []
    for keeps in (False, True):
        if keeps:
            pretend_gpu(monkeypatch)
        function = lay_out_for_gpu(emit(graph, schedule, ordering="chain").function)
        arguments = batch_of(function)
        peaks.append(record_peak_bytes(function, arguments, warm=True))
        results.append(run(function, arguments))
    assert simulated > 16 * MEBIBYTE
    assert peaks[0] > 1.1 * simulated
    assert peaks[1] == pytest.approx(simulated, rel=0.05)
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3)


def test_a_node_is_timed_in_the_layout_that_the_step_runs_it_in(
    graph: TrainingGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = [cut for cut in cut_node_fragments(graph) if isinstance(cut, Fragment)]
    convolution = next(cut for cut in cuts if "Conv2DBackpropInput" in cut.op_types)
    for keeps in (False, True):
        if keeps:
            pretend_gpu(monkeypatch)
        definitions = {node.op: node for node in build_graph_def(convolution, copies=1).node}
        assert ("_grappler_do_not_remove" in definitions["Conv2DBackpropInput"].attr) == keeps


def test_sums_are_taken_apart_where_a_step_takes_most_of_the_gpu(graph: TrainingGraph) -> None:
    """As on a CPU, of which TensorFlow says that it has 256 MiB: grappler asks what TensorFlow may take there."""
    simulated = simulate(graph.graph, recompute_all(graph.graph)).peak_bytes
    for memory_bytes, is_taken_apart in ((80 << 30, False), (simulated // 2, True)):
        counts = count_ops(optimize_for_gpu(graph.function, memory_bytes=memory_bytes))
        assert (counts["TemporaryVariable"] > 0) == is_taken_apart
        assert counts["_CopyFromGpuToHost"] == 0


@pytest.mark.parametrize("op_type", ["EnsureShape", "Identity", "DeepCopy"])
def test_views_and_copies_of_numbers_stay_on_a_gpu(op_type: str) -> None:
    """As TensorFlow registers kernels; one that is not for a GPU's memory would copy to the host and back."""
    on_gpu = {tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64, tf.uint8}
    for kernel in get_registered_kernels_for_op(op_type).kernel:
        if kernel.device_type in ("GPU", "DEFAULT") and not kernel.host_memory_arg:
            on_gpu -= {tf.as_dtype(t) for each in kernel.constraint for t in each.allowed_values.list.type}
    assert not on_gpu


def test_what_steps_wait_for_runs_on_any_device() -> None:
    assert "DEFAULT" in {kernel.device_type for kernel in get_registered_kernels_for_op("NoOp").kernel}
