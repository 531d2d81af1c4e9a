from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_xla import conv_chain


def test_large_gradients_lie_in_buffers() -> None:
    held, less = (list_materialized(conv_chain, one, ".") for one in (CPU, CPU.without("awaited_gradients")))
    assert len(held) > len(less)
