from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_xla import gelu_encoder


def test_a_gelu_lies_in_one_buffer() -> None:
    held, less = (list_materialized(gelu_encoder, one, "Erfc") for one in (CPU, CPU.without("held_results")))
    assert len(held) > len(less)
