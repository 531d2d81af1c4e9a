from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import make_graph
from tests.executors.xla.test_predicted_peaks import short_attention


def test_a_gradient_counts_once_for_each_form() -> None:
    held, less = (make_graph(short_attention, one).graph for one in (CPU, CPU.without("gradient_forms")))
    assert (held.sizes_bytes != less.sizes_bytes).any()
