from functools import partial

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_xla import gelu_encoder


def test_a_gelu_lies_in_one_buffer() -> None:
    build = partial(gelu_encoder, num_blocks=1)
    held, less = (list_materialized(build, one, "Erfc") for one in (CPU, CPU.without("held_results")))
    assert len(held) > len(less)
