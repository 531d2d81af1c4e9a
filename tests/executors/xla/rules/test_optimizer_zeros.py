from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import make_graph
from tests.executors.xla.test_predicted_peaks import SPARSE, many_words


def test_zeros_to_which_an_optimizer_adds_gradients_count() -> None:
    counted, less = (make_graph(many_words, one, SPARSE).graph for one in (CPU, CPU.without("optimizer_zeros")))
    assert counted.resident_bytes >= less.resident_bytes + 20000 * 32 * 4
