"""Emission: rewritten steps compute what the stock step computes, in the memory that the simulator says."""

import subprocess
import sys
from collections import Counter

import keras
import networkx as nx
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.graph.node_ends import find_ends
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.rewriting.chunks import find_block_regions, write_chunks
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_first_beside, make_retain_all_schedule, simulate
from checkmate_tf.tracing.extraction import extract
from experiments.training_steps import Branch, batch_of, recompute_all, run, trace
from tests.programs import WITHOUT_OPTIONAL
from tests.rewriting.attention import make_attention, make_hidden, trace_attention
from tests.training_steps import conv_chain, schedules, stateful_net

layers = keras.layers


@pytest.fixture(scope="module")
def chain():
    model = conv_chain(num_layers=8, size=64)
    yield extract(trace(model, batch_size=2))
    del model  # a traced function does not keep its variables


def greatest_difference(found, expected):
    """Of each array, relative to its largest entry."""
    pairs = [(np.float64(a), np.float64(b)) for a, b in zip(found, expected, strict=True)]
    return max(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-7) for a, b in pairs)


def test_identity_schedule_is_the_stock_step(chain):
    emitted = emit(chain, make_retain_all_schedule(chain.graph))
    batch = batch_of(chain.function)
    assert (emitted.num_copied_ops, emitted.copied_ops_per_node) == (0, {})
    for found, expected in zip(run(emitted.function, batch), run(chain.function, batch), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.measures_memory
def test_memory_is_what_the_simulator_says(chain):
    schedule = recompute_all(chain.graph)
    stock = make_retain_all_schedule(chain.graph)
    batch = batch_of(chain.function)
    predicted = {s: simulate(chain.graph, s).peak_bytes - chain.graph.resident_bytes for s in (stock, schedule)}
    assert predicted[schedule] < 0.8 * predicted[stock]
    for each, peak in predicted.items():
        emitted = emit(chain, each, ordering="chain")
        assert record_peak_bytes(emitted.function, batch) == pytest.approx(peak, rel=0.03)


@pytest.mark.measures_memory
@pytest.mark.parametrize("ordering", ["overlap", "chain"])
def test_loops_begin_once_all_that_they_read_is_there(ordering):
    """Those of attention's gradients, which read queries and keys of the forward pass, hold no scores before."""
    model = make_attention("multi_head", dtype="float32", length=512, num_layers=4)
    stock = trace_attention(model)
    chunked = extract(write_chunks(stock, find_block_regions(stock), 128).function)
    schedule = make_retain_all_schedule(chunked.graph)
    peak = simulate(chunked.graph, schedule).peak_bytes - chunked.graph.resident_bytes
    emitted = emit(chunked, schedule, ordering=ordering)
    assert record_peak_bytes(emitted.function, make_hidden(model)) <= 1.05 * peak


@pytest.mark.measures_memory
def test_steps_run_side_by_side_where_memory_allows(chain):
    schedule = recompute_all(chain.graph)
    peak = simulate(chain.graph, schedule).peak_bytes - chain.graph.resident_bytes
    overlapping, one_by_one = (emit(chain, schedule, ordering=ordering) for ordering in ("overlap", "chain"))
    assert overlapping.graph_def != one_by_one.graph_def
    records = [record_peak_bytes(overlapping.function, batch_of(chain.function)) for _ in range(5)]
    assert max(records) <= 1.03 * peak


def test_control_edges_and_data_order_what_memory_asks(chain):
    """All operations of a step come after those of all steps that it has to wait for."""
    schedule = recompute_all(chain.graph)
    first = find_first_beside(chain.graph, schedule)
    emitted = nx.DiGraph()
    for definition in emit(chain, schedule).graph_def.node:
        emitted.add_edges_from((name.lstrip("^").split(":")[0], definition.name) for name in definition.input)
    ends = find_ends(chain)
    names = []
    times = Counter[int]()
    for node in schedule.order:
        suffix = f"/recompute_{times[node]}" if times[node] else ""
        times[node] += 1
        ops = chain.ops.ops
        names.append([[ops[op].name + suffix for op in part] for part in (ends[node].heads, ends[node].tails)])
    assert (np.arange(len(schedule)) - first).max() > 1
    for step, (heads, _) in enumerate(names):
        for head in heads:
            before = nx.ancestors(emitted, head)
            assert before.issuperset(tail for _, tails in names[: first[step]] for tail in tails)


@pytest.mark.measures_memory
def test_the_allocator_holds_what_the_simulator_says():
    """In a process of its own: chunks that other tests left in the pool would count."""
    program = (
        f"{WITHOUT_OPTIONAL}from checkmate_tf.profiling.memory import measure_allocator_peak_bytes\n"
        "from tests.executors.graph.test_emission import *\n"
        "model = conv_chain(num_layers=8, size=64)\n"
        "chain = extract(trace(model, batch_size=2))\n"
        "schedule = recompute_all(chain.graph)\n"
        "emitted, batch = emit(chain, schedule, ordering='chain'), batch_of(chain.function)\n"
        "peaks = [measure_allocator_peak_bytes(lambda: emitted.function(*batch)) for _ in range(2)]\n"
        "held = simulate(chain.graph, schedule).peak_bytes - chain.graph.resident_bytes\n"
        "print(1.0 if peaks[-1] is None else peaks[-1] / held)\n"
    )
    run_alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(run_alone.stdout.split()[-1]) == pytest.approx(1, rel=0.1)


def test_copies_are_reported_and_named(chain, tmp_path):
    schedule = recompute_all(chain.graph)
    emitted = emit(chain, schedule)
    repeats = len(schedule) - len(chain.graph.nodes)
    assert len(emitted.copied_ops_per_node) == repeats > 0
    assert emitted.num_copied_ops == sum(len(chain.get_node_ops(node)) for node in emitted.copied_ops_per_node)
    written = {definition.name: definition for definition in emitted.graph_def.node}
    marks = []
    for node in emitted.copied_ops_per_node:
        for op in chain.get_node_ops(node):
            assert op.name in written
            marks.append(written[f"{op.name}/recompute_1"].attr["_checkmate_copy"].s)
    assert all(marks)
    assert len(set(marks)) == len(marks), "grappler merges operations that differ in nothing but their names"
    path = tmp_path / "step.pb"
    path.write_bytes(emitted.graph_def.SerializeToString())
    assert GraphDef.FromString(path.read_bytes()) == emitted.graph_def


def test_runs_nested_in_a_function_and_keeps_signature(chain):
    emitted = emit(chain, recompute_all(chain.graph))
    batch = batch_of(chain.function)
    nested = tf.function(lambda x, y: emitted.function(x, y), autograph=False)
    assert emitted.function.structured_input_signature == chain.function.structured_input_signature
    assert list(nested(*batch)) == list(chain.function(*batch))
    assert greatest_difference(run(nested, batch), run(emitted.function, batch)) == 0


def test_state_is_updated_exactly_once():
    keras.utils.set_random_seed(0)
    model = stateful_net()
    training_graph = extract(trace(model))
    emitted = emit(training_graph, recompute_all(training_graph.graph))
    batch = batch_of(training_graph.function)
    variables = [variable.value for variable in model.variables]
    assert any(op.type == "Conv2D" for node in emitted.copied_ops_per_node for op in training_graph.get_node_ops(node))
    stock = run(training_graph.function, batch, variables)
    found = run(emitted.function, batch, variables)
    assert greatest_difference(found, stock) < 1e-5
    seeds = [i for i, variable in enumerate(variables) if variable.dtype.is_integer]
    assert seeds
    for index in seeds:
        np.testing.assert_array_equal(found[index - len(variables)], stock[index - len(variables)])
        assert np.any(found[index - len(variables)] != variables[index].numpy())
    for again, first in zip(run(emitted.function, batch, variables), found, strict=True):
        np.testing.assert_array_equal(again, first)


def embedding_net():
    inputs = keras.Input((6,), dtype="int32")
    outputs = layers.LayerNormalization()(layers.Embedding(20, 32)(inputs))
    outputs = layers.Add()([outputs, layers.MultiHeadAttention(2, 16)(outputs, outputs)])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(outputs)))


def recurrent_net():
    inputs = keras.Input((5, 8))
    return keras.Model(inputs, layers.Dense(10)(layers.LSTM(16)(layers.Dense(16, activation="gelu")(inputs))))


def branching_net():
    inputs = keras.Input((8, 8, 8))
    outputs = Branch()(layers.GroupNormalization(4)(layers.Conv2D(16, 3, padding="same")(inputs)))
    outputs = layers.Conv2D(16, 3, groups=4, padding="same")(outputs)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs)))


def half_precision_net():
    inputs = keras.Input((8, 8, 3))
    outputs = layers.Conv2D(8, 3, padding="same", dtype="mixed_bfloat16", activation="relu")(inputs)
    outputs = layers.BatchNormalization(dtype="mixed_bfloat16")(outputs)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs)))


def padded_half_precision_net():
    """A pad that one convolution reads, the weights cast in between: oneDNN fuses them where it can do bfloat16."""
    inputs = keras.Input((8, 8, 3))
    outputs = layers.ZeroPadding2D(1)(layers.Conv2D(8, 3, padding="same")(inputs))
    outputs = layers.Conv2D(8, 3, dtype="mixed_bfloat16", trainable=False)(outputs)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs)))


@pytest.mark.parametrize(
    "make", [embedding_net, recurrent_net, branching_net, half_precision_net, padded_half_precision_net]
)
def test_unusual_ops_survive(make):
    keras.utils.set_random_seed(0)
    model = make()
    training_graph = extract(trace(model))
    emitted = emit(training_graph, recompute_all(training_graph.graph, keep_every=3))
    batch = batch_of(training_graph.function)
    variables = [variable.value for variable in model.variables]
    stock = run(training_graph.function, batch, variables)
    assert emitted.num_copied_ops > 0
    assert greatest_difference(run(emitted.function, batch, variables), stock) < (
        2e-2 if "half" in make.__name__ else 1e-4
    )


def test_invalid_schedule_is_an_error(chain):
    with pytest.raises(EmissionError, match="never computed"):
        emit(chain, Schedule((0,)))


_UNARY = [tf.exp, tf.tanh, tf.nn.relu, tf.negative, lambda x: tf.reshape(tf.reshape(x, [-1]), [8, 8]), tf.transpose]
_BINARY = [tf.add, tf.multiply, tf.matmul, tf.maximum, lambda a, b: tf.concat([a[:4], b[4:]], 0)]


@st.composite
def programs(draw):
    """Random straight-line programs on 8 x 8 matrices: (kind, choice, operands) per instruction."""
    instructions = []
    for index in range(draw(st.integers(3, 12))):
        kind = draw(st.sampled_from(["unary", "unary", "binary", "binary", "reduce", "identity_n", "assign", "split"]))
        operands = tuple(draw(st.integers(0, index)) for _ in range(2))
        instructions.append((kind, draw(st.integers(0, 5)), operands))
    return instructions


def traced_program(program, variable):
    def interpret(x):
        values = [tf.tanh(x)]
        for kind, choice, (first, second) in program:
            a, b = values[first], values[second]
            if kind == "unary":
                result = _UNARY[choice % len(_UNARY)](a)
            elif kind == "binary":
                result = _BINARY[choice % len(_BINARY)](a, b)
            elif kind == "reduce":
                result = a - tf.reduce_mean(b, axis=choice % 2, keepdims=True)
            elif kind == "identity_n":
                result = tf.raw_ops.IdentityN(input=[a, b])[choice % 2]
            elif kind == "assign":
                variable.assign_add(tf.tanh(a))
                result = variable.read_value() + b
            else:
                parts = tf.split(a, 2, axis=choice % 2)
                result = tf.concat([parts[1], parts[0]], choice % 2)
            values.append(tf.tanh(result))
        return values[-1], tf.add_n(values[-3:])

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            last, total = interpret(x)
            loss = tf.reduce_sum(total)
        return {"last": last, "loss": loss, "gradient": tape.gradient(loss, x)}

    return tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((8, 8)))


@settings(max_examples=12)
@given(data=st.data())
def test_random_programs_under_random_schedules(data):
    variable = tf.Variable(tf.zeros((8, 8)))
    function = traced_program(data.draw(programs()), variable)
    training_graph = extract(function)
    schedule = data.draw(schedules(training_graph.graph))
    emitted = emit(training_graph, schedule, ordering=data.draw(st.sampled_from(["chain", "overlap"])))
    batch = (tf.constant(np.random.default_rng(0).normal(size=(8, 8)), tf.float32),)
    expected = run(function, batch, [variable])
    assert greatest_difference(run(emitted.function, batch, [variable]), expected) < 1e-5


def test_what_writes_over_an_input_waits_for_the_views_of_it(chain):
    """Else a view may still hold the storage when the step begins, and one buffer more is taken."""
    schedule = recompute_all(chain.graph)
    definitions = {definition.name: definition for definition in emit(chain, schedule).graph_def.node}
    ends = find_ends(chain)
    heads = {
        chain.ops.ops[op].name
        for node, end in zip(chain.graph.nodes, ends, strict=True)
        if node.inplace
        for op in end.heads
    }
    emitted = nx.DiGraph()
    for definition in definitions.values():
        emitted.add_edges_from((name.lstrip("^").split(":")[0], definition.name) for name in definition.input)

    def read(head: str) -> set[str]:
        inputs = {name.partition(":")[0] for name in definitions[head].input if not name.startswith("^")}
        return {definitions[name].input[0].partition(":")[0] if name.endswith("/wait") else name for name in inputs}

    viewed = [(head, source) for head in heads for source in read(head) if f"{source}/done" in definitions]
    assert viewed
    assert all(f"{source}/done" in nx.ancestors(emitted, head) for head, source in viewed)


def test_a_wait_breaks_no_fusion():
    """A product whose own output is too small to wait for is waited for behind its bias, with which it is one kernel.

    Otherwise the copy rounds differently from the original.
    """
    model = conv_chain(num_layers=2, size=32, channels=64)
    training_graph = extract(trace(model))
    schedule = recompute_all(training_graph.graph, keep_every=len(training_graph.graph.nodes))
    definitions = emit(training_graph, schedule, ordering="chain").graph_def.node
    products = [d.name for d in definitions if d.op == "MatMul" and not d.name.startswith("gradient_tape")]
    assert products
    for product in products:
        assert {d.op for d in definitions if product in d.input} == {"BiasAdd"}


def list_read_gradients(training_graph, ordering):
    """The gradients that those of biases read, and those that those of filters read, by name."""
    definitions = emit(training_graph, recompute_all(training_graph.graph), ordering=ordering).graph_def.node
    positions = {"BiasAddGrad": 0, "Conv2DBackpropFilter": 2}
    return tuple([d.input[position] for d in definitions if d.op == kind] for kind, position in positions.items())


@pytest.mark.parametrize("ordering", ["chain", "overlap"])
def test_a_bias_and_its_filter_wait_for_their_gradient_together(chain, ordering):
    """Through one view of it: oneDNN computes both in one kernel, and one by one they round differently."""
    of_biases, of_filters = list_read_gradients(chain, ordering)
    assert any(name.partition(":")[0].endswith("/wait") for name in of_filters)
    assert len(of_filters) == 8
    assert set(of_filters) <= set(of_biases)


def test_layers_that_share_a_gradient_read_it_each_through_a_view_of_its_own():
    """Else oneDNN computes the gradients of two layers in one kernel, and what runs between waits for itself."""
    inputs = keras.Input((16, 16, 3))
    both = layers.Add()([layers.Conv2D(16, 3, padding="same")(inputs), layers.Conv2D(16, 5, padding="same")(inputs)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(both)))
    _, of_filters = list_read_gradients(extract(trace(model)), "chain")
    assert len(set(of_filters)) == len(of_filters) == 2
    assert all(name.partition(":")[0].endswith("/wait") for name in of_filters)


@pytest.mark.parametrize("ordering", ["chain", "overlap"])
def test_a_pad_that_one_convolution_reads_is_not_fused_with_it(ordering):
    """A gradient reads it in the stock step. If oneDNN fused the two, nodes between them would wait for themselves."""
    inputs = keras.Input((16, 16, 3))
    hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    behind = layers.Conv2D(16, 3, name="behind")(layers.ZeroPadding2D(1)(hidden))
    beside = layers.Conv2D(16, 3, padding="same", name="beside")(hidden)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(layers.Add()([behind, beside]))))
    training_graph = extract(trace(model))
    numbers = {node.name: number for number, node in enumerate(training_graph.graph.nodes)}
    pad, behind, beside = (
        next(number for name, number in numbers.items() if part in name) for part in ("/Pad", "behind", "beside")
    )
    order = [node for node in range(len(numbers)) if node != beside]
    order.insert(order.index(behind), beside)
    order.insert(next(n for name, n in numbers.items() if "behind" in name and "Filter" in name), pad)
    emitted = emit(training_graph, Schedule(tuple(order)), ordering=ordering)
    batch, variables = batch_of(training_graph.function), [variable.value for variable in model.variables]
    stock = run(training_graph.function, batch, variables)
    assert greatest_difference(run(emitted.function, batch, variables), stock) < 1e-5


def test_operations_that_wait_for_each_other_are_named(chain, monkeypatch):
    write = Copies.graph_def

    def graph_def_in_a_circle(copies):
        definition = write(copies)
        first, second = next((d, e) for d in definition.node for e in definition.node if f"{d.name}:0" in e.input)
        first.input.append(f"^{second.name}")
        return definition

    monkeypatch.setattr(Copies, "graph_def", graph_def_in_a_circle)
    with pytest.raises(EmissionError, match=r"of the rewritten step wait for each other: .* <- "):
        emit(chain, make_retain_all_schedule(chain.graph))


def test_what_reads_a_repeat_through_a_view_reads_the_repeat():
    """Else the first computation would be held for it."""

    def step(x):
        view = tf.reshape(tf.exp(x), [-1])
        return tf.reduce_sum(tf.tanh(view)), tf.reduce_sum(tf.sqrt(view))

    function = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((256, 64)))
    training_graph = extract(function)
    nodes = range(len(training_graph.graph.nodes))
    node_of = {op.type: node for node in nodes for op in training_graph.get_node_ops(node)}
    order = [node_of["Exp"], node_of["Tanh"], node_of["Exp"], node_of["Sqrt"]]
    order += [node for node in nodes if node not in order]
    definitions = {d.name: d for d in emit(training_graph, Schedule(tuple(order))).graph_def.node}
    sources = {}
    for reader in ("Tanh", "Sqrt"):
        name = reader
        while definitions[name].op != "Exp":
            name = definitions[name].input[0].partition(":")[0]
        sources[reader] = name
    assert sources == {"Tanh": "Exp", "Sqrt": "Exp/recompute_1"}


def test_of_operations_in_a_line_only_the_first_waits(chain):
    """One in the middle would wait through a view, and be no part of the kernel that the line is."""
    line = [
        end
        for node, end in enumerate(find_ends(chain))
        if [op.type for op in chain.get_node_ops(node)] == ["Conv2D", "BiasAdd", "Relu"]
    ]
    assert len(line) == 8
    for end in line:
        assert [chain.ops.ops[op].type for op in end.heads] == ["Conv2D"]
        assert [chain.ops.ops[op].type for op in end.tails] == ["Relu"]


def test_nothing_waits_by_a_view_of_what_is_known_before_a_step_runs():
    """The gradient of a square has an exponent of 2 - 1; grappler then rewrites how it reads its activation."""
    weights = [tf.Variable(tf.random.stateless_normal([64, 64], (0, i))) for i in range(4)]

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.linalg.matmul(x, weight) ** 2
            loss = tf.reduce_mean(x)
        return loss, tape.gradient(loss, weights)

    graph = extract(tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([256, 64])))
    emitted = emit(graph, make_retain_all_schedule(graph.graph), ordering="chain")
    nodes = {node.name: node for node in emitted.graph_def.node}
    waiting = [node for node in nodes.values() if node.name.endswith("Pow/wait")]
    assert len(waiting) >= 3
    assert {nodes[node.input[0].partition(":")[0]].op for node in waiting} == {"MatMul"}


@pytest.mark.parametrize("ordering", ["overlap", "chain"])
def test_terms_are_added_up_in_the_order_of_the_stock_step(ordering):
    """Grappler sorts the terms of a sum by name; views that wait, and repeats, have other names."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((64,))
    x = layers.Dense(64, activation="tanh")(inputs)
    for _ in range(3):
        x = layers.Concatenate()([layers.Dense(16, activation="tanh")(x) for _ in range(4)])
    model = keras.Model(inputs, layers.Dense(10)(x))
    graph = extract(trace(model, batch_size=256))
    sums = [op for op in graph.ops.ops if op.type == "AddN"]
    assert max(len(op.inputs) for op in sums) == 4
    batch = batch_of(graph.function)
    stock = run(graph.function, batch)
    for schedule in (make_retain_all_schedule(graph.graph), recompute_all(graph.graph)):
        for found, expected in zip(run(emit(graph, schedule, ordering=ordering).function, batch), stock, strict=True):
            np.testing.assert_array_equal(found, expected)
