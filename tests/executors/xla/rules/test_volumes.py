from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized
from tests.executors.xla.test_predicted_peaks import volumes


def test_what_gradients_of_filters_of_volumes_read_lies_in_buffers() -> None:
    held, less = (list_materialized(volumes, one, ".") for one in (CPU, CPU.without("volumes")))
    assert len(held) > len(less)
