import numpy as np
import tensorflow as tf

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops
from tests.executors.xla.test_xla import pooled_chain


def test_the_gradient_of_a_pooling_of_disjoint_windows_is_a_comparison() -> None:
    ops = list_ops(pooled_chain, "MaxPoolGrad")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("pooling_gradients").lower(op) for op in ops)


def test_the_gradient_is_that_of_the_first_maximum_whatever_the_forward_pass_rounded() -> None:
    """The maximum is found again, as what was pooled may have been computed again with another rounding."""
    (op,) = list_ops(pooled_chain, "MaxPoolGrad")
    lowering = CPU.lower(op)
    assert lowering is not None
    assert lowering.inputs == (0, 2)
    random = np.random.default_rng(0)
    x = tf.constant(random.integers(-2, 3, op.inputs[0].shape), tf.float32)  # many windows have equal maxima
    gradient = tf.constant(random.normal(size=op.inputs[2].shape), tf.float32)
    given = {"ksize": op.get_attr("ksize"), "strides": op.get_attr("strides"), "padding": "VALID"}
    pooled = tf.nn.max_pool2d(x, given["ksize"], given["strides"], "VALID")
    expected = tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=pooled, grad=gradient, **given)
    np.testing.assert_array_equal(lowering.build(x, gradient), expected)
