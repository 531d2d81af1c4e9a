from checkmate_tf.executors.xla.backends import CPU, GPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_predicted_peaks import summed_convolutions


def test_sums_that_gradients_of_convolutions_read_lie_in_buffers() -> None:
    held, less = (list_materialized(summed_convolutions, one, "Add") for one in (CPU, CPU.without("convolved_sums")))
    assert len(held) > len(less)


def test_sums_that_gradients_of_convolutions_read_lie_in_buffers_on_a_gpu() -> None:
    held, less = (list_materialized(summed_convolutions, one, "Add") for one in (GPU, GPU.without("convolved_sums")))
    assert len(held) > len(less)
