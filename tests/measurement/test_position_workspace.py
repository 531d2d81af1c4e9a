"""Workspace within the nodes of a step, against TensorFlow's own records."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from checkmate_tf.executors.graph.accuracy import predict_peak_bytes
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.profiling.memory import record_allocations, record_peak_bytes
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from experiments.training_steps import batch_of, trace

MEBIBYTE = 1 << 20


def extracted(step, mebibytes: int) -> TrainingGraph:
    spec = tf.TensorSpec([mebibytes, MEBIBYTE // 4])
    return extract(tf.function(step, autograph=False).get_concrete_function(spec))


def peaks(graph: TrainingGraph, mebibytes: int) -> list[float]:
    """Simulated, predicted and recorded, in MiB, of the nodes in order."""
    schedule = make_retain_all_schedule(graph.graph)
    function = emit(graph, schedule, ordering="chain").function
    found = [
        simulate(graph.graph, schedule).peak_bytes - graph.graph.resident_bytes,
        predict_peak_bytes(graph, schedule),
        record_peak_bytes(function, [tf.ones([mebibytes, MEBIBYTE // 4])], warm=True),
    ]
    return [size / MEBIBYTE for size in found]


def normalized(batch_size: int) -> tuple[keras.Model, TrainingGraph]:
    """Convolutions and batch normalizations, whose gradients are sums of three terms; 2 MiB a value for 8 rows."""
    image = keras.Input((64, 64, 3))
    hidden = image
    for _ in range(3):
        hidden = layers.Conv2D(16, 3, padding="same", use_bias=False)(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    model = keras.Model(image, layers.GlobalAveragePooling2D()(hidden))
    return model, extract(trace(model, batch_size=batch_size))


@pytest.mark.measures_memory
def test_sums_at_the_peak_of_a_large_step_take_no_temporary_variable():
    """Grappler takes such a sum apart where the step takes most of the 256 MiB that it grants a CPU."""
    model, graph = normalized(batch_size=96)
    arguments = batch_of(graph.function)
    order = list(range(len(graph.graph.nodes)))
    ops, grouping = graph.ops, graph.grouping
    number = next(i for i, op in enumerate(ops.ops) if op.type == "AddN" and len(op.inputs) == 3)
    terms = sorted(grouping.group_of[grouping.root(tensor)[0]] for tensor in ops.inputs[number])
    order.insert(grouping.group_of[number] - 1, order.pop(terms[0]))  # a term just before the sum, so grappler sees it
    schedule = Schedule.of(order)
    function = emit(graph, schedule, ordering="chain").function
    assert any("tmp_var" in allocation.op for allocation in record_allocations(graph.function, arguments))
    assert not any("tmp_var" in allocation.op for allocation in record_allocations(function, arguments))
    simulated = simulate(graph.graph, schedule).peak_bytes - graph.graph.resident_bytes
    assert record_peak_bytes(function, arguments, warm=True) == pytest.approx(simulated, rel=0.03)
    assert model.built


@pytest.mark.measures_memory
def test_a_temporary_is_written_over_an_input_that_dies():
    def step(x):
        kept, dying = tf.tanh(x), tf.sin(x)
        return tf.reduce_sum(kept * dying), tf.sqrt(kept)

    graph = extracted(step, 8)
    assert "Mul+Sum" in {node.op_type for node in graph.graph.nodes}
    simulated, predicted, recorded = peaks(graph, 8)
    assert simulated == pytest.approx(24, rel=0.03)
    assert predicted == pytest.approx(16, rel=0.03)
    assert recorded == pytest.approx(predicted, rel=0.03)


@pytest.mark.measures_memory
def test_a_temporary_is_not_written_over_an_input_that_lives_on():
    def step(x):
        kept, other = tf.tanh(x), tf.sin(x)
        return tf.reduce_sum(kept * other), tf.sqrt(kept), tf.sqrt(other)

    assert peaks(extracted(step, 8), 8) == pytest.approx([24] * 3, rel=0.03)
