from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_predicted_peaks import wide_layers


def test_products_wait_for_gradients_of_weights() -> None:
    assert count_ties(emit(wide_layers, CPU)) > count_ties(emit(wide_layers, CPU.without("results_wait")))
