from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import make_graph
from tests.executors.xla.test_predicted_peaks import summed_convolutions


def test_filter_gradients_compute_apart_what_they_transpose() -> None:
    assert make_graph(summed_convolutions, CPU).apart
    assert not make_graph(summed_convolutions, CPU.without("operands_apart")).apart
