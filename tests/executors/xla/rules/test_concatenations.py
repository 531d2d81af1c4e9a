from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_xla import dense_block


def test_concatenations_lie_in_buffers() -> None:
    held, less = (list_materialized(dense_block, one, "ConcatV2") for one in (CPU, CPU.without("concatenations")))
    assert len(held) > len(less)
