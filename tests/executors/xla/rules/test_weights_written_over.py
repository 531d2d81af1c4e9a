from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_predicted_peaks import wide_layers


def test_gradients_of_weights_wait_for_all_that_reads_the_weights() -> None:
    assert count_ties(emit(wide_layers, CPU)) > count_ties(emit(wide_layers, CPU.without("weights_written_over")))
