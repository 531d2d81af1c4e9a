from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops
from tests.executors.xla.test_xla import bottlenecks


def test_the_gradient_of_a_filter_of_one_pixel_is_a_product_of_matrices() -> None:
    ops = list_ops(bottlenecks, "Conv2DBackpropFilter")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("one_pixel_filters").lower(op) for op in ops)
