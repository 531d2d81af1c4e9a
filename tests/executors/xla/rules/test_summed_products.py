from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops
from tests.executors.xla.test_predicted_peaks import short_attention


def test_the_gradient_of_weights_that_a_sequence_reads_is_one_product() -> None:
    ops = list_ops(short_attention, "Sum")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("summed_products").lower(op) for op in ops)
