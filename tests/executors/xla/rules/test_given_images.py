from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import emit
from tests.executors.xla.test_predicted_peaks import volumes


def test_the_input_of_the_step_is_transposed_late() -> None:
    late, early = (emit(volumes, one).graph_def for one in (CPU, CPU.without("given_images")))
    assert len(late.node) > len(early.node)
