"""Extraction: what becomes a node, a value, or neither."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from checkmate_tf import tf_private
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.tracing.analytic_costs import count_op_flops
from checkmate_tf.tracing.extraction import extract
from experiments.training_steps import trace
from tests.training_steps import conv_chain, stateful_net


def step_of(body, *specs):
    return tf.function(body, autograph=False).get_concrete_function(*specs)


def types_of(training_graph, node):
    return [op.type for op in training_graph.get_node_ops(node)]


@pytest.fixture(scope="module")
def chain():
    keras.utils.clear_session()
    model = conv_chain(num_layers=3)
    yield extract(trace(model))
    del model  # a traced function does not keep its variables


def test_same_model_gives_same_graph():
    graphs = []
    for _ in range(2):
        keras.utils.clear_session()
        graphs.append(extract(trace(stateful_net()), name="step").graph)
    assert graphs[0] == graphs[1]


def test_fused_ops_are_one_node(chain):
    nodes = [types_of(chain, node) for node in range(len(chain.graph.nodes))]
    assert sum(types[-3:] == ["Conv2D", "BiasAdd", "Relu"] for types in nodes) == 3
    pairs = [types for types in nodes if "Conv2DBackpropFilter" in types]
    assert len(pairs) == 3
    assert all("BiasAddGrad" in types for types in pairs)


def test_activation_is_one_value(chain):
    node = next(n for n in range(len(chain.graph.nodes)) if types_of(chain, n)[-1] == "Relu")
    (value,) = chain.graph.nodes[node].outputs
    assert chain.graph.values[value].size_bytes == 4 * 16 * 16 * 32 * 4
    assert [tensor.op.type for tensor in chain.get_value_tensors(value)] == ["Relu"]
    assert chain.graph.nodes[node].workspace_bytes == 0


def test_backward_nodes_follow_forward_nodes(chain):
    marks = [node.is_backward for node in chain.graph.nodes]
    assert marks == sorted(marks)
    for number, node in enumerate(chain.graph.nodes):
        assert node.is_backward == any("gradient_tape/" in op.name for op in chain.get_node_ops(number))


def test_resident_bytes_are_arguments_and_variables(chain):
    batch = 4 * 16 * 16 * 3 * 4 + 4 * 4
    weights = 4 * (27 * 32 + 32 + 2 * (9 * 32 * 32 + 32) + 32 * 10 + 10)
    constants = sum(t.numpy().nbytes for t in chain.function.captured_inputs if t.dtype != tf.resource)
    assert chain.graph.resident_bytes == batch + weights + constants


def test_gradients_are_outputs(chain):
    sizes = sorted(chain.graph.values[value].size_bytes for value in chain.graph.outputs)
    assert sizes[-2:] == [9 * 32 * 32 * 4] * 2


def test_every_needed_op_has_one_role():
    training_graph = extract(trace(stateful_net()))
    grouping = training_graph.grouping
    members = [member for group in grouping.groups for member in group.members]
    views = {op for op, _ in grouping.roots}
    roles = sorted([*members, *grouping.singles, *views])
    assert roles == list(range(len(training_graph.ops.ops)))


def test_reshape_shares_storage():
    def body(x):
        y = tf.exp(x)
        return tf.sin(tf.reshape(y, (16, 64))), tf.cos(tf.squeeze(tf.expand_dims(y, 0), 0))

    graph = extract(step_of(body, tf.TensorSpec((32, 32)))).graph
    assert [node.op_type for node in graph.nodes] == ["Exp", "Sin", "Cos"]
    assert graph.nodes[1].inputs == graph.nodes[2].inputs == graph.nodes[0].outputs


def test_random_and_stateful_nodes_are_not_recomputable():
    variable = tf.Variable(tf.zeros((32, 32)))

    def body(x):
        noise = tf.random.uniform((32, 32))
        mask = tf.random.stateless_uniform((32, 32), seed=(1, 2))
        before = tf.exp(x) * noise * mask
        variable.assign_add(before)
        return before, variable.read_value() * 2.0

    training_graph = extract(step_of(body, tf.TensorSpec((32, 32))))
    recomputable = {
        op_type: training_graph.graph.nodes[node].recomputable
        for node in range(len(training_graph.graph.nodes))
        for op_type in types_of(training_graph, node)
    }
    assert not recomputable["RandomUniform"]
    assert not recomputable["AssignAddVariableOp"]
    assert not recomputable["ReadVariableOp"]
    assert recomputable["StatelessRandomUniformV2"]
    assert recomputable["Exp"]


def test_read_after_assignment_follows_it():
    variable = tf.Variable(tf.zeros((32, 32)))

    def body(x):
        variable.assign(tf.exp(x))
        return variable.read_value() * 2.0

    training_graph = extract(step_of(body, tf.TensorSpec((32, 32))))
    order = [op.type for node in range(len(training_graph.graph.nodes)) for op in training_graph.get_node_ops(node)]
    assert order.index("Exp") < order.index("AssignVariableOp") < order.index("ReadVariableOp") < order.index("Mul")
    for node, sources in enumerate(training_graph.graph.predecessors):
        assert node == 0 or node - 1 in sources


def test_elementwise_output_takes_over_its_input():
    graph = extract(step_of(lambda x: (tf.exp(x), tf.sin(tf.matmul(x, x) + 1.0)), tf.TensorSpec((32, 32)))).graph
    by_type = {node.op_type: node for node in graph.nodes}
    assert by_type["MatMul+AddV2+Sin"].workspace_bytes == 0
    backward = extract(trace(conv_chain(num_layers=2))).graph
    gradient = next(node for node in backward.nodes if node.op_type == "ReluGrad")
    assert gradient.inplace


def test_temporary_with_one_reader_is_workspace():
    def body(x):
        y = tf.exp(x)
        return y, tf.reduce_sum(tf.math.squared_difference(y, tf.reduce_mean(x)), 0)

    graph = extract(step_of(body, tf.TensorSpec((64, 64)))).graph
    node = next(node for node in graph.nodes if "SquaredDifference" in node.op_type)
    assert node.op_type == "SquaredDifference+Sum"
    assert node.workspace_bytes == 64 * 64 * 4


def test_flops_of_products():
    def body(x, a):
        kernel = tf.ones((3, 3, 4, 8))
        depthwise = tf.ones((3, 3, 4, 2))
        return (
            tf.nn.conv2d(x, kernel, 1, "SAME"),
            tf.nn.depthwise_conv2d(x, depthwise, (1, 1, 1, 1), "SAME"),
            tf.matmul(a, a, transpose_b=True),
            tf.einsum("ij,kj->ik", a, a),
        )

    function = step_of(body, tf.TensorSpec((2, 8, 8, 4)), tf.TensorSpec((16, 32)))
    flops = {op.type: count_op_flops(op) for op in function.graph.get_operations()}
    assert flops["Conv2D"] == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 4)
    assert flops["DepthwiseConv2dNative"] == 2 * (2 * 8 * 8 * 8) * (3 * 3)
    assert flops["MatMul"] == flops["Einsum"] == 2 * 16 * 16 * 32


def test_small_statistics_are_a_value_of_their_own():
    keras.utils.clear_session()
    graph = extract(trace(stateful_net(), batch_size=16)).graph
    sizes = {value.size_bytes for value in graph.values}
    large = 16 * 16 * 16 * 16 * 4
    assert large in sizes
    assert any(0 < size <= 1024 for size in sizes)
    assert all(isinstance(value.size_bytes, int) for value in graph.values)


def test_step_that_computes_nothing_is_an_error():
    with pytest.raises(UnsupportedModelError, match="computes nothing"):
        extract(step_of(lambda x: x, tf.TensorSpec((2,))))


def test_costs_are_positive_integers(chain):
    assert np.all(chain.graph.costs > 0)
    assert chain.graph.cost_unit == "nominal ns"


def test_returned_tensors_wait_for_no_assignment():
    """tf.function lets its results wait for every stateful op; as nodes they would join all parts of the graph."""
    graph = extract(trace(stateful_net())).graph
    assert not [node.name for node in graph.nodes if node.op_type == "Identity"]


def test_an_interrupt_in_a_trace_is_an_interrupt(monkeypatch):
    make, variable = ops._create_c_op, tf.Variable(1.0)

    def make_and_interrupt(graph, node_def, *args, **kwargs):
        operation = make(graph, node_def, *args, **kwargs)
        if node_def.op == "Exp":
            raise KeyboardInterrupt  # the operation exists, and its outputs do not yet
        return operation

    monkeypatch.setattr(ops, "_create_c_op", make_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        tf_private.trace(tf.function(lambda: tf.exp(variable)), [])
