"""Sums of several terms, written as sums of two."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.tracing.extraction import extract


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_terms", [1, 2, 3, 8, 9, 10, 18])
def test_a_sum_of_terms_is_the_same_to_the_bit(num_terms: int, dtype: str) -> None:
    """Grappler sorts the terms by name, and the kernel adds eight of them up before it adds these to the others."""

    @tf.function(autograph=False)
    def step(*terms: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.AddN(inputs=[tf.tanh(term) for term in terms])

    spec = tf.TensorSpec((1 << 16,), dtype)
    graph = extract(step.get_concrete_function(*[spec] * num_terms))
    emitted = emit(graph, make_retain_all_schedule(graph.graph))
    sums = [node for node in emitted.graph_def.node if node.op == "AddN"]
    assert len(sums) == max(num_terms - 1, 1)
    assert all(node.attr["N"].i <= 2 for node in sums)
    terms = [tf.cast(tf.random.stateless_normal(spec.shape, (1, number)), dtype) for number in range(num_terms)]
    np.testing.assert_array_equal(np.float32(emitted.function(*terms)), np.float32(step(*terms)))
