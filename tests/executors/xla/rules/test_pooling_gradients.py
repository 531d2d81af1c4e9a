from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops
from tests.executors.xla.test_xla import pooled_chain


def test_the_gradient_of_a_pooling_of_disjoint_windows_is_a_comparison() -> None:
    ops = list_ops(pooled_chain, "MaxPoolGrad")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("pooling_gradients").lower(op) for op in ops)


def test_the_maximum_is_not_read_from_the_forward_pass() -> None:
    """Pooled values that are computed again may be rounded differently, and then none of them equals its maximum."""
    (op,) = list_ops(pooled_chain, "MaxPoolGrad")
    lowering = CPU.lower(op)
    assert lowering is not None
    assert 1 not in lowering.inputs
