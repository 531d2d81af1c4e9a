from functools import partial

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops
from tests.executors.xla.test_predicted_peaks import SPARSE, language_model


def test_the_gradient_of_a_loss_is_written_over_its_logits() -> None:
    ops = list_ops(partial(language_model, num_blocks=1), "SparseSoftmaxCrossEntropyWithLogits", SPARSE)
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("losses_over_logits").lower(op) for op in ops)
