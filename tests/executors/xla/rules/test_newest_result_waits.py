from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_xla import conv_chain


def test_convolutions_wait_for_the_newest_gradient_of_a_filter() -> None:
    assert count_ties(emit(conv_chain, CPU)) > count_ties(emit(conv_chain, CPU.without("newest_result_waits")))
