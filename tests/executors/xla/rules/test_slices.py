from checkmate_tf.executors.xla.backends import CPU, GPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_xla import dense_block


def test_slices_lie_in_buffers() -> None:
    held, less = (list_materialized(dense_block, one, "Slice") for one in (CPU, CPU.without("slices")))
    assert len(held) > len(less)


def test_slices_lie_in_buffers_on_a_gpu() -> None:
    held, less = (list_materialized(dense_block, one, "Slice") for one in (GPU, GPU.without("slices")))
    assert len(held) > len(less)
