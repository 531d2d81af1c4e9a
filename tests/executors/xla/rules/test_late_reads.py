from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_xla import conv_chain


def test_backward_nodes_read_activations_late() -> None:
    assert count_ties(emit(conv_chain, CPU)) > count_ties(emit(conv_chain, CPU.without("late_reads")))
