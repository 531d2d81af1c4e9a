import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError, UnsupportedModelError
from checkmate_tf.executors.xla import compilers
from checkmate_tf.executors.xla import step as xla_step
from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.backends import CPU, GPU, find_backend
from checkmate_tf.executors.xla.hlo.kernels import list_kernels, list_product_names
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.executors.xla.model.graph import choose_lowerings, make_xla_graph
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.rules.operands_apart import OperandsApart
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.executors.xla.writer import arrange_for_xla, emit_for_xla
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.planning import plan_cache
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.tf_private import HloProto, PrimitiveType
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.step_part import make_gradient_part
from tests.programs import WITHOUT_OPTIONAL

NUM_LAYERS = 6
BATCH_SIZE = 8


def conv_chain(*, jit_compile: bool = True) -> keras.Model:
    """Convolutions of equal activations, 512 KiB each at a batch of 8, which dwarf the weights."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 16))
    for _ in range(NUM_LAYERS):
        x = keras.layers.Conv2D(16, 3, padding="same", activation="tanh")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=jit_compile)
    return model


def pooled_chain() -> keras.Model:
    """Convolutions with BatchNorm and ReLU, which XLA fuses into their readers, and a pooling."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 16))
    for layer in range(6):
        x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        if layer == 2:
            x = keras.layers.MaxPooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def dense_block() -> keras.Model:
    """Each layer reads all before it, so that the gradient of an early one is a sum of slices of the later ones'."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 16))
    for _ in range(5):
        y = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = keras.layers.Concatenate()([x, keras.layers.ReLU()(keras.layers.BatchNormalization()(y))])
    x = keras.layers.MaxPooling2D()(keras.layers.Conv2D(16, 1)(x))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def bottlenecks() -> keras.Model:
    """Convolutions of one pixel that read a ReLU of a BatchNorm."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 16))
    for _ in range(2):
        y = keras.layers.Conv2D(32, 3, padding="same", use_bias=False)(x)
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
        x = x + keras.layers.Conv2D(16, 1, use_bias=False)(y)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def strided_autoencoder() -> keras.Model:
    """Convolutions that halve and double the length, each with a ReLU."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((288, 1))
    options = {"kernel_size": 7, "strides": 2, "padding": "same", "activation": "relu"}
    for filters in (48, 24):
        x = keras.layers.Conv1D(filters, **options)(x)
    for filters in (24, 48):
        x = keras.layers.Conv1DTranspose(filters, **options)(x)
    model = keras.Model(inputs, keras.layers.Conv1DTranspose(1, 7, padding="same")(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def gelu_encoder(*, num_blocks: int = 4) -> keras.Model:
    """Attention and GELU."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((128, 64))
    for _ in range(num_blocks):
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(2, 32)(normal, normal)
        wide = keras.layers.Dense(256, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(64)(wide)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def attention(*, num_blocks: int = 4) -> keras.Model:
    """Attention alone, most of whose memory is queries, keys and values."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((64, 128))
    for _ in range(num_blocks):
        x = x + keras.layers.MultiHeadAttention(4, 32)(x, x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def skipping_convolutions(*, rates: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> keras.Model:
    """Dilated convolutions, as of WaveNet: the gradient of one sum is read by the filter gradients of all layers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((512, 8))
    x = keras.layers.Conv1D(32, 1)(inputs)
    skipped = []
    for rate in rates:
        options = {"padding": "causal", "dilation_rate": rate}
        filtered = keras.layers.Conv1D(32, 2, activation="tanh", **options)(x)
        gated = filtered * keras.layers.Conv1D(32, 2, activation="sigmoid", **options)(x)
        skipped.append(keras.layers.Conv1D(32, 1, name=f"skip_{rate}")(gated))
        x = x + keras.layers.Conv1D(32, 1)(gated)
    total = keras.layers.GlobalAveragePooling1D()(keras.layers.ReLU()(keras.layers.Add()(skipped)))
    model = keras.Model(inputs, keras.layers.Dense(4)(total))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


MODELS = {"conv_chain": conv_chain, "pooled_chain": pooled_chain, "dense_block": dense_block}
# Of what all values take in the graph: for so little, convolutions are computed again.
SHARES = {"conv_chain": 0.7, "pooled_chain": 0.85, "dense_block": 0.6}


def compile_stock(model: keras.Model):
    """The spec of a model's batch, its training graph, and what its stock step is compiled to."""
    spec = guess_spec(model, BATCH_SIZE)
    training_graph = extract(make_gradient_part(model).trace(spec))
    return spec, training_graph, compile_step(training_graph.function, spec.flat)


@cache
def compiled(name: str):
    """A model, and its stock step, which is the same for all backends."""
    model = MODELS[name]()
    return model, *compile_stock(model)


@cache
def stock_step(name: str, backend: Backend = CPU):
    model, spec, training_graph, module = compiled(name)
    return model, spec, module, choose_lowerings(make_xla_graph(training_graph, list_kernels(module), backend))


@cache
def rematerialized(name: str, budget_share: float, backend: Backend = CPU):
    """The schedule that holds activations to a share of what the graph says that all take, and its step."""
    _, _, _, fused = stock_step(name, backend)
    resident = fused.graph.resident_bytes
    held = simulate_stock(fused.graph).peak_bytes - resident
    solution = solve(fused.graph, resident + int(held * budget_share), solver="stage_annealing", time_limit_s=60)
    return solution, emit_for_xla(fused, arrange_for_xla(fused, solution.schedule))


@cache
def compile_rematerialized(name: str, budget_share: float, backend: Backend = CPU):
    emitted = rematerialized(name, budget_share, backend)[1]
    return compile_step(emitted.function, compiled(name)[1].flat)


@cache
def retained(name: str):
    """What the step is compiled to that is written anew and computes nothing again."""
    _, spec, _, fused = stock_step(name)
    emitted = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    return compile_step(emitted.function, spec.flat)


@pytest.mark.parametrize("name", ["pooled_chain", "dense_block"])
def test_a_graph_of_another_size_is_that_of_its_own_kernels(name):
    model, _, _, fused = stock_step(name)
    spec = guess_spec(model, 2 * BATCH_SIZE)
    traced = extract(make_gradient_part(model).trace(spec), like=fused.training_graph)
    kernels = list_kernels(compile_step(traced.function, spec.flat))
    expected = choose_lowerings(make_xla_graph(traced, kernels, CPU))
    resized = fused.resize(traced)
    assert [node.name for node in resized.graph.nodes] == [node.name for node in expected.graph.nodes]
    assert resized.graph.sizes_bytes.tolist() == expected.graph.sizes_bytes.tolist()
    held = [simulate_stock(one.graph).peak_bytes - one.graph.resident_bytes for one in (fused, resized, expected)]
    assert held[1] == pytest.approx(held[2], rel=0.02)
    assert held[1] > 1.9 * held[0]
    # What is of the size of a filter is taken to grow too, but that is little.
    workspaces = [one.graph.arrays.workspace_bytes.sum() for one in (resized, expected)]
    assert workspaces[0] == pytest.approx(workspaces[1], abs=0.02 * held[2])


def test_summed_products_cost_at_another_size_what_they_cost():
    """Those of a sequence are written as one with their sum, which alone would cost little."""
    inputs = keras.Input((16, 64))
    attended = keras.layers.MultiHeadAttention(2, 32)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(attended)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    _, training_graph, stock = compile_stock(model)
    xla_graph = make_xla_graph(training_graph, list_kernels(stock), CPU)
    assert sum(bool(xla_graph.list_summed(node)) for node in xla_graph.nodes) == 4
    resized = xla_graph.resize(training_graph)
    assert [node.cost for node in resized.graph.nodes] == [node.cost for node in xla_graph.graph.nodes]


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets lie above all that the models yield, so that the terms of a bias's gradient do not cancel.

    Where they do, rounding alone makes more than 1e-5 of the sum on some processors.
    """
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, 32, 32, 16)).astype("f"), generator.normal(8, 1, size=(rows, 4)).astype("f")


@pytest.mark.parametrize("name", MODELS)
def test_recomputation_survives_compilation_and_saves_memory(name):
    """What is compiled again is what the schedule says."""
    _, _, stock, fused = stock_step(name)
    solution = rematerialized(name, SHARES[name])[0]
    module = compile_rematerialized(name, SHARES[name])
    again = Counter(solution.schedule.order)
    convolutions = sum("Conv2D" in fused.graph.nodes[node].op_type for node in again.elements()) - sum(
        "Conv2D" in node.op_type for node in fused.graph.nodes
    )
    assert convolutions > 0
    assert len(list_product_names(module)) == len(list_product_names(stock)) + convolutions
    assert read_xla_memory(module).temporary_bytes < 0.8 * read_xla_memory(stock).temporary_bytes


@pytest.mark.parametrize("name", MODELS)
def test_late_reads_alone_save_memory(name):
    """Filter gradients keep no transposed activations from the forward pass."""
    stock = stock_step(name)[2]
    assert read_xla_memory(retained(name)).temporary_bytes < 0.9 * read_xla_memory(stock).temporary_bytes


@pytest.mark.parametrize("name", MODELS)
def test_predicted_memory_is_near_that_of_the_compiled_step(name):
    """Without recomputation; small tensors, so that a buffer or two of XLA's own weigh much."""
    graph = stock_step(name)[3].graph
    predicted = simulate_stock(graph).peak_bytes - graph.resident_bytes
    assert 0.85 < read_xla_memory(retained(name)).temporary_bytes / predicted < 1.5


def test_what_products_compute_within_themselves_is_found_where_xla_forgot_their_names():
    """It writes filter gradients of one pixel as other products, which compute the ReLU again from what it reads."""
    model = bottlenecks()
    _, training_graph, stock = compile_stock(model)
    kernels = list_kernels(stock)
    fused = make_xla_graph(training_graph, kernels, CPU)
    named = {name for kernel in kernels for name in kernel.names}
    whole, graph = training_graph.graph, fused.graph
    relus = {value for node in whole.nodes if "Relu" in node.op_type for value in node.outputs if not node.is_backward}
    forgotten = [
        index
        for index, node in enumerate(fused.nodes)
        if whole.nodes[node].op_type == "Conv2DBackpropFilter"
        and relus & set(whole.nodes[node].inputs)
        and not any(op.name in named for op in training_graph.get_node_ops(node))
    ]
    assert forgotten
    assert not any(relus & {fused.values[value] for value in graph.nodes[index].inputs} for index in forgotten)
    # The ReLU's output is there while the product runs, and not before; so is, for the last convolution, what
    # spreads the gradient of the pooling over the pixels.
    relu_bytes, spread_bytes = (BATCH_SIZE * 32 * 32 * channels * 4 for channels in (32, 16))
    workspaces = sorted(graph.nodes[index].workspace_bytes for index in forgotten)
    assert workspaces == [relu_bytes, relu_bytes + spread_bytes]


@pytest.mark.parametrize(("build", "least"), [(bottlenecks, 0.85), (strided_autoencoder, 0.95)])
def test_what_xla_does_not_write_over_is_held_beside_the_result(build, least):
    """The gradient of a ReLU could be written over the gradient that it reads, but for how XLA fuses them."""
    model = build()
    spec, training_graph, stock = compile_stock(model)
    fused = make_xla_graph(training_graph, list_kernels(stock), CPU)
    emitted = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    compiled_bytes = read_xla_memory(compile_step(emitted.function, spec.flat)).temporary_bytes
    predicted_bytes = simulate_stock(fused.graph).peak_bytes - fused.graph.resident_bytes
    assert least < predicted_bytes / compiled_bytes < 1.05


def test_a_mean_that_a_kernel_sums_up_is_not_taken_into_its_readers():
    """They divide the sum, each for itself, and have the name of the mean for that."""
    fused = stock_step("pooled_chain")[3]
    nodes = fused.training_graph.graph.nodes
    within = {nodes[node].name for found in fused.fused.values() for node in found}
    assert not {node.name for node in nodes if node.op_type == "Mean"} & within


def test_filters_are_transposed_when_the_backward_pass_reads_them():
    """XLA:CPU would do so at the start of the step, and hold all of them twice."""
    convolutions = [keras.layers.Conv2D(96, 3, padding="same", activation="tanh") for _ in range(6)]
    model = keras.Sequential([keras.Input((8, 8, 96)), *convolutions, keras.layers.GlobalAveragePooling2D()])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    spec, training_graph, module = compile_stock(model)
    stock = list_kernels(module)
    fused = make_xla_graph(training_graph, stock, CPU)
    emitted = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    filter_bytes = 3 * 3 * 96 * 96 * 4
    assert training_graph.grouping.small_bytes < filter_bytes
    early = [
        [kernel for kernel in kernels if not kernel.names and not kernel.reads and kernel.size_bytes == filter_bytes]
        for kernels in (stock, list_kernels(compile_step(emitted.function, spec.flat)))
    ]
    # The first convolution's input needs no gradient.
    assert len(early[0]) == 5
    assert len(early[1]) <= 1


@pytest.mark.parametrize(
    ("build", "budget_share"),
    [(partial(gelu_encoder, num_blocks=2), 0.5), (attention, 0.7)],
    ids=["gelu_encoder", "attention"],
)
def test_compiled_steps_of_a_transformer_take_what_is_predicted(build, budget_share):
    """GELU is kept whole, keys and values are held once, and no gradient is held for one that could be computed."""
    model = build()
    spec, training_graph, stock = compile_stock(model)
    fused = make_xla_graph(training_graph, list_kernels(stock), CPU)
    graph, stock_bytes = fused.graph, read_xla_memory(stock).temporary_bytes
    budget_bytes = int(budget_share * stock_bytes) + graph.resident_bytes
    solution = solve(graph, budget_bytes, solver="stage_annealing", time_limit_s=60)
    emitted = emit_for_xla(fused, arrange_for_xla(fused, solution.schedule))
    compiled_bytes = read_xla_memory(compile_step(emitted.function, spec.flat)).temporary_bytes
    assert 0.88 < compiled_bytes / (solution.simulation.peak_bytes - graph.resident_bytes) < 1.08


@cache
def skipping_step():
    model = skipping_convolutions()
    spec, training_graph, module = compile_stock(model)
    return model, spec, module, choose_lowerings(make_xla_graph(training_graph, list_kernels(module), CPU))


def test_what_is_computed_again_for_one_gradient_does_not_run_at_once():
    """XLA would run it when that gradient is there, and hold the padded activations of the forward pass."""
    _, spec, _, fused = skipping_step()
    solution = solve(fused.graph, "70%", solver="xla_greedy")
    emitted = emit_for_xla(fused, arrange_for_xla(fused, solution.schedule))
    compiled_bytes = read_xla_memory(compile_step(emitted.function, spec.flat)).temporary_bytes
    assert compiled_bytes < 1.2 * (solution.simulation.peak_bytes - fused.graph.resident_bytes)


def test_a_node_that_a_schedule_only_delays_waits():
    """Each layer's product with the one gradient is put before its first reader, behind the layers that follow."""
    _, spec, stock, fused = skipping_step()
    nodes = fused.graph.nodes
    order: list[int] = []
    delayed = {number for number, node in enumerate(nodes) if re.search("skip_.*BackpropInput", node.name)}
    for number, node in enumerate(nodes):
        read = [one for one in delayed if number not in delayed and not set(nodes[one].outputs).isdisjoint(node.inputs)]
        order += [one for one in read if one not in order] + [number] * (number not in delayed)
    module = compile_step(emit_for_xla(fused, arrange_for_xla(fused, Schedule(tuple(order)))).function, spec.flat)
    assert [list_products_and_activations(one) for one in (stock, module)] == ["PPPPPPAAAAAA", "PAPAPAPAPAPA"]


def list_products_and_activations(module: HloProto) -> str:
    """Lists, as they run, the layers' products with the one gradient, P, and the gradients of their activations, A."""
    names = [name for kernel in list_kernels(module) for name in kernel.names]
    found = (re.search("(skip_.*BackpropInput)|TanhGrad(/buffer_0/|$)", name) for name in names)
    return "".join("P" if one[1] else "A" for one in found if one)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def recurrent(model_class: type[keras.Model]) -> keras.Model:
    """An LSTM between wide layers, whose gradient is a loop over what the loop of the forward pass has kept."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 16))
    for _ in range(3):
        x = keras.layers.Dense(128, activation="gelu")(x)
    x = keras.layers.LSTM(16, return_sequences=True)(x)
    for _ in range(3):
        x = keras.layers.Dense(128, activation="gelu")(x)
    model = model_class(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def test_recurrent_layers_are_rematerialized_around():
    """Of a model with a step of its own, too."""
    random = np.random.default_rng(0)
    batch = tuple(random.normal(size=(BATCH_SIZE, 32, width)).astype("float32") for width in (16, 1))
    stock, model = recurrent(OwnStep), recurrent(OwnStep)
    plan = checkmate_tf.rematerialize(
        model,
        data=batch,
        budget="70%",
        options=checkmate_tf.Options(solver="stage_annealing", costs="flops"),
        time_limit_s=5,
        progress=False,
    )
    assert plan.recomputed
    assert plan.measured_peak_bytes <= plan.budget_bytes
    for _ in range(2):
        np.testing.assert_allclose(model.train_on_batch(*batch), stock.train_on_batch(*batch), rtol=1e-6)


def test_recurrent_layers_are_computed_again():
    """The lists that a loop fills wait for its sequence, and a repeat, which reads lists only, for a gradient."""

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        tokens = keras.Input((32,), dtype="int32")
        hidden = keras.layers.Embedding(100, 32)(tokens)
        for _ in range(3):
            hidden = keras.layers.LSTM(32, return_sequences=True)(hidden)
        model = keras.Model(tokens, keras.layers.Dense(100)(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
        return model

    words = np.random.default_rng(0).integers(0, 100, (64, 33), "int32")
    batch = words[:, :-1], words[:, 1:]
    stock, model = build(), build()
    plan = checkmate_tf.rematerialize(
        model,
        data=batch,
        budget="75%",
        options=checkmate_tf.Options(costs="flops"),
        time_limit_s=5,
        progress=False,
    )
    assert any(one.name.endswith("/while") for one in plan.recomputed)
    assert plan.measured_peak_bytes <= plan.budget_bytes
    for _ in range(2):
        np.testing.assert_allclose(model.train_on_batch(*batch), stock.train_on_batch(*batch), rtol=1e-6)


def test_what_a_loop_keeps_of_its_weights_counts():
    """XLA stacks them, 32 KiB for each of 32 steps, where TensorFlow keeps the variable."""
    model = recurrent(keras.Model)
    _, training_graph, stock = compile_stock(model)
    kernels = list_kernels(stock)
    graph = make_xla_graph(training_graph, kernels, CPU).graph
    assert training_graph.graph.sizes_bytes.max() < 2**20
    assert 2**20 <= graph.sizes_bytes.max() < 1.5 * 2**20


def test_a_step_that_xla_does_not_compile_is_refused_with_the_reason():
    class OnTheHost(keras.layers.Layer):
        def call(self, x):
            return x + tf.stop_gradient(tf.ensure_shape(tf.numpy_function(np.sign, [x], tf.float32), x.shape))

    inputs = keras.Input((4,), batch_size=BATCH_SIZE)
    model = keras.Model(inputs, keras.layers.Dense(4)(OnTheHost()(inputs)))
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(UnsupportedModelError, match=r"(?s)does not compile the step of .*PyFunc.*jit_compile=False"):
        checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="70%")


def test_no_reader_of_a_sum_of_gradients_holds_its_terms():
    """Of all nodes of a dense block, those that only move data need the most: no layer reads all later gradients."""
    graph = stock_step("dense_block")[3].graph
    most_bytes = max(sum(graph.sizes_bytes[[*node.inputs, *node.outputs]]) for node in graph.nodes)
    largest = int(graph.sizes_bytes.max())
    assert most_bytes <= 3 * largest


def pooled_gradient(size: int, strides: int, padding: str):
    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            most = tf.nn.max_pool2d(x, size, strides, padding)
        return tape.gradient(most, x, output_gradients=y)

    return gradient


def filter_gradient(groups: int):
    def gradient(x, y):
        sizes = (1, 1, x.shape[3] // groups, y.shape[3])
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=sizes, out_backprop=y, strides=[1] * 4, padding="SAME"
        )

    return gradient


def weights_gradient(width: int, summed: tuple[int, ...] | None = None):
    """That of weights applied to rows of a batch of batches of matrices; or a sum of its terms over some axes alone."""

    def gradient(x, y):
        if summed is not None:
            return tf.reduce_sum(tf.matmul(x, y, transpose_a=True), summed)
        with tf.GradientTape() as tape:
            weights = tf.zeros((width, y.shape[3]))
            tape.watch((x, weights))
            result = tf.raw_ops.BatchMatMulV2(x=x, y=weights)
        return tape.gradient(result, weights, output_gradients=y)

    return gradient


@pytest.mark.parametrize(
    ("gradient", "sizes", "is_lowered"),
    [
        (pooled_gradient(2, 2, "VALID"), (3, 4, 5), True),
        (pooled_gradient(2, 2, "SAME"), (3, 4, 5), True),
        (pooled_gradient(3, 3, "SAME"), (3, 3, 5), False),
        (pooled_gradient(3, 2, "SAME"), (3, 4, 5), False),
        (filter_gradient(1), (3, 8, 7), True),
        (filter_gradient(5), (3, 8, 5), False),
        (weights_gradient(5), (3, 8, 7), True),
        (weights_gradient(5, summed=(0,)), (3, 8, 7), False),
    ],
)
def test_what_is_written_otherwise_gives_the_same(gradient, sizes, is_lowered):
    """Maxima occur twice, and only the first of a window has a gradient."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 3, (3, 8, 8, 5)).astype("f")
    y = generator.normal(size=(sizes[0], sizes[1], sizes[1], sizes[2])).astype("f")
    graph = tf.function(gradient, autograph=False).get_concrete_function(x, y).graph
    op = [op for op in graph.get_operations() if op.type in ("MaxPoolGrad", "Conv2DBackpropFilter", "Sum")][-1]
    found = CPU.lower(op)
    assert (found is not None) == is_lowered
    if found is not None:
        lowered = tf.function(found.build, jit_compile=True)(tf.constant(x), tf.constant(y))
        stock = tf.function(gradient, jit_compile=True)(tf.constant(x), tf.constant(y))
        np.testing.assert_allclose(lowered, stock, atol=1e-5)


def test_sums_by_segments_that_start_late_give_the_same():
    """Places of any shape; values whose place is negative count nowhere."""
    generator = np.random.default_rng(0)
    x = tf.constant(generator.normal(size=(4, 6, 3)).astype("f"))
    places = tf.constant(generator.integers(-1, 5, (4, 6)))

    def sum_by(x, places):
        return tf.math.unsorted_segment_sum(x, places, 5)

    graph = tf.function(sum_by, autograph=False).get_concrete_function(x, places).graph
    (op,) = (op for op in graph.get_operations() if op.type == "UnsortedSegmentSum")
    late = tf.function(CPU.lower(op).build, jit_compile=True)(x, places)
    np.testing.assert_array_equal(late, tf.function(sum_by, jit_compile=True)(x, places))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loss_that_is_written_over_its_logits_gives_the_same(dtype):
    """Logits that are minus infinity, of the expected class too, and classes that are none."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=30, size=(40, 7))
    logits[::3, 2] = logits[5, 1] = -np.inf
    logits, classes = tf.constant(logits, dtype), tf.constant(generator.integers(-1, 8, 40))
    classes = tf.tensor_scatter_nd_update(classes, [[5], [6]], [1, 2**32])

    def lose(logits, classes):
        return tuple(tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=classes))

    graph = tf.function(lose, autograph=False).get_concrete_function(logits, classes).graph
    (op,) = (op for op in graph.get_operations() if op.type == "SparseSoftmaxCrossEntropyWithLogits")
    assert GPU.lower(op) is None
    written = tf.function(CPU.lower(op).build, jit_compile=True)(logits, classes)
    for ours, stock in zip(written, tf.function(lose, jit_compile=True)(logits, classes), strict=True):
        assert np.isnan(stock).any()
        assert ours.dtype == stock.dtype
        np.testing.assert_allclose(tf.cast(ours, "float32"), tf.cast(stock, "float32"), rtol=1e-6)


@pytest.mark.parametrize(
    ("strides", "dilation", "padding"),
    [(1, 1, "SAME"), (2, 1, "VALID"), (1, 2, [[0, 0], [2, 1], [1, 2], [0, 0]])],
)
def test_filter_gradients_that_compute_apart_what_they_transpose_give_the_same(strides, dilation, padding):
    generator = np.random.default_rng(0)
    x = tf.constant(generator.normal(size=(3, 9, 9, 4)).astype("f"))
    weights = tf.constant(generator.normal(size=(3, 3, 4, 5)).astype("f"))

    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result = tf.nn.conv2d(x, weights, strides, padding, dilations=dilation)
        return tape.gradient(result, weights, output_gradients=y)

    y = tf.nn.conv2d(x, weights, strides, padding, dilations=dilation)
    graph = tf.function(gradient, autograph=False).get_concrete_function(x, y).graph
    (op,) = (op for op in graph.get_operations() if op.type == "Conv2DBackpropFilter")
    apart = tf.function(OperandsApart().lower(op).build, jit_compile=True)(x, y)
    np.testing.assert_array_equal(apart, tf.function(gradient, jit_compile=True)(x, y))


@cache
def compute_gradients(function) -> list[tf.Tensor]:
    """Runs a step that XLA compiles on a batch."""
    batch = [tf.constant(array) for array in data(BATCH_SIZE)]
    return tf.function(lambda *arrays: function(*arrays), jit_compile=True)(*batch)["gradients"]


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_stock_step(name, backend):
    """What is written for a GPU is compiled for this CPU, which drops the barriers."""
    emitted = rematerialized(name, SHARES[name], backend)[1]
    stock = compute_gradients(stock_step(name)[3].training_graph.function)
    rewritten = compute_gradients(emitted.function)
    for expected, found in zip(stock, rewritten, strict=True):
        assert float(tf.reduce_max(abs(found - expected))) <= 1e-5 * float(tf.reduce_max(abs(expected)))


def test_gradients_of_slices_are_put_together():
    """TensorFlow pads each to the size of the whole, and adds them up."""
    inputs = x = keras.Input((8, 32, 16))
    for _ in range(2):
        x = keras.layers.TimeDistributed(keras.layers.Conv1D(16, 3, padding="same", activation="tanh"))(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    spec, training_graph, stock = compile_stock(model)
    xla_graph = make_xla_graph(training_graph, list_kernels(stock), CPU)
    emitted = emit_for_xla(xla_graph, make_retain_all_schedule(xla_graph.graph))
    kernels = list_kernels(compile_step(emitted.function, spec.flat))
    assert not [name for kernel in kernels for name in kernel.inside if "StridedSliceGrad" in name]
    random = np.random.default_rng(0)
    batch = [tf.constant(random.normal(size=one.shape).astype("f")) for one in spec.flat]
    stock, rewritten = (
        tf.function(lambda *a, step=step: step(*a), jit_compile=True, autograph=False)(*batch)
        for step in (training_graph.function, emitted.function)
    )
    for expected, found in zip(stock["gradients"], rewritten["gradients"], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(tf.reduce_max(abs(expected))))


@pytest.mark.parametrize(
    ("slices", "is_lowered"),
    [
        ((np.s_[:, :5], np.s_[:, -3:]), True),
        ((np.s_[:, 1:], np.s_[:, 0]), True),
        ((np.s_[:, :5], np.s_[:, 3:]), False),
        ((np.s_[:, :5], np.s_[:, 6:]), False),
        ((np.s_[:, :4], np.s_[:, 4::2]), False),
        ((np.s_[:, :4], np.s_[:2, 4:]), False),
    ],
)
def test_only_slices_that_make_up_the_whole_are_put_together(slices, is_lowered):
    """Neither those that overlap, nor with a gap between them, nor with steps, nor along two axes."""
    x = tf.zeros((3, 8, 2))
    random = np.random.default_rng(0)
    gradients = [tf.constant(random.normal(size=x[one].shape).astype("f")) for one in slices]

    def gradient(*gradients):
        with tf.GradientTape() as tape:
            tape.watch(x)
            parts = [x[one] for one in slices]
        return tape.gradient(parts, x, output_gradients=list(gradients))

    graph = tf.function(gradient, autograph=False).get_concrete_function(*gradients).graph
    (op,) = (op for op in graph.get_operations() if op.type == "AddN")
    found = CPU.lower(op)
    assert (found is not None) == is_lowered
    if found is not None:
        given = [
            next(g for g, t in zip(gradients, graph.inputs, strict=False) if t is pad.inputs[4]) for pad in found.within
        ]
        np.testing.assert_array_equal(found.build(*given), gradient(*gradients))


def test_each_device_has_its_backend():
    assert find_backend("CPU:0") is CPU
    assert find_backend("GPU:0") is GPU


def test_barriers_are_lowered():
    """Each tie is a barrier over a gradient and what waits for it, in what XLA is given for any backend."""
    spec = stock_step("conv_chain")[1]
    emitted = rematerialized("conv_chain", 0.7, GPU)[1]
    step = tf.function(lambda *a: emitted.function(*a), jit_compile=True, autograph=False)
    text = step.experimental_get_compiler_ir(*spec.flat)(stage="stablehlo")
    assert text.count("optimization_barrier") == sum(
        definition.op == "XlaOptimizationBarrier" for definition in emitted.graph_def.node
    )
    assert "optimization_barrier" in text


class Noise(keras.layers.Layer):
    def call(self, x):
        flat = tf.random.stateless_uniform((BATCH_SIZE * 32 * 32 * 16,), (1, 2))
        return x * tf.exp(tf.reshape(flat, (BATCH_SIZE, 32, 32, 16)))


def noisy() -> keras.Model:
    """Random numbers, which are read through a view."""
    inputs = keras.Input((32, 32, 16))
    x = Noise()(keras.layers.Conv2D(16, 3, padding="same")(inputs))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(16, 3, padding="same")(x)))


def sliced() -> keras.Model:
    """Two slices of a convolution."""
    inputs = keras.Input((32, 32, 16), batch_size=BATCH_SIZE)
    x = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    halves = []
    for start in (0, 8):
        half = keras.ops.slice(x, (0, 0, 0, start), (BATCH_SIZE, 32, 32, 8))
        halves.append(keras.layers.Conv2D(8, 3, padding="same", activation="tanh")(half))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(halves[0] * halves[1]))


def graph_for_gpu(model: keras.Model):
    """The graph that plans for a GPU would be made of, were its kernels those of this CPU; and its forward nodes."""
    model.compile("sgd", "mse")
    _, training_graph, stock = compile_stock(model)
    fused = make_xla_graph(training_graph, list_kernels(stock), GPU)
    return fused, [number for number, node in enumerate(fused.graph.nodes) if not node.is_backward]


def list_barriers(emitted) -> list[list[str]]:
    """What each barrier is over."""
    return [
        list(definition.input) for definition in emitted.graph_def.node if definition.op == "XlaOptimizationBarrier"
    ]


def test_barriers_are_over_nothing_that_is_computed_of_what_they_yield():
    """What reads the view of a tied tensor waits already: a barrier over that view would wait for itself."""
    model = noisy()  # its variables live as long as it does
    fused, _ = graph_for_gpu(model)
    fused = replace(fused, backend=GPU.without("sources_wait"))  # which makes the random numbers wait at once
    once = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    assert all(len(names) == 1 for names in list_barriers(once))  # a single tensor has a buffer, and does not wait
    *before, last = range(len(fused.graph.nodes))
    noise = next(number for number, node in enumerate(fused.graph.nodes) if "RandomUniform" in node.op_type)
    emitted = emit_for_xla(fused, Schedule.of([*before, noise, last]))
    assert any("stateless_random_uniform" in name for names in list_barriers(emitted) for name in names)


def test_recomputation_for_a_gpu_waits_for_a_large_gradient(monkeypatch):
    """XLA computes small tensors, such as those of a normalization, within their readers unless a barrier is there."""
    small_bytes = BATCH_SIZE * 32 * 32 * 4  # all but the wide layers
    monkeypatch.setattr(Progress, "small_bytes", small_bytes)
    inputs = x = keras.Input((32, 32))
    for _ in range(3):
        hidden = keras.layers.Dense(128, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.add([x, keras.layers.Dense(32)(hidden)])
    model = keras.Model(inputs, keras.layers.Dense(4)(x))  # its variables live as long as it does
    fused, forward = graph_for_gpu(model)
    nodes, sizes_bytes = fused.graph.nodes, fused.graph.sizes_bytes
    place = next(  # of a node whose newest input is small
        index
        for index in range(len(forward) + 1, len(nodes))
        if nodes[index].inputs and sizes_bytes[max(nodes[index].inputs)] <= small_bytes
    )
    wide = next(index for index in forward if "MatMul" in nodes[index].op_type)
    alone = replace(fused, backend=GPU.without("sources_wait"))  # nothing else waits
    emitted = emit_for_xla(alone, Schedule.of([*range(place), wide, *range(place, len(nodes))]))
    awaited = next(names[0] for names in list_barriers(emitted) if len(names) > 1).partition(":")[0]
    tensor = next(op.outputs[0] for op in fused.training_graph.ops.ops if op.name == awaited)
    assert tensor.dtype.size * tensor.shape.num_elements() > small_bytes


def test_slices_that_are_computed_again_are_under_a_barrier_of_their_own():
    """The second time waits for a gradient. One barrier over both times would wait for itself."""
    model = sliced()  # its variables live as long as it does
    fused, forward = graph_for_gpu(model)
    backward = range(len(forward), len(fused.graph.nodes))
    emitted = emit_for_xla(fused, Schedule.of([*forward, *forward[1:-1], *backward]))
    copied = [fused.training_graph.graph.nodes[number].op_type for number in emitted.copied_ops_per_node]
    assert copied.count("Slice") == 2


def test_slices_of_a_gradient_share_a_barrier():
    fused = stock_step("dense_block", GPU)[3]
    slices = {node.name for node in fused.graph.nodes if node.is_backward and node.op_type == "Slice"}
    emitted = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    shared = [names for names in list_barriers(emitted) if {name.removesuffix(":0") for name in names} & slices]
    assert len(slices) == 8  # of four concatenations of two each
    assert [len(names) for names in shared] == [2] * 4


def test_a_gpu_gets_nothing_that_is_for_a_cpu():
    """Nothing waits without recomputation, and filter gradients and sums by segments stay as they are."""
    model = bottlenecks()  # its variables live as long as it does
    fused, _ = graph_for_gpu(model)
    assert choose_lowerings(fused) == fused
    emitted = emit_for_xla(fused, make_retain_all_schedule(fused.graph))
    assert all(len(names) == 1 for names in list_barriers(emitted))
    ops = fused.training_graph.ops.ops
    filters = [op for op in ops if op.type == "Conv2DBackpropFilter"]
    assert [GPU.lower(op) for op in filters] == [None] * len(filters)
    assert any(CPU.lower(op) for op in filters)


def test_what_a_library_is_given_to_work_in_is_not_its_result():
    """On a GPU a convolution yields its result and untyped bytes, which are there only while it runs."""
    module = HloProto()
    hlo = module.hlo_module
    hlo.entry_computation_id = 1
    instruction = hlo.computations.add(id=1).instructions.add(id=2, opcode="custom-call")
    instruction.metadata.op_name = "convolution"
    for name, size in (("F32", 6), ("U8", 100)):
        instruction.shape.tuple_shapes.add(element_type=PrimitiveType.Value(name)).dimensions.append(size)
    hlo.schedule.sequences[1].instruction_ids.append(2)
    (kernel,) = list_kernels(module)
    assert (kernel.size_bytes, kernel.scratch_bytes) == (24, 100)


def test_the_scalars_that_a_reduction_adds_are_not_inside_its_kernel():
    """XLA shares their computation, with the name of the first reduction, among all reductions."""
    module = HloProto()
    hlo = module.hlo_module
    hlo.entry_computation_id = 1
    entry, scalars = hlo.computations.add(id=1), hlo.computations.add(id=2)
    scalars.instructions.add(id=20, opcode="add").metadata.op_name = "first_mean"
    for number, name in ((10, "first_mean"), (11, "second_mean")):
        instruction = entry.instructions.add(id=number, opcode="reduce", called_computation_ids=[2])
        instruction.metadata.op_name = name
        hlo.schedule.sequences[1].instruction_ids.append(number)
    assert [kernel.inside for kernel in list_kernels(module)] == [{"first_mean"}, {"second_mean"}]


def test_what_a_library_is_given_to_work_in_counts_while_its_node_runs():
    _, _, module, fused = stock_step("conv_chain", GPU)
    kernels = [replace(kernel, scratch_bytes=2**20) for kernel in list_kernels(module)]
    more = make_xla_graph(fused.training_graph, kernels, GPU)
    grown = zip(fused.graph.nodes, more.graph.nodes, strict=True)
    assert {new.workspace_bytes - old.workspace_bytes for old, new in grown if "Conv2D" in old.op_type} == {2**20}


def test_barriers_save_memory_where_the_compiler_keeps_them():
    """XLA:CPU of TensorFlow 2.21 strips barriers too early; without that pass it stands for other backends."""
    flags = {**os.environ, "XLA_FLAGS": "--xla_disable_hlo_passes=cse_barrier_expander"}
    program = (
        f"{WITHOUT_OPTIONAL}from tests.executors.xla.test_xla import *\n"
        "stock = read_xla_memory(stock_step('conv_chain')[2]).temporary_bytes\n"
        "module = compile_rematerialized('conv_chain', 0.7, GPU)\n"
        "print(read_xla_memory(module).temporary_bytes / stock)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], env=flags, capture_output=True, text=True, check=True)
    assert float(run.stdout.split()[-1]) < 0.8


def test_fit_under_xla_trains_as_stock_within_the_budget():
    """The last batch is smaller: its stock step keeps to the budget."""
    x, y = data(2 * BATCH_SIZE + 3)
    histories, weights = [], []
    for rematerialized in (False, True):
        model = conv_chain(jit_compile=rematerialized)
        if rematerialized:
            stock = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="100%", measure=False)
            prefetched = stock.resident.prefetched
            half = (stock.stock_peak_bytes - prefetched) // 2  # as it is compiled; the allocator's chunks may be larger
            plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget=prefetched + half, time_limit_s=10)
            assert plan.measured_peak_bytes <= plan.budget_bytes < 0.51 * (plan.stock_peak_bytes + prefetched)
            assert plan.recomputed
        histories.append(model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0).history)
        weights.append(model.get_weights())
    for name, stock in histories[0].items():
        np.testing.assert_allclose(histories[1][name], stock, rtol=1e-5)
    for expected, found in zip(*weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_another_xla_than_that_of_the_rules_is_warned_of(monkeypatch):
    monkeypatch.setattr(xla_step, "XLA_RULES_RELEASE", "2.2")
    with pytest.warns(RuntimeWarning, match=r"another XLA .* pip install 'tensorflow==2\.2\.\*'"):
        checkmate_tf.rematerialize(conv_chain(), batch_size=BATCH_SIZE, budget="100%", measure=False)


def test_peaks_of_the_buffer_assignment_are_called_compiled():
    plan = checkmate_tf.rematerialize(conv_chain(), batch_size=BATCH_SIZE, budget="70%", time_limit_s=10)
    assert str(plan).count("(compiled)") == 2
    assert "measured" not in str(plan)


_PEAKS_OF_TRAINING = """
import checkmate_tf
from tests.executors.xla.test_xla import BATCH_SIZE, conv_chain, data
for budget in ("100%", "60%"):
    model, report = conv_chain(), checkmate_tf.MemoryReport()
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget=budget, time_limit_s=5)
    model.fit(*data(BATCH_SIZE), batch_size=BATCH_SIZE, epochs=2, verbose=0, callbacks=[report])
    prefetched = plan.resident.prefetched  # There is one batch, and none to prefetch.
    print("peaks", report.peak_bytes, plan.peak_bytes - prefetched, plan.stock_peak_bytes - prefetched)
"""


def test_the_allocator_reports_the_compiled_peaks_of_both_steps():
    """In a process of its own, whose pool has the region that planning reserves and nothing else.

    The allocator puts all temporary values into one chunk. Without the region, that chunk may be twice as large.
    """
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [sys.executable, "-c", WITHOUT_OPTIONAL + _PEAKS_OF_TRAINING]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("peaks ")]
    if told[0][0] == "None":
        pytest.skip("the allocator of this processor keeps no statistics")
    stock, planned = [[int(figure) for figure in line] for line in told]
    assert stock[1] == stock[2] == planned[2]  # the stock step, and the peak of which budgets are shares
    for reported, stated, _ in (stock, planned):
        assert reported == pytest.approx(stated, rel=0.05)  # Without the region, the stock step takes 1.12 of it.


def test_budgets_cover_the_batches_that_fit_prefetches(monkeypatch):
    compiled = []
    monkeypatch.setattr(compilers, "compile_step", lambda *args: compiled.append(compile_step(*args)) or compiled[-1])
    plan = checkmate_tf.rematerialize(conv_chain(), batch_size=BATCH_SIZE, budget="70%", time_limit_s=10)
    stock, *tried = (read_xla_memory(module).peak_bytes for module in compiled)
    prefetched = plan.resident.prefetched
    assert prefetched >= plan.resident.batch > 0
    assert plan.stock_peak_bytes == stock + prefetched
    assert plan.measured_peak_bytes - prefetched in tried
    assert plan.graph.resident_bytes >= plan.resident.total


def test_the_stock_step_is_compiled_once_for_all_budgets(monkeypatch):
    compiled = []
    monkeypatch.setattr(compilers, "compile_step", lambda *args: compiled.append(args) or compile_step(*args))
    model = conv_chain()
    for budget in ("100%", "110%"):
        checkmate_tf.rematerialize(
            model, batch_size=BATCH_SIZE, budget=budget, options=checkmate_tf.Options(costs="flops"), progress=False
        )
    assert len(compiled) == 1
    model.compile(keras.optimizers.SGD(0.1), "mae", jit_compile=True)
    checkmate_tf.rematerialize(
        model, batch_size=BATCH_SIZE, budget="100%", options=checkmate_tf.Options(costs="flops"), progress=False
    )
    assert len(compiled) == 2


def test_auto_follows_keras(monkeypatch):
    """Keras compiles "auto" by XLA where there is a device that is no CPU."""
    devices = tf.config.list_physical_devices()
    for extra in ([], [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]):
        model = conv_chain()
        with monkeypatch.context() as patch:
            patch.setattr(tf.config, "list_physical_devices", lambda *_, extra=extra: [*devices, *extra])
            model.compile("sgd", "mse", jit_compile="auto")
        planned = []
        with monkeypatch.context() as patch:
            patch.setattr(XlaStep, "measure", lambda step, *_, seen=planned: seen.append(step) or StepRun(10**6))
            checkmate_tf.rematerialize(
                model, batch_size=BATCH_SIZE, budget="100%", options=checkmate_tf.Options(costs="flops"), time_limit_s=5
            )
        assert bool(planned) == bool(extra)


def test_rewritten_functions_are_compiled_as_their_source_is():
    model = conv_chain()
    variables = model.trainable_variables

    @tf.function(jit_compile=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return tape.gradient(loss, [variable.value for variable in variables])

    batch = [tf.constant(array) for array in data(BATCH_SIZE)]
    source = gradients.get_concrete_function(*batch)
    stock = checkmate_tf.rewrite_function(source, budget="100%", measure=False).plan
    rewritten = checkmate_tf.rewrite_function(source, budget=stock.stock_peak_bytes // 2, time_limit_s=10)
    assert rewritten.plan.recomputed
    assert rewritten.plan.measured_peak_bytes <= rewritten.plan.budget_bytes
    assert rewritten.function.function.function_def.attr["_XlaMustCompile"].b
    for expected, found in zip(source(*batch), rewritten(*batch), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_a_budget_that_no_compiled_plan_meets_is_refused_and_the_least_known_works(monkeypatch, tmp_path):
    """The cache of plans keeps the plan of the least budget, as it does for users."""
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    model = conv_chain()
    step = model.train_step
    with pytest.raises(InfeasibleBudgetError, match="least budget known to work") as refused:
        checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="5%", time_limit_s=5)
    assert model.train_step == step
    least_bytes = refused.value.least_budget_bytes
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget=least_bytes, time_limit_s=10)
    assert plan.measured_peak_bytes <= least_bytes
