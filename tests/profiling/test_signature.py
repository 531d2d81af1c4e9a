"""Signatures: what tells nodes apart, what does not, and the inputs that are made up for them."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.signature import Fragment, cut_fragments


def cut(build, *types: str) -> list[Fragment | ProfileError]:
    """One fragment for each operation of one of `types` in the graph that `build` makes."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    return cut_fragments(graph, [[op] for op in graph.get_operations() if op.type in types])


def placeholder(*shape: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.compat.v1.placeholder(dtype, shape)


def test_names_do_not_matter_but_shapes_dtypes_and_attributes_do():
    def build():
        x, y = placeholder(8, 4), placeholder(4, 4)
        tf.linalg.matmul(x, y, name="first")
        with tf.name_scope("elsewhere"):
            tf.linalg.matmul(placeholder(8, 4), placeholder(4, 4), name="second")
        tf.linalg.matmul(placeholder(16, 4), y)
        tf.linalg.matmul(x, y, transpose_b=True)
        tf.linalg.matmul(placeholder(8, 4, dtype=tf.float64), placeholder(4, 4, dtype=tf.float64))
        tf.linalg.matmul(y, y)

    first, second, *others = [fragment.signature for fragment in cut(build, "MatMul")]
    assert first == second
    assert len({first, *others}) == 5


def test_the_same_tensor_twice_is_not_two_tensors():
    def build():
        x, y = placeholder(8), placeholder(8)
        tf.multiply(x, x)
        tf.multiply(x, y)

    square, product = cut(build, "Mul")
    assert square.signature != product.signature
    assert len(square.inputs) == 1


def test_values_of_axes_and_shapes_are_part_of_the_signature():
    def build():
        x = placeholder(8, 4)
        tf.reduce_sum(x, axis=0)
        tf.reduce_sum(x, axis=1)
        tf.reduce_sum(placeholder(8, 4), axis=0)

    over_rows, over_columns, again = cut(build, "Sum")
    assert over_rows.signature == again.signature != over_columns.signature
    np.testing.assert_array_equal(over_rows.inputs[1].constant, [0])


def test_a_text_is_part_of_the_signature():
    """A layer that splits texts reads its separator from such a constant."""

    def build():
        texts = placeholder(8, dtype=tf.string)
        for text in ("a", "b", "a"):
            tf.strings.join([texts, tf.constant(text)])

    first, other, again = cut(build, "StringJoin")
    assert first.signature == again.signature != other.signature
    assert first.inputs[1].constant.shape == ()


def test_integers_computed_from_known_shapes_are_known():
    def build():
        x = placeholder(6, 4)
        shape = tf.shape(x)
        tf.reshape(x, [shape[0] * shape[1] // 3, -1], name="target")

    graph = tf.Graph()
    with graph.as_default():
        build()
    target = graph.get_operation_by_name("target")
    (fragment,) = cut_fragments(graph, [[target]])
    np.testing.assert_array_equal(fragment.inputs[1].constant, [8, -1])


def test_shapes_for_gradients_of_broadcasts_are_known():
    graph = tf.Graph()
    with graph.as_default():
        x, y = placeholder(6, 4), placeholder(4)
        shapes = tf.shape_n([x, y])
        axes = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])
        total = tf.raw_ops.Sum(input=x, axis=axes.r1)
    (fragment,) = cut_fragments(graph, [[total.op]])
    np.testing.assert_array_equal(fragment.inputs[1].constant, [0])


@pytest.mark.parametrize(
    ("build", "op_type", "limit"),
    [
        (lambda ids: tf.gather(placeholder(50, 4), ids), "GatherV2", 50),
        (lambda ids: tf.gather(placeholder(50, 4), ids, axis=1), "GatherV2", 4),
        (lambda ids: tf.one_hot(ids, 7), "OneHot", 7),
        (lambda ids: tf.math.unsorted_segment_sum(placeholder(3, 2), ids, 9), "UnsortedSegmentSum", 9),
        (
            lambda ids: tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=placeholder(3, 10), labels=ids),
            "SparseSoftmaxCrossEntropyWithLogits",
            10,
        ),
    ],
)
def test_indices_and_labels_stay_within_bounds(build, op_type, limit):
    (fragment,) = cut(lambda: build(placeholder(3, dtype=tf.int32)), op_type)
    assert [
        described.limit for described in fragment.inputs if described.dtype.is_integer and described.constant is None
    ] == [limit]


def test_variants_and_unknown_shapes_are_refused_with_a_reason():
    def build():
        variant = tf.compat.v1.placeholder(tf.variant, [])
        tf.raw_ops.TensorListLength(input_handle=variant)
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [None, 3]))

    length, relu = cut(build, "TensorListLength", "Relu")
    assert isinstance(length, ProfileError)
    assert "variant" in str(length)
    assert isinstance(relu, ProfileError)
    assert "only known while the step runs" in str(relu)


def test_signatures_are_the_same_in_every_trace_even_where_functions_are_called():
    def traced():
        @tf.function
        def inner(x):
            return tf.nn.relu(x) * 2.0

        def body(x):
            return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, inner(v)), [0, x])[1]

        function = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([4]))
        graph = function.graph
        whiles = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
        (fragment,) = cut_fragments(graph, [whiles])
        return fragment

    first, second = traced(), traced()
    assert {f.signature.name for f in first.functions} != {f.signature.name for f in second.functions}
    assert first.signature == second.signature
